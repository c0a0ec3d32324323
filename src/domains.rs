//! Domains: samples that share no batch, such as those of several tasks, languages or sources.
//!
//! Each domain is planned like a data set of its own, with buckets and random streams of its own. Their batches meet in the
//! order: every window draws from each domain by its share.
use std::ops::Range;

use crate::bucket::Buckets;
use crate::by_length::Position;
use crate::error::{Error, Result};
use crate::fields::Longest;
use crate::lengths::Lengths;
use crate::memory;
use crate::options::Options;
use crate::pack::Packed;
use crate::plan::EpochPlan;
use crate::planner::{Planner, Samples, with_samples};
use crate::record::{Record, Records, with_records};
use crate::rng::Streams;
use crate::shapes::PaddedLengths;
use crate::threads::Check;

/// One domain and what plans it.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    /// As the caller passed it.
    pub value: i64,
    /// Of its samples alone, which count from 0.
    pub planner: Planner,
    /// `[n_samples of the domain]`: the index of each in the data set.
    members: Vec<usize>,
    /// The place of its first edge among the edges of all domains.
    pub first_edge: usize,
}

type Measure<'a> = Box<dyn Fn(Range<usize>, i32) -> (u64, u64, Longest) + 'a>;

/// A domain's draw.
pub(crate) struct Drawn<'a> {
    /// Sample indices of the data set, in pack order.
    indices: Vec<i64>,
    /// `Planner::measure`, by positions in pack order and the bucket.
    measure: Measure<'a>,
}

