//! What a plan promises, on generated lengths and options.
use bucketshuffle::{
    Boundaries, Closed, Combine, CostModel, DFLASH_BOUNDARIES, Empty, EpochPlan, Options, Overlong, Planner, Strategy,
    pack_epoch,
};
use proptest::prelude::{any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::{Just, Strategy as Generated};

fn lengths() -> impl Generated<Value = Vec<u32>> {
    // Short ones, so that many are equal, and some beyond each internal switch of representation.
    let length = prop_oneof![8 => 0..200_u32, 1 => 65_530..65_540_u32, 1 => (u32::MAX - 2)..=u32::MAX];
    proptest::collection::vec(length, 0..300)
}

fn options() -> impl Generated<Value = Options> {
    let cost = (
        prop_oneof![1..2_000_u64, Just(131_072), Just(i64::MAX as u64)],
        proptest::option::of(1..20_u64),
        1..70_u64,
        0..10_u64,
        proptest::option::of(1..10_000_u64),
    );
    let boundaries = prop_oneof![
        Just(Options::default().boundaries),
        (0.0..100.0).prop_map(Boundaries::RepeatWeight),
        (0.0..1.0).prop_map(Boundaries::PaddingTarget),
        (1..20_usize).prop_map(Boundaries::Optimal),
        Just(Boundaries::Edges(vec![0, 10, 100, 1 << 33])),
    ];
    let strategy = prop_oneof![4 => Just(Strategy::Bucketed), 1 => Just(Strategy::Sorted), 1 => Just(Strategy::Random)];
    let overlong = prop_oneof![Just(Overlong::Drop), Just(Overlong::Keep)];
    (cost, boundaries, strategy, (1..5_u64, 1..4_u64), any::<bool>(), overlong).prop_map(
        |(cost, boundaries, strategy, (strata, align_ranks), constant_count, overlong)| {
            let (token_budget, max_batch_size, pad_to_multiple_of, per_sample, quadratic_length) = cost;
            Options {
                cost: CostModel {
                    token_budget,
                    max_batch_size,
                    min_batch_size: 1,
                    pad_to_multiple_of,
                    padded_lengths: Vec::new(),
                    per_sample,
                    quadratic_length,
                },
                padded_lengths: None,
                fields: Vec::new(),
                combine: Combine::Sum,
                boundaries: match strategy {
                    Strategy::Bucketed => boundaries,
                    _ => Options::default().boundaries,
                },
                strategy,
                window: strata * align_ranks,
                align_ranks,
                constant_count,
                overlong,
                empty: Empty::Drop,
                threads: None,
            }
        },
    )
}

fn batches(plan: &EpochPlan) -> impl Iterator<Item = (&[i64], i64, i32)> {
    let indices = plan.offsets.windows(2).map(|ends| &plan.indices[ends[0] as usize..ends[1] as usize]);
    indices.zip(&plan.padded_lengths).zip(&plan.buckets).map(|((indices, &padded), &bucket)| (indices, padded, bucket))
}

proptest! {
    #[test]
    fn every_sample_is_planned_once_or_reported(lengths in lengths(), options in options(), seed: u64, epoch: u64) {
        let Ok(plan) = pack_epoch(lengths.as_slice(), seed, epoch, options) else { return Ok(()) };
        let mut all = [plan.indices, plan.dropped].concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..lengths.len() as i64).collect::<Vec<_>>());
    }

    #[test]
    fn budget_caps_and_buckets_are_kept_by_every_batch(lengths in lengths(), options in options(), seed: u64) {
        let Ok(plan) = pack_epoch(lengths.as_slice(), seed, 0, options.clone()) else { return Ok(()) };
        for (batch, padded, bucket) in batches(&plan) {
            let longest = batch.iter().map(|&i| u64::from(lengths[i as usize])).max().unwrap();
            prop_assert_eq!(padded as u64, options.cost.padded_length(longest));
            if bucket == -1 {
                prop_assert!(batch.len() == 1 && options.cost.cap(longest) == 0);
                continue;
            }
            prop_assert!(batch.len() <= options.cost.cap(longest));
            let (above, top) = (plan.boundaries[bucket as usize], plan.boundaries[bucket as usize + 1]);
            prop_assert!((above + 1..=top).contains(&(longest as i64)));
            if matches!(options.boundaries, Boundaries::Edges(_) | Boundaries::Optimal(_)) {
                prop_assert!(batch.iter().all(|&i| (above + 1..=top).contains(&i64::from(lengths[i as usize]))));
            }
        }
    }

    #[test]
    fn totals_are_those_of_the_batches(lengths in lengths(), options in options(), seed: u64) {
        let admitted: Vec<bool> = (0..lengths.len()).map(|i| seed >> (i % 64) & 7 != 0).collect();
        let planner = Planner::of_admitted(lengths.as_slice(), Some(&admitted), options.clone());
        let Ok(planner) = planner else { return Ok(()) };
        let plan = planner.plan(seed, 0).unwrap();
        prop_assert_eq!(planner.boundaries().iter().map(|&edge| edge as i64).collect::<Vec<_>>(), plan.boundaries.clone());
        prop_assert_eq!(planner.dropped().iter().map(|&i| i as i64).collect::<Vec<_>>(), plan.dropped.clone());
        prop_assert_eq!(planner.options(), &options);
        let length = |&i: &i64| u64::from(lengths[i as usize]);
        let costs = batches(&plan).map(|(batch, ..)| {
            options.cost.batch_cost(batch.len(), batch.iter().map(length).max().unwrap())
        });
        let costs: Vec<u128> = costs.collect();
        let totals = &plan.totals;
        let sum = |samples: &[i64]| samples.iter().map(|i| u128::from(length(i))).sum::<u128>();
        prop_assert_eq!(totals.real_tokens, sum(&plan.indices));
        prop_assert_eq!(totals.dropped_tokens, sum(&plan.dropped));
        prop_assert_eq!(totals.padded_tokens, batches(&plan).map(|(batch, padded, _)| batch.len() as u128 * padded as u128).sum());
        prop_assert_eq!(totals.cost, costs.iter().sum());
        prop_assert_eq!(totals.budget_tokens, costs.len() as u128 * u128::from(options.cost.token_budget));
        let at_most: Vec<i64> = costs.iter().map(|&cost| i64::try_from(cost).unwrap_or(i64::MAX)).collect();
        prop_assert_eq!(&plan.costs, &at_most);
        let Closed { by_budget, by_max_batch_size, by_bucket_end } = totals.closed;
        prop_assert_eq!(by_budget + by_max_batch_size + by_bucket_end + totals.n_splits, costs.len() as u64);
    }

    #[test]
    fn constant_count_is_kept_in_every_epoch(lengths in lengths(), options in options(), seed: u64) {
        let Ok(planner) = Planner::new(lengths.as_slice(), options.clone()) else { return Ok(()) };
        for epoch in 0..3 {
            let n_batches = planner.plan(seed, epoch).unwrap().padded_lengths.len();
            if options.constant_count {
                prop_assert_eq!(n_batches, planner.n_batches().unwrap());
                prop_assert!((n_batches as u64).is_multiple_of(options.window));
            }
        }
    }

    #[test]
    fn threads_and_the_way_to_plan_change_nothing(lengths in lengths(), options in options(), seed: u64, epoch: u64) {
        let Ok(planner) = Planner::new(lengths.as_slice(), options.clone()) else { return Ok(()) };
        let plan = planner.plan(seed, epoch).unwrap();
        for threads in [1, 2, 7] {
            let options = Options { threads: Some(threads), ..options.clone() };
            prop_assert_eq!(&plan, &pack_epoch(lengths.as_slice(), seed, epoch, options).unwrap());
        }
        prop_assert_eq!(&plan, &planner.into_plan(seed, epoch).unwrap());
    }

    #[test]
    fn the_width_of_the_lengths_changes_nothing(lengths in proptest::collection::vec(1..=u16::MAX, 0..300), seed: u64) {
        let wide: Vec<u32> = lengths.iter().copied().map(u32::from).collect();
        let widest: Vec<u64> = lengths.iter().copied().map(u64::from).collect();
        let plan = pack_epoch(lengths.as_slice(), seed, 0, Options::default()).unwrap();
        prop_assert_eq!(&plan, &pack_epoch(wide.as_slice(), seed, 0, Options::default()).unwrap());
        prop_assert_eq!(&plan, &pack_epoch(widest.as_slice(), seed, 0, Options::default()).unwrap());
    }
}

