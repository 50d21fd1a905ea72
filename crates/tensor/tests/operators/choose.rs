use device::{Category, DType};
use tensor::ops::choose::{self, Choice, seen_words};
use tensor::{Result, Tensor};

use crate::support::{Case, devices, tensor};

const ALL: Choice = Choice { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };
const GREEDY: Choice = Choice { temperature: 0.0, ..ALL };

/// Returns the draws of rows: the number, then both words of the key.
fn draws(case: &Case, numbers: &[u32], key: u32) -> Tensor {
    let rows = numbers.len();
    let list: Vec<u32> = [numbers.to_vec(), vec![key; rows], vec![7; rows]].concat();
    tensor(&case.device, &list, [3, rows])
}

/// Chooses tokens for the first `count` rows.
fn forward(
    logits: &Tensor,
    count: usize,
    draws: &Tensor,
    seen: Option<(&Tensor, &Tensor)>,
    choice: Choice,
) -> Result<Tensor> {
    let chosen = Tensor::for_host(logits.device(), [count], DType::U32, Category::Input)?;
    choose::forward(logits, draws, seen, choice, &chosen)?;
    Ok(chosen)
}

/// Counts how often each token is drawn in `count` draws.
fn counted(case: &Case, logits: &[f32], choice: Choice, count: u32) -> Vec<f64> {
    let rows: Vec<u32> = (0..count).collect();
    let repeated = case.tensor(&logits.repeat(rows.len()), [rows.len(), 1, logits.len()]);
    let chosen = forward(&repeated, rows.len(), &draws(case, &rows, 3), None, choice).unwrap();
    let mut shares = vec![0.0; logits.len()];
    for token in chosen.to_vec::<u32>().unwrap() {
        shares[token as usize] += 1.0 / f64::from(count);
    }
    shares
}

#[test]
fn tokens_are_drawn_by_their_probability_within_the_limits() {
    // Weights 1, e, e², e³ and one of nothing, in an order that is not theirs.
    let logits = [2.0, 0.0, -40.0, 3.0, 1.0];
    let e = std::f64::consts::E;
    let shares = |weights: [f64; 5]| weights.map(|weight| weight / weights.iter().sum::<f64>());
    let table = [
        (ALL, shares([e * e, 1.0, 0.0, e.powi(3), e])),
        (Choice { temperature: 2.0, ..ALL }, shares([e, 1.0, 0.0, e.powf(1.5), e.sqrt()])),
        (Choice { top_k: 2, ..ALL }, shares([e * e, 0.0, 0.0, e.powi(3), 0.0])),
        (Choice { top_k: 1, ..ALL }, [0.0, 0.0, 0.0, 1.0, 0.0]),
        // Together the first two have 0.88.
        (Choice { top_p: 0.8, ..ALL }, shares([e * e, 0.0, 0.0, e.powi(3), 0.0])),
        (Choice { top_p: 0.9, ..ALL }, shares([e * e, 0.0, 0.0, e.powi(3), e])),
        (Choice { top_p: 0.01, ..ALL }, [0.0, 0.0, 0.0, 1.0, 0.0]),
        (Choice { top_k: 3, top_p: 0.7, ..ALL }, shares([e * e, 0.0, 0.0, e.powi(3), 0.0])),
        (GREEDY, [0.0, 0.0, 0.0, 1.0, 0.0]),
    ];
    for case in devices() {
        for (choice, expected) in table {
            let actual = counted(&case, &logits, choice, 4000);
            for (actual, expected) in actual.iter().zip(expected) {
                // Four standard deviations of a share of 4000 draws, at most.
                assert!((actual - expected).abs() < 0.032, "{} {choice:?}: {actual} {expected}", case.name());
                assert!(expected > 0.0 || *actual == 0.0, "{} {choice:?}", case.name());
            }
        }
    }
}

