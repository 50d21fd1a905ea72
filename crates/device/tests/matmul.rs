//! Matmuls on a GPU, if there is one, compared with sums in f64: all epilogues, both storages of operands,
//! odd sizes, padded rows.

use device::matmul_table::MatmulTable;
use device::{Buffer, Category, DType, Device, DeviceOptions, Epilogue, Matmul, Operand, Region, Request};
use half::bf16;
use system::skipped::{self, Need};

/// A matrix on the device, `first` elements into a buffer, with its values on the host.
struct Matrix {
    buffer: Buffer,
    first: usize,
    values: Vec<f64>,
    dtype: DType,
}

/// Returns pseudo-random values in ±1.
fn value(seed: u32, index: usize) -> f32 {
    let mixed =
        (index as u32).wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)).rotate_left(13);
    (mixed.wrapping_mul(2_246_822_519) >> 8) as f32 / (1 << 23) as f32 - 1.0
}

impl Matrix {
    fn new(device: &Device, seed: u32, elements: usize, dtype: DType) -> Self {
        Self::inside(device, seed, elements, dtype, 0)
    }

    fn inside(device: &Device, seed: u32, elements: usize, dtype: DType, first: usize) -> Self {
        let values: Vec<f32> = (0..elements).map(|index| value(seed, index)).collect();
        let bytes = (first + elements) * dtype.bytes();
        let buffer = device.allocate(bytes, Request::new(Category::Other, "test")).unwrap();
        let region = buffer.region(first * dtype.bytes(), elements * dtype.bytes());
        let rounded: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
        let values = match dtype {
            DType::Bf16 => {
                device.copy_from_host(&rounded, region).unwrap();
                rounded.iter().map(|value| value.to_f64()).collect()
            }
            _ => {
                device.copy_from_host(&values, region).unwrap();
                values.iter().map(|value| f64::from(*value)).collect()
            }
        };
        Matrix { buffer, first, values, dtype }
    }

    fn region(&self) -> Region<'_> {
        self.buffer.region(self.first * self.dtype.bytes(), self.values.len() * self.dtype.bytes())
    }

    fn now(&self, device: &Device) -> Vec<f64> {
        let elements = self.values.len();
        match self.dtype {
            DType::Bf16 => {
                let mut values = vec![bf16::ZERO; elements];
                device.copy_to_host(self.region(), &mut values).unwrap();
                values.iter().map(|value| value.to_f64()).collect()
            }
            _ => {
                let mut values = vec![0.0_f32; elements];
                device.copy_to_host(self.region(), &mut values).unwrap();
                values.iter().map(|value| f64::from(*value)).collect()
            }
        }
    }
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
}

