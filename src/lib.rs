//! Padded batches of variable-length sequences, planned one epoch at a time.
#![forbid(unsafe_code)]

pub mod collate;
pub mod rng;

#[cfg(feature = "python")]
mod python;
