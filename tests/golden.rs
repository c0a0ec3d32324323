//! The plans of order version 2, pinned: tests/golden/order-v2*.txt, which Python reads too.
use bucketshuffle::{
    Boundaries, Combine, Empty, Field, ORDER_VERSION, Options, Overlong, PaddedLengths, Planner, Strategy, Weight,
};

/// One block of the file.
#[derive(Default)]
struct Golden {
    name: String,
    lengths: Vec<u32>,
    seed: u64,
    epoch: u64,
    options: Options,
    admitted: Option<Vec<bool>>,
    dropped: Vec<i64>,
    padded_lengths: Vec<i64>,
    buckets: Vec<i32>,
    batches: Vec<Vec<i64>>,
}

fn numbers<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> Vec<T> {
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

fn number(word: &str) -> u64 {
    word.parse().unwrap()
}

fn set(fields: &mut [Field], words: &str, set_one: impl Fn(&mut Field, &str)) {
    fields.iter_mut().zip(words.split_whitespace()).for_each(|(field, word)| set_one(field, word));
}

fn parse(block: &str) -> Golden {
    let mut golden = Golden::default();
    for line in block.trim().lines() {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        let options = &mut golden.options;
        match key {
            "name" => golden.name = value.into(),
            "lengths" => golden.lengths = numbers(value),
            "n_fields" => options.fields = vec![Field::default(); value.parse().unwrap()],
            "combine" if value == "max" => options.combine = Combine::Max,
            "multiples" => set(&mut options.fields, value, |field, word| field.pad_to_multiple_of = number(word)),
            "quadratics" => set(&mut options.fields, value, |field, word| {
                field.quadratic_length = Some(number(word)).filter(|&length| length > 0);
            }),
            "weights" => set(&mut options.fields, value, |field, word| {
                let (numerator, denominator) = word.split_once('/').unwrap_or((word, "1"));
                field.weight = Weight { numerator: number(numerator), denominator: number(denominator) };
            }),
            "seed" => golden.seed = value.parse().unwrap(),
            "epoch" => golden.epoch = value.parse().unwrap(),
            "dropped" => golden.dropped = numbers(value),
            "padded_lengths" => golden.padded_lengths = numbers(value),
            "buckets" => golden.buckets = numbers(value),
            "batch" => golden.batches.push(numbers(value)),
            "admitted" => golden.admitted = Some(numbers::<u8>(value).into_iter().map(|bit| bit == 1).collect()),
            "pad_to" => options.padded_lengths = Some(PaddedLengths::List(numbers(value))),
            "repeat_weight" => options.boundaries = Boundaries::RepeatWeight(value.parse().unwrap()),
            "padding_target" => options.boundaries = Boundaries::PaddingTarget(value.parse().unwrap()),
            "align_ranks" => options.align_ranks = value.parse().unwrap(),
            "edges" => options.boundaries = Boundaries::Edges(numbers(value)),
            "token_budget" => options.cost.token_budget = value.parse().unwrap(),
            "max_batch_size" => options.cost.max_batch_size = Some(value.parse().unwrap()),
            "pad_to_multiple_of" => options.cost.pad_to_multiple_of = value.parse().unwrap(),
            "per_sample" => options.cost.per_sample = value.parse().unwrap(),
            "quadratic_length" => options.cost.quadratic_length = Some(value.parse().unwrap()),
            "window" => options.window = value.parse().unwrap(),
            "constant_count" => options.constant_count = value == "True",
            "strategy" if value == "sorted" => options.strategy = Strategy::Sorted,
            "strategy" if value == "random" => options.strategy = Strategy::Random,
            "overlong" if value == "keep" => options.overlong = Overlong::Keep,
            "overlong" if value == "drop" => options.overlong = Overlong::Drop,
            "empty" if value == "drop" => options.empty = Empty::Drop,
            _ => panic!("unknown line: {line}"),
        }
    }
    golden
}

#[test]
fn value_stability_of_whole_plans() {
    assert_eq!(ORDER_VERSION, 2, "a new order version needs a new golden file");
    let files = [include_str!("golden/order-v2.txt"), include_str!("golden/order-v2-fields.txt")];
    for golden in files.into_iter().flat_map(|file| file.split("\n\n")).map(parse) {
        let planner = if golden.options.fields.is_empty() {
            Planner::of_admitted(golden.lengths.as_slice(), golden.admitted.as_deref(), golden.options)
        } else {
            Planner::of_fields(golden.lengths, golden.admitted.as_deref(), golden.options)
        };
        let plan = planner.unwrap().into_plan(golden.seed, golden.epoch).unwrap();
        let batches: Vec<_> =
            plan.offsets.windows(2).map(|ends| plan.indices[ends[0] as usize..ends[1] as usize].to_vec()).collect();
        assert_eq!(batches, golden.batches, "{}", golden.name);
        assert_eq!(plan.dropped, golden.dropped, "{}", golden.name);
        assert_eq!(plan.padded_lengths, golden.padded_lengths, "{}", golden.name);
        assert_eq!(plan.buckets, golden.buckets, "{}", golden.name);
    }
}
