//! Several lengths a sample: source and target, frames and transcript, chosen and rejected.
//!
//! A batch pads each field to the longest of that field, so its rows cost what the longest of every field cost together.
//! The same of one sample is its *combined length*. Samples come into buckets by it as they otherwise do by their length;
//! only packing looks at the fields.
use crate::admission::{Empty, Overlong};
use crate::bands::Bands;
use crate::cost::CostModel;
use crate::error::{Error, Result, check_range};
use crate::lengths::TABLE_SIZE;
use crate::memory;
use crate::options::Options;
use crate::shapes::PaddedLengths;
use crate::threads::{BETWEEN_CHECKS, Check};

/// More fields than this are refused.
pub(crate) const MAX_FIELDS: usize = 8;

/// The longest length of a sample with several fields, tokens.
pub(crate) const MAX_LENGTH: u64 = u32::MAX as u64;

/// The longest of each field, tokens; zeros after the last.
pub(crate) type Longest = [u32; MAX_FIELDS];

/// How the costs of the fields make the cost of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// Their sum.
    Sum,
    /// The largest of them.
    Max,
}

/// What a token of a field costs, as an exact ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight {
    /// 1 or more.
    pub numerator: u64,
    /// 1 or more.
    pub denominator: u64,
}

impl Weight {
    /// Every token counts.
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// The most that numerator and denominator may be.
    pub(crate) const MAX: u64 = 1_000;

    /// What `tokens` cost, rounded up to a whole token.
    fn of(self, tokens: u64) -> u64 {
        let cost = (u128::from(tokens) * u128::from(self.numerator)).div_ceil(u128::from(self.denominator));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

/// How one of several fields is padded, and what its tokens cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// What errors call it; `None`: its number.
    pub name: Option<String>,
    /// As [`CostModel::pad_to_multiple_of`].
    pub pad_to_multiple_of: u64,
    /// As [`Options::padded_lengths`].
    pub padded_lengths: Option<PaddedLengths>,
    /// As [`CostModel::quadratic_length`].
    pub quadratic_length: Option<u64>,
    /// What a token costs.
    pub weight: Weight,
}

impl Default for Field {
    fn default() -> Self {
        Self { name: None, pad_to_multiple_of: 1, padded_lengths: None, quadratic_length: None, weight: Weight::ONE }
    }
}

impl Field {
    pub(crate) fn validate(&self, number: usize) -> Result<()> {
        // Larger multiples would take padded lengths of 32 bits beyond 63.
        check_range("pad_to_multiple_of", Some(self.pad_to_multiple_of), 1, MAX_LENGTH)?;
        check_range("quadratic_length", self.quadratic_length, 1, i64::MAX as u64)?;
        for part in [self.weight.numerator, self.weight.denominator] {
            check_range("field_weights", Some(part), 1, Weight::MAX)?;
        }
        match &self.padded_lengths {
            Some(padded_lengths) => {
                padded_lengths.validate(&format!("padded_lengths[{}]", self.label(number)), self.pad_to_multiple_of)
            }
            None => Ok(()),
        }
    }

    /// The key of the field, as a caller would write it between brackets.
    pub(crate) fn label(&self, number: usize) -> String {
        self.name.as_ref().map_or_else(|| number.to_string(), |name| format!("\"{name}\""))
    }

    /// Where the length of sample `index` stands, as a caller would write it.
    pub(crate) fn place(&self, number: usize, index: usize) -> String {
        match self.name {
            Some(_) => format!("lengths[{}][{index}]", self.label(number)),
            None => format!("lengths[{index}, {number}]"),
        }
    }
}

/// The lengths of all samples in several fields, and what they cost.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    /// `[n_fields]`.
    models: Vec<(CostModel, Weight)>,
    combine: Combine,
    /// `[n_fields][longest + 1]`: what each length costs, where the longest is in the table.
    tables: Vec<Vec<u64>>,
    /// Lengths of a row with the zeros after them: 2, 4 or 8, so that loops over a row are unrolled.
    pub stride: usize,
    /// `[n_rows, stride]`, tokens. A row is a sample; after `reorder`, a position.
    lengths: Vec<u32>,
    /// How the samples of neighbouring combined lengths are ordered; `None`: by chance.
    pub bands: Option<Bands>,
}

