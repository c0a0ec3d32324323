//! Every message of the core, whole.
use bucketshuffle::{Boundaries, CostModel, Empty, Error, Options, Overlong, PaddedLengths, Planner, Strategy};

fn message(lengths: &[u64], change: impl FnOnce(&mut Options)) -> String {
    let mut options = Options { boundaries: Boundaries::Optimal(2), ..Options::default() };
    change(&mut options);
    Planner::new(lengths, options).expect_err("the input is refused").to_string()
}

#[test]
fn lengths_are_refused_by_name() {
    assert_eq!(
        message(&[3, 0, 0], |_| {}),
        "lengths[1] = 0 is below the shortest length = 1; remove the sample, or set empty=\"drop\" (2 of 3 samples are empty)"
    );
    assert_eq!(
        message(&[5, 9_000, 10_000], |options| options.cost.token_budget = 8_192),
        "lengths[1] = 9000 exceeds token_budget = 8192; raise token_budget, or set overlong=\"drop\" or \"keep\" \
         (2 of 3 samples are over-long, the longest is 10000)"
    );
    assert_eq!(
        message(&[8_190], |options| {
            options.cost = CostModel { token_budget: 8_192, per_sample: 10, ..options.cost.clone() };
        }),
        "lengths[0] = 8190 costs 8200, which exceeds token_budget = 8192; raise token_budget, or set \
         overlong=\"drop\" or \"keep\" (1 of 1 samples are over-long, the longest is 8190)"
    );
    assert_eq!(
        message(&[5, u64::MAX], |options| options.overlong = Overlong::Keep),
        "lengths[1] = 18446744073709551615 padded to pad_to_multiple_of = 1 exceeds the longest padded length = \
         9223372036854775807; correct the length, or set overlong=\"drop\""
    );
    let edges = |options: &mut Options| options.boundaries = Boundaries::Edges(vec![4, 8, 16]);
    assert_eq!(
        message(&[5, 4], edges),
        "lengths[1] = 4 is not above the first edge boundaries[0] = 4; start boundaries with an edge below 4, or set \
         boundaries=\"auto\" (1 of 2 samples are not above it, this one is the shortest)"
    );
    // An edge that holds the longest holds them all.
    assert_eq!(
        message(&[16, 17, 19, 4, 19], edges),
        "lengths[2] = 19 exceeds the last edge boundaries[2] = 16; append an edge of 19 or more, or set \
         boundaries=\"auto\" (3 of 5 samples exceed it, this one is the longest)"
    );
    assert_eq!(
        message(&[3, 9, 8], |options| options.padded_lengths = Some(PaddedLengths::List(vec![4, 8]))),
        "lengths[1] = 9 exceeds the last padded length padded_lengths[1] = 8; append a padded length of 9 or more, or \
         set overlong=\"drop\" or \"keep\" (1 of 3 samples are over-long, the longest is 9)"
    );
    let masked = Planner::of_admitted(&[5_u64, 6][..], Some(&[true]), Options::default());
    assert_eq!(
        masked.expect_err("the mask is too short").to_string(),
        "admitted has 1 entries, lengths has 2; pass one entry for each sample"
    );
    // The mask comes first, and the index is that of all samples.
    let masked = |lengths: &[u64]| Planner::of_admitted(lengths, Some(&[false, true, true]), Options::default());
    assert!(masked(&[0, 5, 6]).is_ok());
    assert_eq!(
        masked(&[5, 6, 0]).expect_err("an empty sample is admitted").to_string(),
        "lengths[2] = 0 is below the shortest length = 1; remove the sample, or set empty=\"drop\" (1 of 2 samples are \
         empty)"
    );
    let alone = Options { constant_count: true, window: 4, ..Options::default() };
    assert_eq!(Planner::new(&[5_u64, 6, 7, 8][..], alone).unwrap().n_batches().unwrap(), 4);
    assert_eq!(
        message(&[5, 6, 7], |options| {
            options.constant_count = true;
            options.window = 4;
        }),
        "constant_count with window = 4 asks for 4 batches, more than the 3 samples; lower window (in a sampler: \
         world_size * accumulation_steps), or plan more samples"
    );
    assert_eq!(
        Error::NegativeLength { index: 2, value: -5 }.to_string(),
        "lengths[2] = -5 is below the shortest length = 1; pass the number of tokens of every sample"
    );
}

