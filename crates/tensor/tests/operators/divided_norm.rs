//! RMS norms of rows whose columns are divided into shards.

use device::{Category, Request};
use tensor::ops::divided_norm::{self, Saved};
use tensor::{DType, Tensor};

use crate::support::{devices, read};

const TEST: Request = Request::new(Category::Activation, "test");
const EPSILON: f32 = 1e-5;

/// Rows, width of a shard and number of shards: whole vectors, several vectors per thread, and odd widths.
const SIZES: [[usize; 3]; 3] = [[5, 32, 2], [3, 2056, 3], [70, 7, 4]];

#[test]
fn parts_are_normalised_by_the_mean_square_of_all() {
    for case in devices() {
        for [rows, width, parts] in SIZES {
            let columns = width * parts;
            let operand = |name: &str, shape: &[usize]| -> (Vec<Tensor>, Vec<Vec<f64>>) {
                let part = |part: usize| match *shape {
                    [a, b] => case.operand(&format!("{name} {part}"), [a, b]),
                    _ => case.operand(&format!("{name} {part}"), [width]),
                };
                (0..parts).map(part).unzip()
            };
            let ((x, x_wide), (weight, weight_wide)) =
                (operand("x", &[rows, width]), operand("weight", &[width]));
            let (dy, dy_wide) = operand("dy", &[rows, width]);
            let sums = || Tensor::empty(&case.device, [rows], DType::F32, TEST).unwrap();
            let total = |write: &dyn Fn(usize, &Tensor)| {
                let total = sums();
                total.zero().unwrap();
                for part in 0..parts {
                    let own = sums();
                    write(part, &own);
                    tensor::ops::add::into(&total, &own).unwrap();
                }
                total
            };
            let rstd = total(&|part, own| divided_norm::squares(&x[part], own).unwrap());
            divided_norm::rstd(&rstd, columns, EPSILON).unwrap();
            let saved = |part: usize| Saved { x: &x[part], weight: &weight[part], rstd: &rstd };
            let products = total(&|part, own| divided_norm::products(&dy[part], saved(part), own).unwrap());
            let all = |term: &dyn Fn(usize, usize) -> f64| -> f64 {
                (0..parts).flat_map(|part| (0..width).map(move |i| (part, i))).map(|(p, i)| term(p, i)).sum()
            };
            let inverse: Vec<f64> = (0..rows)
                .map(|row| {
                    let squares = all(&|part, i| x_wide[part][row * width + i].powi(2));
                    1.0 / (squares / columns as f64 + f64::from(EPSILON)).sqrt()
                })
                .collect();
            case.single().close("rstd", &read(&rstd), &inverse);
            let means: Vec<f64> = (0..rows)
                .map(|row| {
                    let product = |part: usize, i: usize| {
                        let at = row * width + i;
                        dy_wide[part][at] * weight_wide[part][i] * x_wide[part][at] * inverse[row]
                    };
                    all(&product) / columns as f64
                })
                .collect();
            for part in 0..parts {
                let y = divided_norm::forward(&x[part], &weight[part], &rstd).unwrap();
                let dx = divided_norm::backward_input(&dy[part], saved(part), &products, columns).unwrap();
                let each = |term: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
                    (0..rows * width).map(|at| term(at / width, at)).collect()
                };
                let weight = |at: usize| weight_wide[part][at % width];
                let expected = each(&|row, at| x_wide[part][at] * inverse[row] * weight(at));
                case.close("y", &read(&y), &expected);
                let expected = each(&|row, at| {
                    let g = dy_wide[part][at] * weight(at);
                    inverse[row] * (g - x_wide[part][at] * inverse[row] * means[row])
                });
                case.close("dx", &read(&dx), &expected);
            }
        }
    }
}
