//! Padding against the definition: one loop over every cell of the rectangle.
use bucketshuffle::collate::{CollateError, Field, Rows, Side, Source};
use proptest::prelude::*;

/// Cell `position` of a padded row: its token, or the fill.
fn cell(tokens: &[i32], side: Side, width: usize, position: usize, fill: i64) -> i64 {
    let first = if side == Side::Left { width - tokens.len() } else { 0 };
    position.checked_sub(first).and_then(|token| tokens.get(token)).map_or(fill, |&token| i64::from(token))
}

fn rows_of(offsets: &[i64], samples: &[i64]) -> Result<Rows, CollateError> {
    Rows::new(offsets, samples, Side::Right, 1)
}

fn ids<S>(values: &[S], fill: i64) -> Field<'_, S> {
    Field { name: "ids", source: Source::Values { values, per_token: 1 }, fill }
}

proptest! {
    #[test]
    fn every_cell_is_its_token_or_the_fill(
        rows in prop::collection::vec(prop::collection::vec(any::<i32>(), 0..20), 1..20),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..30),
        multiple in 1_usize..9,
        left: bool,
        fill: i64,
        extra in 0_usize..5,
    ) {
        let tokens = rows.concat();
        let mut offsets = vec![0];
        for row in &rows {
            offsets.push(offsets[offsets.len() - 1] + i64::try_from(row.len()).unwrap());
        }
        let samples: Vec<usize> = picks.iter().map(|pick| pick.index(rows.len())).collect();
        let wanted: Vec<i64> = samples.iter().map(|&sample| i64::try_from(sample).unwrap()).collect();
        let side = if left { Side::Left } else { Side::Right };

        let batch = Rows::new(&offsets, &wanted, side, multiple).unwrap();
        let longest = samples.iter().map(|&sample| rows[sample].len()).max().unwrap();
        let width = longest.div_ceil(multiple) * multiple;
        prop_assert_eq!((batch.n_samples(), batch.padded_length()), (samples.len(), width));

        let mut expected = Vec::new();
        for &sample in &samples {
            expected.extend((0..width).map(|position| cell(&rows[sample], side, width, position, fill)));
        }
        let padded: Vec<i64> = ids(&tokens, fill).pad(&batch).unwrap();
        prop_assert_eq!(&padded, &expected);

        let mut out = vec![77_i64; padded.len() + extra];
        ids(&tokens, fill).pad_into(&batch, &mut out).unwrap();
        prop_assert_eq!(&out[..padded.len()], &expected[..]);
        prop_assert!(out[padded.len()..].iter().all(|&value| value == 77));

        let mask: Vec<u8> = Field { name: "mask", source: Source::<u8>::Mask, fill: 0 }.pad(&batch).unwrap();
        let positions: Vec<i64> = Field { name: "positions", source: Source::<i64>::Positions, fill: -1 }.pad(&batch).unwrap();
        for (row, &sample) in samples.iter().enumerate() {
            let length = rows[sample].len();
            let first = if left { width - length } else { 0 };
            prop_assert_eq!(batch.lengths().unwrap()[row], i64::try_from(length).unwrap());
            for position in 0..width {
                let real = (first..first + length).contains(&position);
                let at = row * width + position;
                prop_assert_eq!(mask[at], u8::from(real));
                prop_assert_eq!(positions[at], if real { i64::try_from(position - first).unwrap() } else { -1 });
            }
        }
    }

    #[test]
    fn any_offsets_and_samples_are_padded_or_refused(
        offsets in prop::collection::vec(prop_oneof![-3_i64..12, any::<i64>()], 0..6),
        samples in prop::collection::vec(prop_oneof![-2_i64..6, any::<i64>()], 0..6),
        multiple in prop_oneof![0_usize..5, any::<usize>()],
        n_values in 0_usize..12,
        per_token in 0_usize..4,
        left: bool,
    ) {
        let side = if left { Side::Left } else { Side::Right };
        let Ok(batch) = Rows::new(&offsets, &samples, side, multiple) else { return Ok(()) };
        // Between these lie batches that a machine may or may not hold.
        prop_assume!(batch.padded_length() < 1000 || batch.padded_length() > usize::MAX / 64);
        let values = vec![1_u16; n_values];
        let field = Field { name: "x", source: Source::Values { values: &values, per_token }, fill: 0 };
        let padded: Result<Vec<i64>, _> = field.pad(&batch);
        prop_assert_eq!(padded.is_ok(), field.pad_into(&batch, &mut vec![0_i64; 30_000]).is_ok());
    }
}