impl Fields {
    /// The fields that the options describe; `lengths`: `[n_samples, n_fields]`.
    pub(crate) fn new(
        lengths: Vec<u32>,
        admitted: Option<&[bool]>,
        options: &Options,
        check: Check<'_>,
    ) -> Result<Self> {
        let cost_model = |field: &Field| CostModel {
            pad_to_multiple_of: field.pad_to_multiple_of,
            padded_lengths: match &field.padded_lengths {
                Some(PaddedLengths::List(list)) => list.clone(),
                _ => Vec::new(),
            },
            quadratic_length: field.quadratic_length,
            per_sample: 0,
            ..options.cost.clone()
        };
        let models = memory::collect(options.fields.iter().map(|field| (cost_model(field), field.weight)))?;
        let (n_fields, stride) = (models.len(), models.len().next_power_of_two());
        let lengths = if stride == n_fields { lengths } else { strided(&lengths, n_fields, stride)? };
        let (combine, tables) = (options.combine, Vec::new());
        let mut fields = Self { models, combine, tables, stride, lengths, bands: None };
        fields.tabulate()?;
        for (f, field) in options.fields.iter().enumerate() {
            if let Some(padded_lengths @ PaddedLengths::Count(_)) = &field.padded_lengths {
                let histogram = fields.histogram(f, admitted, &options.cost)?;
                let model = &fields.models[f].0;
                fields.models[f].0.padded_lengths = padded_lengths.choose(&histogram, model, check)?;
            }
        }
        fields.tabulate()?;
        Ok(fields)
    }

    fn tabulate(&mut self) -> Result<()> {
        self.tables.clear();
        for f in 0..self.n_fields() {
            let longest = self.lengths.chunks_exact(self.stride).fold(0, |longest, row| longest.max(row[f]));
            let n_lengths = if (longest as usize) < TABLE_SIZE { longest as usize + 1 } else { 0 };
            let table = memory::collect((0..n_lengths).map(|length| self.computed_cost(f, length as u64)))?;
            self.tables.push(table);
        }
        Ok(())
    }

    /// Ascending distinct lengths of one field, but for 0, with the number of admitted samples that have each and that
    /// the budget holds.
    fn histogram(&self, f: usize, admitted: Option<&[bool]>, model: &CostModel) -> Result<Vec<(u64, u64)>> {
        let rows = self.lengths.chunks_exact(self.stride).enumerate();
        let counted = rows.filter(|&(i, row)| {
            row[f] > 0 && admitted.is_none_or(|admitted| admitted[i]) && model.cap(self.combined(row).max(1)) > 0
        });
        let mut lengths = memory::collect(counted.map(|(_, row)| u64::from(row[f])))?;
        lengths.sort_unstable();
        memory::collect(lengths.chunk_by(|a, b| a == b).map(|equal| (equal[0], equal.len() as u64)))
    }

    pub(crate) fn n_fields(&self) -> usize {
        self.models.len()
    }