/// An option, its minimum and how to set it.
type Case = (&'static str, u64, fn(&mut Options, u64));

#[test]
fn options_are_refused_by_name() {
    let range = "9223372036854775807]; choose a value in that range";
    let cases: [Case; 7] = [
        ("token_budget", 1, |options, value| options.cost.token_budget = value),
        ("max_batch_size", 1, |options, value| options.cost.max_batch_size = Some(value)),
        ("pad_to_multiple_of", 1, |options, value| options.cost.pad_to_multiple_of = value),
        ("quadratic_length", 1, |options, value| options.cost.quadratic_length = Some(value)),
        ("window", 1, |options, value| options.window = value),
        ("align_ranks", 1, |options, value| options.align_ranks = value),
        ("per_sample", 0, |options, value| options.cost.per_sample = value),
    ];
    for (name, min, set) in cases {
        for bad in [u64::MAX, min.wrapping_sub(1)] {
            assert_eq!(
                message(&[1], |options| set(options, bad)),
                format!("{name} = {bad} is outside [{min}, {range}")
            );
        }
    }
    assert_eq!(message(&[1], |options| options.threads = Some(0)), format!("threads = 0 is outside [1, {range}"));
    assert_eq!(
        message(&[1], |options| options.boundaries = Boundaries::Optimal(0)),
        "boundaries = 0 is outside [1, 4096]; choose a value in that range"
    );
    for (boundaries, text) in [
        (Boundaries::PaddingTarget(-0.5), "padding_target = -0.5"),
        (Boundaries::RepeatWeight(f64::NAN), "repeat_weight = NaN"),
    ] {
        assert_eq!(
            message(&[1], |options| options.boundaries = boundaries),
            format!("{text} is outside [0, inf]; choose a value in that range")
        );
    }
    assert_eq!(
        message(&[1], |options| options.padded_lengths = Some(PaddedLengths::Count(4_097))),
        "padded_lengths = 4097 is outside [1, 4096]; choose a value in that range"
    );
    let list = |lengths: &[u64]| Some(PaddedLengths::List(lengths.to_vec()));
    assert_eq!(
        message(&[1], |options| options.padded_lengths = list(&[])),
        "padded_lengths has 0 lengths, outside [1, 32768]; pass the lengths that batches may be padded to, such as \
         [512, 1024, 2048]"
    );
    assert_eq!(
        message(&[1], |options| options.padded_lengths = list(&[0, 5])),
        format!("padded_lengths[0] = 0 is outside [1, {range}")
    );
    assert_eq!(
        message(&[1], |options| options.padded_lengths = list(&[8, 8])),
        "padded_lengths[1] = 8 does not exceed padded_lengths[0] = 8; pass strictly ascending lengths, such as [512, \
         1024, 2048]"
    );
    assert_eq!(
        message(&[1], |options| {
            options.padded_lengths = list(&[8]);
            options.cost.pad_to_multiple_of = 8;
        }),
        "pad_to_multiple_of has no effect with padded_lengths as a list; leave pad_to_multiple_of out"
    );
    assert_eq!(
        message(&[1], |options| options.boundaries = Boundaries::Edges(vec![0, 512, 512])),
        "boundaries[2] = 512 does not exceed boundaries[1] = 512; pass strictly ascending edges, such as [0, 512, 1024]"
    );
    assert_eq!(
        message(&[1], |options| options.boundaries = Boundaries::Edges(vec![512])),
        "boundaries has 1 edges, outside [2, 32768]; pass the lower edge of the first bucket and the upper edge of \
         each, such as [0, 512, 1024]"
    );
    assert_eq!(
        message(&[1], |options| options.boundaries = Boundaries::Edges(vec![0, u64::MAX])),
        format!("boundaries[1] = 18446744073709551615 is outside [0, {range}")
    );
    assert_eq!(
        message(&[1], |options| {
            options.strategy = Strategy::Random;
            options.boundaries = Boundaries::PaddingTarget(0.1);
        }),
        "padding_target has no effect with strategy = \"random\"; leave padding_target out"
    );
    assert_eq!(
        message(&[1], |options| {
            options.strategy = Strategy::Sorted;
        }),
        "boundaries has no effect with strategy = \"sorted\"; leave boundaries out"
    );
    assert_eq!(
        message(&[1], |options| {
            options.window = 8;
            options.align_ranks = 3;
        }),
        "align_ranks = 3 does not divide window = 8; set window to align_ranks times the accumulation steps"
    );
    assert_eq!(
        Error::UnknownChoice { name: "overlong", value: "skip".into(), allowed: &["error", "drop", "keep"] }
            .to_string(),
        "overlong = \"skip\" is not an allowed value; choose \"error\", \"drop\" or \"keep\""
    );
}

#[test]
fn nothing_that_can_be_passed_panics() {
    let extremes = [0, 1, 2, 65_535, 65_536, u64::from(u32::MAX), 1 << 32, i64::MAX as u64, u64::MAX];
    for token_budget in [1, 2, 65_536, i64::MAX as u64] {
        for multiple in [1, 64, i64::MAX as u64] {
            for quadratic_length in [None, Some(1), Some(i64::MAX as u64)] {
                for overlong in [Overlong::Drop, Overlong::Keep] {
                    for (strategy, window) in
                        [(Strategy::Bucketed, i64::MAX as u64), (Strategy::Sorted, 3), (Strategy::Random, 1)]
                    {
                        let options = Options {
                            cost: CostModel {
                                token_budget,
                                max_batch_size: None,
                                min_batch_size: 1,
                                pad_to_multiple_of: multiple,
                                padded_lengths: Vec::new(),
                                per_sample: 1,
                                quadratic_length,
                            },
                            overlong,
                            strategy,
                            window,
                            empty: Empty::Drop,
                            ..Options::default()
                        };
                        if let Ok(planner) = Planner::new(extremes.as_slice(), options) {
                            let plan = planner.plan(u64::MAX, u64::MAX).unwrap();
                            assert_eq!(plan.indices.len() + plan.dropped.len(), extremes.len());
                        }
                    }
                }
            }
        }
    }
}