#[test]
fn a_token_vector_stays_together() {
    let batch = Rows::new(&[0, 1, 3], &[0, 1], Side::Left, 1).unwrap();
    let field = Field { name: "x", source: Source::Values { values: &[1, 2, 3, 4, 5, 6], per_token: 2 }, fill: 9 };
    assert_eq!(field.pad::<i32>(&batch).unwrap(), [9, 9, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn tokens_keep_their_value_in_every_width() {
    let batch = rows_of(&[0, 2], &[0]).unwrap();
    assert_eq!(ids(&[0_u16, u16::MAX], 0).pad::<i64>(&batch).unwrap(), [0, 65_535]);
    assert_eq!(ids(&[i8::MIN, i8::MAX], 0).pad::<i32>(&batch).unwrap(), [-128, 127]);
    assert_eq!(ids(&[0, u32::MAX], 0).pad::<i64>(&batch).unwrap(), [0, 4_294_967_295]);
    assert_eq!(ids(&[0, i64::from(i32::MAX)], 0).pad::<i32>(&batch).unwrap(), [0, i32::MAX]);
    assert_eq!(ids(&[0, 7_u64], 0).pad::<i64>(&batch).unwrap(), [0, 7]);
}

#[test]
fn empty_samples_are_rows_of_fill_and_a_batch_of_them_has_no_columns() {
    let only_empty = rows_of(&[0, 0, 2], &[0, 0]).unwrap();
    assert_eq!((only_empty.n_samples(), only_empty.padded_length()), (2, 0));
    assert!(ids(&[5, 6], 9).pad::<i64>(&only_empty).unwrap().is_empty());
    let mixed = rows_of(&[0, 0, 2], &[0, 1]).unwrap();
    assert_eq!(ids(&[5, 6], 9).pad::<i64>(&mixed).unwrap(), [9, 9, 5, 6]);
}

#[test]
fn a_batch_refuses_what_no_batch_can_be() {
    let refused = |offsets: &[i64], samples: &[i64], multiple| {
        Rows::new(offsets, samples, Side::Right, multiple).unwrap_err().to_string()
    };
    assert_eq!(refused(&[0, 1], &[], 1), "samples is empty; a batch needs at least one sample");
    assert_eq!(refused(&[0, 1], &[0, 1], 1), "samples[1] = 1 is outside 0 <= sample < n_samples = 1");
    assert_eq!(refused(&[0, 1], &[-1], 1), "samples[0] = -1 is outside 0 <= sample < n_samples = 1");
    assert_eq!(refused(&[], &[0], 1), "samples[0] = 0 is outside 0 <= sample < n_samples = 0");
    assert_eq!(
        refused(&[0, 3, 1], &[1], 1),
        "offsets[1] = 3 and offsets[2] = 1 are not 0 <= start <= end; offsets count tokens from 0 and never fall"
    );
    assert_eq!(refused(&[0, 1], &[0], 0), "pad_to_multiple_of = 0 is not positive; use 1 for no rounding");
    assert_eq!(
        refused(&[0, i64::MAX], &[0, 0, 0], 1),
        "a batch of 3 samples padded to 9223372036854775807 tokens does not fit in memory; lower token_budget or pad_to_multiple_of"
    );
}

#[test]
fn a_field_refuses_what_does_not_fit() {
    let two = rows_of(&[0, 2], &[0]).unwrap();
    assert_eq!(
        ids(&[1_i32], 0).pad::<i64>(&two).unwrap_err().to_string(),
        "ids holds 1 tokens, but sample 0 ends at token 2; offsets and values belong to different data"
    );
    assert_eq!(
        ids(&[1, i64::MAX], 0).pad::<i32>(&two).unwrap_err().to_string(),
        "ids of sample 0 has value 9223372036854775807 at token 1, outside int32; ask for a wider dtype"
    );
    assert_eq!(
        ids(&[1_u8, 2], 256).pad::<u8>(&two).unwrap_err().to_string(),
        "fill[\"ids\"] = 256 is outside uint8; choose another fill or a wider dtype"
    );
    let mut out = [7_i64; 1];
    assert_eq!(
        ids(&[1, 2], 0).pad_into(&two, &mut out).unwrap_err().to_string(),
        "out[\"ids\"] holds 1 values, too few for a batch of shape (1, 2); make it at least 2 long"
    );
    assert_eq!(out, [7], "a refused batch writes nothing");
    let huge = rows_of(&[0, i64::MAX], &[0]).unwrap();
    assert_eq!(
        Field { name: "mask", source: Source::<u8>::Mask, fill: 0 }.pad::<u8>(&huge).unwrap_err().to_string(),
        "a batch of 1 samples padded to 9223372036854775807 tokens does not fit in memory; lower token_budget or pad_to_multiple_of"
    );
}