    /// `[n_fields]`, the lengths of one sample or position, tokens.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> &[u32] {
        &self.lengths[row * self.stride..][..self.models.len()]
    }

    /// `[n_rows]`, where `S` is the stride.
    pub(crate) fn rows<const S: usize>(&self) -> &[[u32; S]] {
        self.lengths.as_chunks().0
    }

    /// Tokens of a row of field `f` in a batch whose longest has `length` tokens there.
    pub(crate) fn padded_length(&self, f: usize, length: u64) -> u64 {
        self.models[f].0.padded_length(length)
    }

    /// The padded lengths of field `f` that were given or chosen; empty: any.
    pub(crate) fn padded_lengths(&self, f: usize) -> &[u64] {
        &self.models[f].0.padded_lengths
    }

    #[cold]
    fn computed_cost(&self, f: usize, length: u64) -> u64 {
        let (model, weight) = &self.models[f];
        weight.of(model.sample_cost(length))
    }

    /// What one sample costs in a batch with these longest lengths, `[n_fields]`, but for `per_sample`; its combined
    /// length.
    #[inline]
    pub(crate) fn combined(&self, longest: &[u32]) -> u64 {
        let mut together = 0;
        for (f, (table, &length)) in self.tables.iter().zip(longest).enumerate() {
            let cost = match table.get(length as usize) {
                Some(&cost) => cost,
                None => self.computed_cost(f, length.into()),
            };
            together = match self.combine {
                Combine::Sum => cost.saturating_add(together),
                Combine::Max => cost.max(together),
            };
        }
        together
    }

    /// Tokens of all fields of one row together.
    pub(crate) fn tokens(&self, row: usize) -> u64 {
        self.row(row).iter().map(|&length| u64::from(length)).sum()
    }

    /// Tokens of some rows together.
    pub(crate) fn tokens_of(&self, rows: &[usize]) -> u128 {
        rows.iter().map(|&row| u128::from(self.tokens(row))).sum()
    }

    /// `[n_samples]`, combined lengths: 0 of an empty sample, more than the budget admits of an over-long one.
    ///
    /// # Errors
    ///
    /// The first admitted sample that the policies do not allow.
    pub(crate) fn combined_lengths(
        &self,
        admitted: Option<&[bool]>,
        options: &Options,
        check: Check<'_>,
    ) -> Result<Vec<u64>> {
        let n_samples = self.lengths.len() / self.stride;
        let last = options.cost.longest_admissible();
        let mut combined = memory::with_capacity(n_samples)?;
        for rows in self.lengths.chunks(BETWEEN_CHECKS * self.stride) {
            check()?;
            combined.extend(rows.chunks_exact(self.stride).map(|row| self.combined(row)));
        }
        let lists = self.models.iter().map(|(model, _)| model.padded_lengths.last().copied().unwrap_or(MAX_LENGTH));
        let lists: Vec<u64> = memory::collect(lists)?;
        if lists.iter().any(|&list| list < MAX_LENGTH) {
            for (combined, row) in combined.iter_mut().zip(self.lengths.chunks_exact(self.stride)) {
                if row.iter().zip(&lists).any(|(&length, &list)| u64::from(length) > list) {
                    *combined = last.saturating_add(1).max(*combined);
                }
            }
        }
        // Even an empty row is padded where there are padded lengths.
        if self.models.iter().any(|(model, _)| !model.padded_lengths.is_empty()) {
            for (i, combined) in combined.iter_mut().enumerate() {
                *combined = if self.tokens(i) == 0 { 0 } else { *combined };
            }
        }
        self.check(&combined, admitted, options)?;
        Ok(combined)
    }

    fn check(&self, combined: &[u64], admitted: Option<&[bool]>, options: &Options) -> Result<()> {
        let last = options.cost.longest_admissible();
        let is_admitted = |i: usize| admitted.is_none_or(|admitted| admitted[i]);
        let matching = |matches: &dyn Fn(u64) -> bool| {
            let mut found = (0..combined.len()).filter(|&i| matches(combined[i]) && is_admitted(i));
            found.next().map(|first| (first, 1 + found.count()))
        };
        let n_samples = admitted.map_or(combined.len(), |admitted| admitted.iter().filter(|&&admits| admits).count());
        let places = |i: usize| {
            let rows = self.row(i).iter().zip(&options.fields).enumerate();
            let texts: Vec<String> =
                rows.map(|(f, (length, field))| format!("{} = {length}", field.place(f, i))).collect();
            texts.join(" and ")
        };
        if options.empty == Empty::Error
            && let Some((index, n_empty)) = matching(&|combined| combined == 0)
        {
            return Err(Error::EmptyRow { places: places(index), n_empty, n_samples });
        }
        if options.overlong != Overlong::Error {
            return Ok(());
        }
        let Some((index, n_overlong)) = matching(&|combined| combined > last) else { return Ok(()) };
        let row = self.row(index);
        for (f, (model, _)) in self.models.iter().enumerate() {
            if let Some(&list_end) = model.padded_lengths.last().filter(|&&list_end| u64::from(row[f]) > list_end) {
                let longest = (0..combined.len()).filter(|&i| is_admitted(i)).map(|i| self.row(i)[f]).max();
                return Err(Error::BeyondPaddedLengths {
                    place: options.fields[f].place(f, index),
                    length: row[f].into(),
                    name: format!("padded_lengths[{}]", options.fields[f].label(f)),
                    last_index: model.padded_lengths.len() - 1,
                    last: list_end,
                    n_overlong,
                    n_samples,
                    longest: longest.unwrap_or(0).into(),
                });
            }
        }
        Err(Error::OverLongRow {
            places: places(index),
            cost: self.combined(row).saturating_add(options.cost.per_sample),
            token_budget: options.cost.token_budget,
            n_overlong,
            n_samples,
        })
    }

    /// Puts the samples at `indices` into rows, in that order.
    pub(crate) fn reorder(&mut self, indices: impl ExactSizeIterator<Item = usize>) -> Result<()> {
        let mut lengths = memory::with_capacity(indices.len() * self.stride)?;
        for i in indices {
            lengths.extend_from_slice(&self.lengths[i * self.stride..][..self.stride]);
        }
        self.lengths = lengths;
        Ok(())
    }

    /// The longest of each field among some rows.
    pub(crate) fn longest(&self, rows: impl Iterator<Item = usize>) -> Longest {
        match self.stride {
            2 => self.longest_of::<2>(rows),
            4 => self.longest_of::<4>(rows),
            _ => self.longest_of::<MAX_FIELDS>(rows),
        }
    }

    fn longest_of<const S: usize>(&self, rows: impl Iterator<Item = usize>) -> Longest {
        let all = self.rows::<S>();
        let longest = rows.fold([0; S], |longest, row| std::array::from_fn(|f| longest[f].max(all[row][f])));
        with_zeros(longest)
    }
}

/// The longest of each field of a row of any stride.
pub(crate) fn with_zeros<const S: usize>(longest: [u32; S]) -> Longest {
    std::array::from_fn(|f| longest.get(f).copied().unwrap_or(0))
}

/// Rows of `stride`, zeros after the lengths of the fields.
fn strided(lengths: &[u32], n_fields: usize, stride: usize) -> Result<Vec<u32>> {
    let mut rows = memory::filled(0, lengths.len() / n_fields * stride)?;
    for (row, lengths) in rows.chunks_exact_mut(stride).zip(lengths.chunks_exact(n_fields)) {
        row[..n_fields].copy_from_slice(lengths);
    }
    Ok(rows)
}
