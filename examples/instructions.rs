//! Plans some epochs of 100,000 lengths with six buckets, for callgrind to count: `benches/instructions` takes the
//! difference of 11 epochs and 1.
use bucketshuffle::{Boundaries, DFLASH_BOUNDARIES, Options, pack_epoch};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let n_epochs: u64 = std::env::args().nth(1).ok_or("pass the number of epochs")?.parse()?;
    let lengths: Vec<u16> = (0..100_000_u32).map(|i| length_at(i.wrapping_mul(0x9E37_79B9))).collect();
    let options = Options { boundaries: Boundaries::Edges(DFLASH_BOUNDARIES.to_vec()), ..Options::default() };
    let mut checksum = 0;
    for epoch in 0..n_epochs {
        checksum ^= pack_epoch(lengths.as_slice(), 0, epoch, options.clone())?.indices[0];
    }
    println!("{checksum}");
    Ok(())
}

/// The length at a rank in [0, 2^32): between percentiles 0, 10, ..., 90, 99, 100 of dflash902k, tokens.
fn length_at(rank: u32) -> u16 {
    const PERCENT: [f64; 12] = [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 99.0, 100.0];
    const TOKENS: [f64; 12] =
        [65.0, 562.0, 846.0, 1157.0, 1513.0, 1859.0, 2173.0, 2494.0, 2895.0, 3597.0, 8015.0, 8191.0];
    let percent = f64::from(rank) / f64::from(u32::MAX) * 100.0;
    let i = PERCENT.iter().rposition(|&p| p <= percent).unwrap_or(0).min(10);
    let share = (percent - PERCENT[i]) / (PERCENT[i + 1] - PERCENT[i]);
    (TOKENS[i] + share * (TOKENS[i + 1] - TOKENS[i])) as u16
}