#[test]
fn a_row_is_drawn_alike_alone_and_beside_others() {
    for case in devices() {
        let vocabulary = 5003;
        let logits = case.normal("logits", 3 * vocabulary);
        let all = case.tensor(&logits, [3, 1, vocabulary]);
        for choice in [Choice { top_k: 900, top_p: 0.95, ..ALL }, ALL, GREEDY] {
            let together = forward(&all, 3, &draws(&case, &[5, 6, 5], 9), None, choice).unwrap();
            let together = together.to_vec::<u32>().unwrap();
            for (row, number) in [5, 6, 5].into_iter().enumerate() {
                let own = case.tensor(&logits[row * vocabulary..][..vocabulary], [1, 1, vocabulary]);
                let alone = forward(&own, 1, &draws(&case, &[number], 9), None, choice).unwrap();
                assert_eq!(alone.to_vec::<u32>().unwrap(), [together[row]], "{} {row}", case.name());
            }
        }
        // Fewer rows than there are, and the first of several likeliest.
        let equal = case.tensor(&[1.0, 3.0, 3.0, 0.0, 0.0, 0.0], [2, 1, 3]);
        let chosen = forward(&equal, 1, &draws(&case, &[0, 0], 0), None, GREEDY).unwrap();
        assert_eq!(chosen.to_vec::<u32>().unwrap(), [1], "{}", case.name());
    }
}

/// Without limits, a GPU draws in slices of a row.
#[test]
fn limits_that_leave_all_tokens_change_no_draw() {
    for case in devices() {
        // More than three slices, and a token that is never drawn.
        let vocabulary = 13_001;
        let mut logits = case.normal("logits", 40 * vocabulary);
        logits.chunks_mut(vocabulary).for_each(|row| row[77] = -1e4);
        let logits = case.tensor(&logits, [40, 1, vocabulary]);
        let draws = draws(&case, &(0..40).collect::<Vec<_>>(), 5);
        let seen =
            || tensor(&case.device, &vec![0u32; 40 * seen_words(vocabulary)], [40, seen_words(vocabulary)]);
        let tokens = tensor(&case.device, &(9000..9040).collect::<Vec<u32>>(), [40, 1]);
        for penalty in [1.0, 3.0] {
            let chosen = |top_k| {
                let choice = Choice { top_k, repetition_penalty: penalty, ..ALL };
                let seen = seen();
                let chosen = forward(&logits, 40, &draws, Some((&tokens, &seen)), choice).unwrap();
                (chosen.to_vec::<u32>().unwrap(), seen.to_vec::<u32>().unwrap())
            };
            assert_eq!(chosen(0), chosen(vocabulary as u32 - 1), "{}", case.name());
        }
    }
}

#[test]
fn tokens_that_were_seen_are_penalised() {
    for case in devices() {
        // Token 0 halves from 3 to 1.5; token 3 doubles from -1 to -2.
        let logits = case.tensor(&[3.0, 2.0, -9.0, -1.0, 3.0, 2.0, -9.0, -1.0], [2, 1, 4]);
        let seen = tensor(&case.device, &[0u32, 0], [2, seen_words(4)]);
        let choice = Choice { repetition_penalty: 2.0, ..GREEDY };
        let choose = |tokens: [u32; 2]| {
            let tokens = tensor(&case.device, &tokens, [2, 1]);
            let draws = draws(&case, &[0, 0], 0);
            let chosen = forward(&logits, 2, &draws, Some((&tokens, &seen)), choice).unwrap();
            chosen.to_vec::<u32>().unwrap()
        };
        assert_eq!(choose([0, 2]), [1, 0], "{}", case.name());
        assert_eq!(choose([3, 0]), [1, 1], "{}", case.name());
        assert_eq!(seen.to_vec::<u32>().unwrap(), [0b1001, 0b0101], "{}", case.name());
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for case in devices() {
        let logits = case.tensor(&[0.0; 8], [2, 1, 4]);
        let wrong = tensor(&case.device, &[0u32; 2], [2, 1]);
        let too_many = forward(&logits, 3, &draws(&case, &[0, 0], 0), None, ALL).unwrap_err();
        assert!(too_many.to_string().contains("at least 3 rows"), "{too_many}");
        let refused = forward(&logits, 2, &wrong, None, ALL).unwrap_err();
        assert!(refused.to_string().contains("draws has shape [2, 1]"), "{refused}");
    }
}