fn gelu_slope(x: f64) -> f64 {
    (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5
}

fn error(actual: &[f64], expected: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let mut differences = actual.iter().zip(expected).map(|(a, b)| a - b);
    norm(&mut differences) / norm(&mut expected.iter().copied()).max(1e-30)
}

#[derive(Clone, Copy, Debug)]
enum Case {
    Plain,
    Accumulate,
    Bias,
    BiasRelu,
    BiasResidualRelu,
    GeluBias,
    GeluGradient,
    BiasGradient,
    Combined,
}

/// Sizes m, n, k; which operands are stored transposed; types of the operands and of the output.
type Shape = ([usize; 3], [bool; 2], DType, DType);

fn check(device: &Device, case: Case, shape: Shape) {
    check_inside(device, case, shape, [0; 3], [0; 3]);
}

/// Compares a matmul whose operands a, b and output begin `first` elements into their buffers and have
/// `padding` elements after each stored row.
fn check_inside(
    device: &Device,
    case: Case,
    ([m, n, k], [ta, tb], operands, out_type): Shape,
    first: [usize; 3],
    padding: [usize; 3],
) {
    let stored = [if ta { [k, m] } else { [m, k] }, if tb { [n, k] } else { [k, n] }, [m, n]];
    let strides: [usize; 3] = std::array::from_fn(|index| stored[index][1] + padding[index]);
    let [a, b, out] = std::array::from_fn(|index| {
        let dtype = if index == 2 { out_type } else { operands };
        Matrix::inside(device, index as u32 + 1, stored[index][0] * strides[index], dtype, first[index])
    });
    let bias_length = if matches!(case, Case::BiasGradient) { m } else { n };
    let (bias, pre) =
        (Matrix::new(device, 4, bias_length, out_type), Matrix::new(device, 5, m * n, out_type));
    let element = |matrix: &Matrix, index: usize, [row, column]: [usize; 2]| {
        matrix.values[row * strides[index] + column]
    };
    let left = |row: usize, inner: usize| element(&a, 0, if ta { [inner, row] } else { [row, inner] });
    let right =
        |inner: usize, column: usize| element(&b, 1, if tb { [column, inner] } else { [inner, column] });
    let key =
        |index: usize| (0..k).map(|inner| left(index / n, inner) * right(inner, index % n)).sum::<f64>();
    let epilogue = match case {
        Case::Plain | Case::Accumulate => Epilogue::None,
        Case::Bias => Epilogue::Bias(bias.region()),
        Case::BiasRelu => Epilogue::BiasRelu(bias.region()),
        Case::BiasResidualRelu => Epilogue::BiasResidualRelu { bias: bias.region(), residual: pre.region() },
        Case::GeluBias => Epilogue::GeluBias { bias: bias.region(), pre: pre.region() },
        Case::GeluGradient => Epilogue::GeluGradient { pre: pre.region() },
        Case::BiasGradient => Epilogue::BiasGradient(bias.region()),
        Case::Combined => Epilogue::Combined { product: 2.5, own: -1.5, added: pre.region() },
    };
    let call = Matmul {
        m,
        n,
        k,
        a: Operand { transposed: ta, ..Operand::new(a.region(), operands) }.with_stride(strides[0]),
        b: Operand { transposed: tb, ..Operand::new(b.region(), operands) }.with_stride(strides[1]),
        out: Operand::new(out.region(), out_type).with_stride(strides[2]),
        accumulate: matches!(case, Case::Accumulate),
        epilogue,
        fast: false,
    };
    device
        .matmul(&call)
        .unwrap_or_else(|error| panic!("{case:?} {m} × {n} × {k} {ta} {tb} {operands} {out_type}: {error}"));
    let tolerance = if out_type == DType::Bf16 { 1e-2 } else { 1e-5 };
    let expect = |what: &str, actual: &Matrix, expected: Vec<f64>| {
        let now = actual.now(device);
        let is_padded = expected.len() == m * n && now.len() > m * n;
        let is_padding = |index: &usize| is_padded && index % strides[2] >= n;
        let (padding, written): (Vec<usize>, Vec<usize>) = (0..now.len()).partition(is_padding);
        assert!(padding.into_iter().all(|index| now[index] == actual.values[index]), "{case:?}: padding");
        let written: Vec<f64> = written.into_iter().map(|index| now[index]).collect();
        let error = error(&written, &expected);
        assert!(
            error < tolerance,
            "{case:?} {m} × {n} × {k} {ta} {tb} {operands} {out_type}: {what} is off by {error}"
        );
    };
    let matmuls: Vec<f64> = (0..m * n).map(key).collect();
    let with_bias = || matmuls.iter().enumerate().map(|(index, x)| x + bias.values[index % n]);
    match case {
        Case::Plain => expect("matmul", &out, matmuls),
        Case::Accumulate => {
            let before = |index: usize| out.values[index / n * strides[2] + index % n];
            expect("matmul", &out, matmuls.iter().enumerate().map(|(i, x)| x + before(i)).collect());
        }
        Case::Combined => {
            let sums = matmuls.iter().zip(&pre.values).map(|(x, added)| 2.5 * x - 1.5 * added);
            expect("matmul", &out, sums.collect());
        }
        Case::Bias => expect("matmul", &out, with_bias().collect()),
        Case::BiasRelu => expect("matmul", &out, with_bias().map(|x| x.max(0.0)).collect()),
        Case::BiasResidualRelu => {
            let sums = with_bias().zip(&pre.values).map(|(x, residual)| (x + residual).max(0.0));
            expect("matmul", &out, sums.collect());
        }
        Case::GeluBias => {
            expect("pre", &pre, with_bias().collect());
            expect("output", &out, with_bias().map(gelu).collect());
        }
        Case::GeluGradient => {
            let expected = matmuls.iter().zip(&pre.values).map(|(x, pre)| x * gelu_slope(*pre));
            expect("matmul", &out, expected.collect());
        }
        Case::BiasGradient => {
            expect("matmul", &out, matmuls);
            let sum = |row: usize| (0..k).map(|inner| left(row, inner)).sum();
            expect("bias", &bias, (0..m).map(sum).collect());
        }
    }
}

#[test]
fn matmuls_with_every_epilogue_agree_with_f64() {
    if let Err(why) = device::cuda::availability() {
        skipped::report(Need::Gpu, &why.to_string());
        return;
    }
    let device = Device::cuda(0, 0, &[], &DeviceOptions::default()).unwrap();
    let single = (DType::F32, DType::F32);
    let half = (DType::Bf16, DType::Bf16);
    let mixed = (DType::Bf16, DType::F32);
    for sizes in [[10, 300, 3], [96, 64, 128], [1, 8, 5], [33, 7, 19], [256, 768, 64]] {
        for transposed in [[false, false], [true, false], [false, true]] {
            for (operands, out) in [single, half, mixed] {
                for case in [Case::Plain, Case::Accumulate, Case::Bias, Case::Combined] {
                    check(&device, case, (sizes, transposed, operands, out));
                }
            }
        }
        for (operands, out) in [single, half] {
            for case in [Case::BiasRelu, Case::BiasResidualRelu] {
                check(&device, case, (sizes, [false, true], operands, out));
            }
        }
        for (operands, out) in [single, half, mixed] {
            check(&device, Case::BiasGradient, (sizes, [true, false], operands, out));
        }
    }
    for sizes in [[96, 64, 128], [10, 8, 24], [256, 768, 64]] {
        check(&device, Case::GeluBias, (sizes, [false, true], half.0, half.1));
        check(&device, Case::GeluGradient, (sizes, [false, false], half.0, half.1));
    }
}

/// Matrices of odd sizes in a stack begin at addresses that are aligned to an element only.
#[test]
fn operands_begin_at_any_element() {
    if let Err(why) = device::cuda::availability() {
        skipped::report(Need::Gpu, &why.to_string());
        return;
    }
    let device = Device::cuda(0, 0, &[], &DeviceOptions::default()).unwrap();
    let types = [(DType::F32, DType::F32), (DType::Bf16, DType::Bf16), (DType::Bf16, DType::F32)];
    for sizes in [[5, 4, 7], [9, 16, 9], [9, 9, 16], [96, 64, 128], [1, 1, 1], [33, 130, 70]] {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            for (operands, out) in types {
                for first in [[1, 0, 0], [0, 1, 0], [0, 0, 1], [3, 2, 1], [4, 4, 4]] {
                    for case in [Case::Plain, Case::Accumulate] {
                        check_inside(&device, case, (sizes, transposed, operands, out), first, [0; 3]);
                    }
                }
            }
        }
    }
}