/// The lengths that a caller passed.
#[derive(Clone, Copy)]
pub(crate) enum AnyLengths<'a> {
    One(Lengths<'a>),
    /// `[n_samples, n_fields]`.
    Several(&'a [u32]),
}

impl Planner {
    /// The planner of samples in domains, `[n_samples]`. `self` has found what all domains share: what is admitted and to
    /// which lengths batches are padded.
    pub(crate) fn in_domains(mut self, lengths: AnyLengths<'_>, domains: &[i64], check: Check<'_>) -> Result<Self> {
        let n_samples = self.n_samples() + self.dropped.len();
        if domains.len() != n_samples {
            return Err(Error::NumberOfDomains { n_domains: domains.len(), n_samples });
        }
        let mut members: Vec<(i64, usize)> = memory::with_capacity(self.n_samples())?;
        let mut dropped = self.dropped.iter().copied().peekable();
        members.extend((0..n_samples).filter(|&i| dropped.next_if_eq(&i).is_none()).map(|i| (domains[i], i)));
        members.sort_unstable();
        let options = Options { constant_count: false, ..self.chosen_options() };
        self.samples = Samples::InBuckets(Records::U32(Vec::new()), Buckets::none());
        let mut edges = Vec::new();
        for of_domain in members.chunk_by(|a, b| a.0 == b.0) {
            let value = of_domain[0].0;
            let members: Vec<usize> = memory::collect(of_domain.iter().map(|&(_, i)| i))?;
            let (n_samples, min_batch_size) = (members.len(), options.cost.min_batch_size);
            if (n_samples as u64) < min_batch_size {
                let reason =
                    format!("domain {value} has {n_samples} samples; lower it, or leave them out with admitted");
                return Err(Error::MinBatchSize { min_batch_size, reason });
            }
            let planner = Self::of_members(lengths, &members, options.clone(), check)?;
            let first_edge = edges.len();
            edges.extend_from_slice(planner.boundaries());
            memory::push(&mut self.domains, Domain { value, planner, members, first_edge })?;
        }
        if !self.domains.is_empty() {
            self.boundaries = edges;
        }
        Ok(self)
    }

    /// The options with the padded lengths that were chosen for all samples.
    fn chosen_options(&self) -> Options {
        let mut options = self.options.clone();
        let chosen = |given: &Option<PaddedLengths>, f| {
            given
                .as_ref()
                .filter(|_| !self.padded_lengths(f).is_empty())
                .map(|_| PaddedLengths::List(self.padded_lengths(f).to_vec()))
        };
        options.padded_lengths = chosen(&options.padded_lengths, 0);
        for (f, field) in options.fields.iter_mut().enumerate() {
            field.padded_lengths = chosen(&field.padded_lengths, f);
        }
        options
    }

    fn of_members(lengths: AnyLengths<'_>, members: &[usize], options: Options, check: Check<'_>) -> Result<Self> {
        match lengths {
            AnyLengths::One(Lengths::U16(all)) => {
                let lengths: Vec<u16> = memory::collect(members.iter().map(|&i| all[i]))?;
                Self::of_selected(&lengths, None, options, None, check)
            }
            AnyLengths::One(Lengths::U32(all)) => {
                let lengths: Vec<u32> = memory::collect(members.iter().map(|&i| all[i]))?;
                Self::of_selected(&lengths, None, options, None, check)
            }
            AnyLengths::One(Lengths::U64(all)) => {
                let lengths: Vec<u64> = memory::collect(members.iter().map(|&i| all[i]))?;
                Self::of_selected(&lengths, None, options, None, check)
            }
            AnyLengths::Several(all) => {
                let n_fields = options.fields.len();
                let mut lengths = memory::with_capacity(members.len() * n_fields)?;
                for &i in members {
                    lengths.extend_from_slice(&all[i * n_fields..(i + 1) * n_fields]);
                }
                Self::of_fields_selected(lengths, None, options, check)
            }
        }
    }

    /// Draws every domain; their batches stand one after the other.
    pub(crate) fn draw_domains(&self, streams: Streams, check: Check<'_>) -> Result<(Vec<Drawn<'_>>, Packed)> {
        let (mut all, mut packed) = (memory::with_capacity(self.domains.len())?, Packed::default());
        let mut start = 0;
        for (number, domain) in self.domains.iter().enumerate() {
            let streams = Streams { domain: number as u64, ..streams };
            let (drawn, mut of_domain) = domain.draw(streams, check)?;
            for batch in &mut of_domain.batches {
                batch.start += start;
                batch.domain = number as u32;
            }
            start += drawn.indices.len();
            packed.append(of_domain)?;
            all.push(drawn);
        }
        Ok((all, packed))
    }

    pub(crate) fn plan_domains_to(&self, indices: &mut [i64], streams: Streams, check: Check<'_>) -> Result<EpochPlan> {
        let (drawn, mut packed) = self.draw(streams, check, |streams| self.draw_domains(streams, check))?;
        let starts: Vec<usize> = drawn
            .iter()
            .scan(0, |next, drawn| {
                *next += drawn.indices.len();
                Some(*next - drawn.indices.len())
            })
            .collect();
        let measure = |range: Range<usize>, bucket| {
            let number = starts.partition_point(|&start| start <= range.start) - 1;
            (drawn[number].measure)(range.start - starts[number]..range.end - starts[number], bucket)
        };
        self.even_out(&mut packed, streams, measure, check)?;
        let mut samples = memory::with_capacity(self.n_samples())?;
        for drawn in &drawn {
            samples.extend_from_slice(&drawn.indices);
        }
        self.write(&samples, |index| index as usize, packed, indices, streams, check)
    }

    /// The value of each domain, ascending, and the tokens of its samples.
    pub(crate) fn domain_tokens(&self) -> impl Iterator<Item = (i64, u128)> {
        self.domains.iter().map(|domain| (domain.value, domain.planner.real_tokens))
    }
}

impl Domain {
    fn draw(&self, streams: Streams, check: Check<'_>) -> Result<(Drawn<'_>, Packed)> {
        let planner = &self.planner;
        let index = |local: usize| self.members[local] as i64;
        with_samples!(&planner.samples, (records, buckets) => {
            let mut records = memory::copy(records)?;
            let packed = planner.pack_buckets(&mut records, buckets, streams, check)?;
            let row = |record| Record::index(record, buckets.index_bits);
            let indices = memory::collect(records.iter().map(|&record| index(row(record))))?;
            let measure = Box::new(move |range: Range<usize>, bucket| {
                planner.measure(&records[range], row, |record| buckets.codec(bucket).length(record))
            });
            Ok((Drawn { indices, measure }, packed))
        }, samples => {
            let (positions, packed) = planner.pack_sorted(samples, streams, check)?;
            let mut local = memory::copy(&positions)?;
            samples.to_indices(&mut local, check)?;
            let indices = memory::collect(local.iter().map(|local| index(local.get())))?;
            let measure = Box::new(move |range: Range<usize>, _| {
                planner.measure(&positions[range], Position::get, |position| samples.length(position))
            });
            Ok((Drawn { indices, measure }, packed))
        })
    }
}
