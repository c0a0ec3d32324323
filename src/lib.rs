//! Padded batches of variable-length sequences, planned one epoch at a time: buckets of similar length, shuffled, packed
//! under a token budget, in an order that mixes all lengths.
//!
//! ```
//! use bucketshuffle::{Options, pack_epoch};
//!
//! let lengths: Vec<u32> = (0..1_000).map(|i| 65 + i * 7_919 % 8_127).collect();
//! let plan = pack_epoch(lengths.as_slice(), 0, 0, Options::default())?;
//! let first = &plan.indices[..plan.offsets[1] as usize];
//! assert!(first.len() as i64 * plan.padded_lengths[0] <= 131_072);
//! # Ok::<(), bucketshuffle::Error>(())
//! ```
#![forbid(unsafe_code)]

mod admission;
mod bands;
mod boundaries;
mod bucket;
mod by_key;
mod by_length;
mod cells;
pub mod collate;
mod cost;
mod domains;
mod epoch;
mod error;
mod exponential;
mod fields;
mod least;
mod lengths;
mod memory;
mod options;
mod order;
mod pack;
mod plan;
mod planner;
mod record;
mod rng;
mod shapes;
mod soft;
mod sorted;
mod threads;

#[cfg(feature = "python")]
mod python;

pub use admission::{Empty, Overlong};
pub use bucket::Boundaries;
pub use cost::CostModel;
pub use error::{Error, Result};
pub use fields::{Combine, Field, Weight};
pub use lengths::Lengths;
pub use options::{Options, Strategy};
pub use pack::Closed;
pub use plan::{DFLASH_BOUNDARIES, EpochPlan, ORDER_VERSION, Totals};
pub use planner::{Planner, pack_epoch};
pub use shapes::PaddedLengths;
