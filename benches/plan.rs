//! Planning by stage and whole, on a million lengths spread like those of dflash902k. Each bench checks its answer before
//! it is timed. What one stage takes shows as a difference: `sorted` is all of a plan but the shuffle, `construct_auto`
//! less `construct_six` is the search for boundaries.
use bucketshuffle::{Boundaries, DFLASH_BOUNDARIES, EpochPlan, Options, Planner, Strategy, pack_epoch};
use divan::{Bencher, black_box};

fn main() {
    let lengths = lengths();
    for (name, options) in
        [("auto", auto(1)), ("six", six(1)), ("sorted", with(Strategy::Sorted)), ("random", with(Strategy::Random))]
    {
        let plan =
            checked(pack_epoch(lengths.as_slice(), 0, 0, options).expect("the options are valid"), lengths.len());
        let ratio = plan.totals.padded_tokens as f64 / plan.totals.real_tokens as f64;
        println!("{name}: padding ratio {ratio:.4}, {} batches", plan.padded_lengths.len());
    }
    divan::main();
}

/// The plan, if it holds every sample once and keeps the budget.
fn checked(plan: EpochPlan, n_samples: usize) -> EpochPlan {
    let mut indices = plan.indices.clone();
    indices.sort_unstable();
    assert!(indices.into_iter().eq(0..n_samples as i64));
    assert!(
        plan.offsets.windows(2).zip(&plan.padded_lengths).all(|(ends, padded)| (ends[1] - ends[0]) * padded <= 131_072)
    );
    plan
}

/// Log-logistic, median 1,859 tokens, cut to 65..=8,191: close to dflash902k in mean and spread.
fn lengths() -> Vec<u16> {
    let length = |i: u32| {
        let share = (f64::from(i.wrapping_mul(0x9E37_79B9)) + 0.5) / f64::from(u32::MAX);
        (1_859.0 * (share / (1.0 - share)).powf(0.4)).clamp(65.0, 8_191.0) as u16
    };
    (0..1_000_000).map(length).collect()
}

fn auto(threads: usize) -> Options {
    Options { threads: Some(threads), ..Options::default() }
}

fn six(threads: usize) -> Options {
    Options { boundaries: Boundaries::Edges(DFLASH_BOUNDARIES.to_vec()), ..auto(threads) }
}

fn with(strategy: Strategy) -> Options {
    Options { strategy, ..auto(1) }
}

fn construct(bencher: Bencher, options: &Options) {
    let lengths = lengths();
    bencher.bench_local(|| Planner::new(black_box(lengths.as_slice()), options.clone()).expect("checked in main"));
}

fn plan(bencher: Bencher, options: Options) {
    let lengths = lengths();
    let planner = Planner::new(lengths.as_slice(), options).expect("checked in main");
    let mut epoch = 0;
    bencher.bench_local(|| {
        epoch += 1;
        planner.plan(0, epoch).expect("there is memory")
    });
}

#[divan::bench]
fn construct_six(bencher: Bencher) {
    construct(bencher, &six(1));
}

#[divan::bench]
fn construct_auto(bencher: Bencher) {
    construct(bencher, &auto(1));
}

#[divan::bench(args = [1, 2])]
fn plan_six(bencher: Bencher, threads: usize) {
    plan(bencher, six(threads));
}

#[divan::bench(args = [1, 2])]
fn plan_auto(bencher: Bencher, threads: usize) {
    plan(bencher, auto(threads));
}

#[divan::bench(args = [8, 64])]
fn plan_auto_in_windows(bencher: Bencher, window: u64) {
    plan(bencher, Options { window, constant_count: true, ..auto(1) });
}

#[divan::bench]
fn plan_sorted(bencher: Bencher) {
    plan(bencher, with(Strategy::Sorted));
}

#[divan::bench]
fn plan_random(bencher: Bencher) {
    plan(bencher, with(Strategy::Random));
}

#[divan::bench(args = [1, 2])]
fn pack_epoch_six(bencher: Bencher, threads: usize) {
    let lengths = lengths();
    bencher.bench_local(|| pack_epoch(black_box(lengths.as_slice()), 0, 0, six(threads)).expect("checked in main"));
}
