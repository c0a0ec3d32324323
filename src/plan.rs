//! What a plan is.
use crate::pack::Closed;

/// Version of the order contract in docs/ORDER.md. The same version, lengths, options, seed and epoch give the same
/// plan on every machine, for any number of threads.
pub const ORDER_VERSION: u32 = 2;

/// The six buckets of the DFlash write-up, tokens.
pub const DFLASH_BOUNDARIES: [u64; 7] = [0, 512, 1024, 2048, 3072, 4096, 8192];

/// One epoch: all batches in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochPlan {
    /// `[n_used]`, sample indices; batch `b` is `indices[offsets[b]..offsets[b + 1]]`.
    pub indices: Vec<i64>,
    /// `[n_batches + 1]`, positions in `indices`.
    pub offsets: Vec<i64>,
    /// `[n_batches]`, tokens of a row of the padded batch; several fields: `[n_batches, n_fields]`.
    pub padded_lengths: Vec<i64>,
    /// `[n_batches]`, cost of each batch under the cost model, tokens; at most 2^63 - 1.
    pub costs: Vec<i64>,
    /// `[n_batches]`, the bucket that holds the largest sample of each batch; -1: an over-long sample, kept.
    pub buckets: Vec<i32>,
    /// `[n_batches]`, the domain of each batch; empty without domains.
    pub domains: Vec<i64>,
    /// The value of each domain, ascending, and the tokens of its samples.
    pub domain_tokens: Vec<(i64, u128)>,
    /// `[n_buckets + 1]`, edges: bucket `i` holds `boundaries[i] < length <= boundaries[i + 1]`. The
    /// edges of several domains stand one after the other.
    pub boundaries: Vec<i64>,
    /// `[n_dropped]`, the samples left out, ascending.
    pub dropped: Vec<i64>,
    /// Totals.
    pub totals: Totals,
}

/// Totals of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tokens of all planned samples.
    pub real_tokens: u128,
    /// `B * L`, summed over the batches and the fields.
    pub padded_tokens: u128,
    /// Cost of all batches under the cost model, tokens.
    pub cost: u128,
    /// What all batches might have cost, tokens: their number times `token_budget`.
    pub budget_tokens: u128,
    /// Tokens of the samples left out.
    pub dropped_tokens: u128,
    /// Why batches ended where they did, before any was split.
    pub closed: Closed,
    /// Batches added by splitting.
    pub n_splits: u64,
    /// Batches of a window: the option.
    pub window: u64,
}