fn scrambled(n_samples: u32) -> Vec<u32> {
    (0..n_samples).map(|i| 65 + i.wrapping_mul(0x9E37_79B9) % 8_127).collect()
}

#[test]
fn seed_and_epoch_are_not_added() {
    let options = Options { boundaries: Boundaries::Edges(DFLASH_BOUNDARIES.to_vec()), ..Options::default() };
    let lengths = scrambled(5_000);
    let planner = Planner::new(lengths.as_slice(), options).unwrap();
    assert_eq!(planner.plan(0, 1), planner.plan(0, 1));
    assert_ne!(planner.plan(0, 1), planner.plan(1, 0));
}

// Noise is drawn in chunks of 4,096 samples: every thread gets several, and cells of several threads.
#[test]
fn threads_that_share_the_chunks_of_an_epoch_change_nothing() {
    let lengths = scrambled(50_000);
    let plan = |threads| pack_epoch(lengths.as_slice(), 5, 2, Options { threads: Some(threads), ..Options::default() });
    let one = plan(1).unwrap();
    for threads in 2..5 {
        assert!(plan(threads).unwrap() == one, "threads = {threads}");
    }
}

// Two million samples are above the switch to several threads, so the default is checked against one.
#[test]
fn the_default_number_of_threads_changes_nothing() {
    let lengths = scrambled(2_000_000);
    let one = Options { threads: Some(1), ..Options::default() };
    let plan = pack_epoch(lengths.as_slice(), 0, 0, Options::default()).unwrap();
    assert_eq!(plan, pack_epoch(lengths.as_slice(), 0, 0, one).unwrap());
}

// Index and length share a word of 32, 64 or 128 bits; these lengths lie on both sides of each switch.
#[test]
fn every_width_of_record_gives_the_order_that_the_lengths_ask_for() {
    let shape = |longest: u64, n_samples: u64| -> Vec<u64> { (0..n_samples).map(|i| longest - i % 7).collect() };
    let plan = |lengths: &[u64]| {
        let cost = CostModel { token_budget: i64::MAX as u64, max_batch_size: Some(5), ..Options::default().cost };
        pack_epoch(lengths, 3, 1, Options { cost, boundaries: Boundaries::Optimal(7), ..Options::default() }).unwrap()
    };
    let reference = plan(&shape(7, 1_000));
    // 1,000 indices take 10 bits: 22 are left of 32 and 54 of 64.
    for longest in [(1 << 22) - 1, 1 << 22, 1 << 32, (1 << 54) - 1, 1 << 54, 1 << 60] {
        assert!(plan(&shape(longest, 1_000)).indices == reference.indices, "longest = {longest}");
    }
}