/// Padding is neither read nor written.
#[test]
fn rows_may_be_padded() {
    if let Err(why) = device::cuda::availability() {
        skipped::report(Need::Gpu, &why.to_string());
        return;
    }
    let device = Device::cuda(0, 0, &[], &DeviceOptions::default()).unwrap();
    let types = [(DType::F32, DType::F32), (DType::Bf16, DType::Bf16), (DType::Bf16, DType::F32)];
    for sizes in [[5, 3, 7], [33, 131, 70], [96, 1001, 64], [131, 64, 96]] {
        for transposed in [[false, false], [true, false], [false, true]] {
            for (operands, out) in types {
                for padding in [[3, 0, 0], [0, 5, 0], [0, 0, 5], [1, 2, 3]] {
                    for case in [Case::Plain, Case::Accumulate] {
                        check_inside(&device, case, (sizes, transposed, operands, out), [0; 3], padding);
                    }
                }
            }
        }
    }
}

/// Every algorithm that cuBLASLt offers can be selected by a table and computes the matmul.
#[test]
fn a_table_chooses_the_algorithm() {
    if let Err(why) = device::cuda::availability() {
        skipped::report(Need::Gpu, &why.to_string());
        return;
    }
    let device = Device::cuda(0, 0, &[], &DeviceOptions::default()).unwrap();
    let empty = MatmulTable { choices: Default::default(), ..device.matmul_table().unwrap() };
    let sizes = [256, 768, 64];
    let rows: [(Case, Shape); 4] = [
        (Case::Plain, (sizes, [false, true], DType::Bf16, DType::Bf16)),
        (Case::Accumulate, (sizes, [true, false], DType::Bf16, DType::Bf16)),
        (Case::BiasGradient, (sizes, [true, false], DType::Bf16, DType::F32)),
        (Case::GeluBias, (sizes, [false, true], DType::Bf16, DType::Bf16)),
    ];
    for (case, shape) in rows {
        device.set_matmul_table(empty.clone()).unwrap();
        check(&device, case, shape);
        let [planned] = device.planned_matmuls().unwrap()[..] else {
            panic!("{case:?}: one matmul was requested")
        };
        assert_eq!((planned.calls, planned.from_table), (1, false));
        let choices = device.matmul_choices(planned.key, 8).unwrap();
        assert!(!choices.is_empty() && choices.iter().all(|choice| choice.note.starts_with("id ")));
        for choice in choices {
            let note = choice.note.clone();
            let mut table = empty.clone();
            table.choices.insert(planned.key, choice);
            device.set_matmul_table(table).unwrap();
            check(&device, case, shape);
            assert!(device.planned_matmuls().unwrap()[0].from_table, "{case:?}: {note}");
        }
    }
}
