//! Property tests over generated texts and configurations.

use super::super::*;
use super::*;
use keys::Value;
use proptest::prelude::*;

fn float() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), 1e-30..1e30, 0.0..1.0].prop_map(|number: f64| number)
}

prop_compose! {
    /// Generates valid overrides.
    fn good()(
        gpt in any::<bool>(), text in any::<bool>(), sgd in any::<bool>(),
        layers in 1_usize..100, heads in 1_usize..20, head in 1_usize..100, context in 1_usize..2000,
        sizes in proptest::collection::vec(1_usize..5000, 2..6), activation in 0_usize..3,
        paths in proptest::collection::vec("\\PC{1,12}|[\\x00-\\x7f]{1,6}", 1..4), base in "[a-z./ ]{1,10}",
        numbers in (1e-20..1e20, float(), float(), 0.0..0.99, 0.0..0.99, 1e-30..1.0, 0.001..0.999),
        lanes in 1_usize..9, data in 1_usize..9, odd in 0_usize..5, recompute in 0_usize..5,
        counts in (1_u64..1 << 40, 0..i64::MAX, 0..i64::MAX, 0..i64::MAX, 512_u64..1 << 40),
    ) -> Vec<String> {
        let text = gpt && text;
        let data = lanes.min(data);
        let (rate, decay, clip, first, second, epsilon, held_out) = numbers;
        let mut set = vec![
            format!("model.kind={}", if gpt { "gpt" } else { "mlp" }),
            format!("data.kind={}", if text { "text" } else { "synthetic" }),
            format!("optim.kind={}", if sgd { "sgd" } else { "adamw" }),
            format!("train.global_batch_size={}", 8 * lanes * (2 * odd + 1)),
            format!("parallel.lanes={lanes}"), format!("parallel.data={data}"),
            format!("optim.learning_rate={rate:?}"), format!("optim.weight_decay={decay:?}"),
            format!("optim.clip_norm={clip:?}"), format!("train.steps={}", counts.0),
            format!("train.seed={}", counts.1), format!("train.validate_every={}", counts.2),
            format!("memory.limit_bytes={}", counts.3), format!("parallel.bucket_bytes={}", counts.4),
        ];
        if let Some(recompute) = ["none", "auto", "block", "1"].get(recompute) {
            set.push(format!("memory.recompute={recompute}"));
        }
        if recompute == 2 || recompute == 3 {
            set.push("memory.recompute_layers=1".to_owned());
        }
        if gpt {
            set.extend([format!("model.layers={layers}"), format!("model.heads={heads}"),
                format!("model.width={}", heads * head), format!("model.context={context}")]);
        } else {
            set.push(format!("model.sizes={sizes:?}"));
            set.push(format!("model.activation={}", ["relu", "gelu", "none"][activation]));
        }
        if text {
            let paths: Vec<Value> = paths.into_iter().map(Into::into).collect();
            set.extend([format!("data.paths={}", Value::List(paths)), format!("data.base=\"{base}\""),
                format!("data.validation_fraction={held_out:?}")]);
        }
        if sgd {
            set.push(format!("optim.momentum={first:?}"));
        } else {
            set.extend([format!("optim.beta1={first:?}"), format!("optim.beta2={second:?}")]);
            set.push(format!("optim.epsilon={epsilon:?}"));
        }
        set
    }
}

proptest! {
    #[test]
    fn the_resolved_text_parses_back_to_an_equal_value(overrides in good()) {
        families();
        let config = RunConfig::parse("", "none", Path::new("/base"), &overrides).unwrap();
        let again = RunConfig::parse(&config.to_toml(), "config.toml", Path::new("/another"), &[]).unwrap();
        prop_assert_eq!(&again, &config);
        prop_assert_eq!(again.fingerprint(), config.fingerprint());
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,80}|[\\[\\]{}\"'=.,\n a-z0-9_#-]{0,200}") {
        let _ = parse(&text, &[]);
        let _ = parse("", &[&text]);
        for key in all_keys() {
            let _ = parse("", &[&format!("{}={text}", key.path)]);
        }
    }

    #[test]
    fn no_number_makes_the_checks_panic(
        key in any::<prop::sample::Index>(), other in any::<prop::sample::Index>(), a: i64, b in any::<f64>(),
    ) {
        let keys = all_keys();
        let key = key.get(&keys).path;
        let other = other.get(&keys).path;
        let _ = parse(LEAST, &[&format!("{key}={a}"), &format!("{other}={}", i64::MAX)]);
        let _ = parse(LEAST, &[&format!("{key}={b:?}"), &format!("{other}=16777216")]);
    }
}

#[test]
fn deep_nesting_is_an_error_and_no_stack_overflow() {
    for open in ["[", "{a=", "a."] {
        let text = format!("x = {}", open.repeat(100_000));
        assert!(refusal(&text, &[]).starts_with("quick.toml:1: "), "{open}");
        assert!(!refusal("", &[&format!("data.paths={}", open.repeat(100_000))]).is_empty(), "{open}");
    }
}
