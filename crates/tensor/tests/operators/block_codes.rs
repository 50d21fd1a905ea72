//! Matrices in codes: every device decodes a record to the values that f64 code computes.

use device::{Category, E4m3, Float, Fp8, bf16, f16};
use tensor::ops::block_codes::{self, Alphabet, BLOCK, BlockCodes, Encoder, GROUP};
use tensor::{DType, Tensor, TensorError};

use crate::support::{Case, devices, read};

const ALPHABETS: [Alphabet; 3] = [Alphabet::Nf4, Alphabet::Int4, Alphabet::E4m3];
/// Columns, and rows of parts: one block, less than a group, full groups, and parts that cannot be joined.
const SHAPES: [(usize, &[usize]); 5] =
    [(64, &[1]), (32, &[2, 6, 4]), (128, &[128, 256, 7]), (192, &[85, 86]), (1024, &[40, 16, 17])];
/// Byte alignment of a record's sections.
const ALIGNMENT: usize = 16;

/// Returns a matrix with blocks of different magnitudes, blocks of zeros, and an outlier.
fn values(case: &Case, columns: usize, rows: usize) -> Vec<f32> {
    let (_, wide) = case.single().operand("x", [rows, columns]);
    let size = |at: usize| [0.02, 0.5, 0.0, 1e-7][at / BLOCK % 7 % 4] as f32;
    wide.iter().enumerate().map(|(at, value)| size(at) * *value as f32).collect()
}

fn record(values: &[f32], codes: &BlockCodes, piece: usize) -> Vec<u8> {
    let mut encoder = Encoder::new(codes);
    values.chunks(piece * BLOCK).for_each(|piece| encoder.push(piece));
    encoder.finish()
}

/// Decodes a record by the description of its format. Scales and values are rounded to f32.
fn decoded(record: &[u8], alphabet: Alphabet, columns: usize, rows: &[usize]) -> Vec<f32> {
    let elements = columns * rows.iter().sum::<usize>();
    let scales = (elements * alphabet.bits() / 8).next_multiple_of(ALIGNMENT);
    let mut groups = (scales + elements / BLOCK).next_multiple_of(ALIGNMENT);
    let word = |at: usize| f32::from_le_bytes(record[at..at + 4].try_into().unwrap());
    let code = |at: usize| match alphabet {
        Alphabet::E4m3 => record[at],
        _ => record[at / 2] >> (4 * (1 - at % 2)) & 15,
    };
    let nf4 = [
        -1.0,
        -0.69619280,
        -0.52507305,
        -0.39491749,
        -0.28444138,
        -0.18477343,
        -0.09105004,
        0.0,
        0.07958030,
        0.16093020,
        0.24611230,
        0.33791524,
        0.44070983,
        0.56261700,
        0.72295684,
        1.0,
    ];
    let mut all = Vec::new();
    let mut first = 0;
    for rows in rows {
        for block in 0..rows * columns / BLOCK {
            let group = groups + block / GROUP * 8;
            let fraction = fraction(record[scales + first / BLOCK + block]);
            let at = first + block * BLOCK;
            let scale = fraction * word(group) + word(group + 4);
            all.extend((at..at + BLOCK).map(|at| match alphabet {
                Alphabet::Nf4 => nf4[usize::from(code(at))] as f32 * scale,
                Alphabet::Int4 => (f32::from(code(at)) - 8.0) / 7.0 * scale,
                Alphabet::E4m3 => E4m3::from_bits(code(at)).to_f32() * scale,
            }));
        }
        first += rows * columns;
        groups += (rows * columns / BLOCK).div_ceil(GROUP) * 8;
    }
    all
}

/// Returns a fraction of bitsandbytes' signed dynamic map, up to rounding.
fn fraction(code: u8) -> f32 {
    let magnitude = u32::from(code.abs_diff(127));
    if magnitude == 0 || code == 255 {
        return f32::from(magnitude != 0);
    }
    let decade = magnitude.ilog2();
    let parts = 2f64.powi(decade as i32);
    let part = f64::from(magnitude - (1 << decade));
    let positive = 10f64.powi(decade as i32 - 6) * (0.1 + 0.9 * (part + 0.5) / parts);
    if code < 127 { -positive as f32 } else { positive as f32 }
}

#[test]
fn every_device_decodes_records() {
    for case in devices() {
        for (alphabet, (columns, rows)) in ALPHABETS.iter().flat_map(|a| SHAPES.iter().map(move |s| (*a, *s)))
        {
            let all = rows.iter().sum();
            let codes = BlockCodes::new(alphabet, [all, columns], rows).unwrap();
            let values = values(&case, columns, all);
            let bytes = record(&values, &codes, 3);
            // Pieces do not matter.
            assert!(bytes == record(&values, &codes, usize::MAX / BLOCK));
            let on_device =
                Tensor::from_host(&case.device, &bytes, [bytes.len()], Category::Parameter).unwrap();
            let actual = read(&block_codes::decode(&on_device, &codes, case.dtype).unwrap());
            // Devices have the bits of the host.
            let own: Vec<_> = codes.decode_on_host(&bytes);
            let rounded = own.iter().map(|value| match case.dtype {
                DType::Bf16 => <bf16 as Float>::from_f32(*value).to_f32(),
                DType::F16 => <f16 as Float>::from_f32(*value).to_f32(),
                _ => *value,
            });
            assert!(actual.iter().copied().eq(rounded.map(f64::from)), "{alphabet:?} {columns} {rows:?}");
            let expected = decoded(&bytes, alphabet, columns, rows);
            // A scale is a sum whose terms may nearly cancel.
            let most = values.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
            for (own, expected) in own.iter().zip(&expected) {
                assert!(
                    (own - expected).abs() <= 1e-5 * expected.abs() + 1e-6 * most,
                    "{own} and {expected}"
                );
            }
            // A code is the nearest: of 16, by half the widest step; of E4M3, by a sixteenth; plus what
            // scales lose, up to a hundredth of the largest difference of a group.
            let step = if alphabet == Alphabet::E4m3 { 1.0 / 16.0 } else { 0.153 };
            for (own, value) in own.iter().zip(&values) {
                assert!((own - value).abs() <= (step + 0.01) * most, "{alphabet:?}: {own} of {value}");
            }
        }
    }
}

#[test]
fn wrong_records_are_refused() {
    assert_eq!(BlockCodes::new(Alphabet::Nf4, [3, 32], &[2, 1]).unwrap_err(), 32);
    for case in devices() {
        let codes = BlockCodes::new(Alphabet::Nf4, [2, 64], &[2]).unwrap();
        let bytes = vec![0u8; codes.bytes() + 1];
        let longer = Tensor::from_host(&case.device, &bytes, [bytes.len()], Category::Parameter).unwrap();
        let refused = block_codes::decode(&longer, &codes, case.dtype).unwrap_err();
        assert!(matches!(refused, TensorError::Shape { .. }), "{refused:?}");
        let refused = block_codes::decode(&longer, &codes, DType::U32).unwrap_err();
        assert!(
            matches!(refused, TensorError::Shape { .. } | TensorError::Unsupported { .. }),
            "{refused:?}"
        );
    }
}
