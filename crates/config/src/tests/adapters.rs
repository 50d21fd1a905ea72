//! Tests of the keys of adapters.

use super::super::*;
use super::*;

#[test]
fn targets_of_adapters_may_be_one_string() {
    let text = |targets: &str| format!("{LEAST}[lora]\nrank = 2\ntargets = {targets}\n");
    let list = parse(&text("[\"all-linear\"]"), &[]).unwrap();
    assert_eq!(parse(&text("\"all-linear\""), &[]).unwrap(), list);
    assert_eq!(parse(&text("[]"), &["lora.targets=all-linear"]).unwrap(), list);
    assert_eq!(parse(&text("[]"), &["lora.targets=['c_attn', 'c_proj']"]).unwrap().lora.targets.len(), 2);
}

#[test]
fn keys_of_adapters_need_a_rank() {
    for key in [
        "alpha = 16",
        "dropout = 0.1",
        "targets = [\"q_proj\"]",
        "base = \"nf4\"",
        "scaling = \"rslora\"",
        "rank_pattern = \"c_attn=4\"",
        "alpha_pattern = [\"c_attn=4\"]",
        "b_learning_rate = 16",
        "train_also = [\"*.c_proj\"]",
    ] {
        let name = key.split(' ').next().unwrap();
        let expected =
            format!("lora.{name} is for adapters, and there are none without lora.rank: set lora.rank");
        let text = format!("{LEAST}[lora]\n{key}\n");
        assert_eq!(refusal(&text, &[]), format!("quick.toml:4: {expected}"));
        parse(&text, &["lora.rank=2"]).unwrap();
        // The rank turns them off.
        let off = parse(&text, &["lora.rank=0"]).unwrap();
        assert!(off.tuning.lora().is_none());
        assert_eq!(parse(&off.to_toml(), &[]).unwrap(), off.with(&[]).unwrap());
    }
    let alone = format!("{LEAST}[lora]\n");
    for (text, set, warns) in [
        (LEAST, &[][..], false),
        (&alone, &[][..], true),
        (&alone, &["lora.rank=0"][..], false),
        (&alone, &["lora.rank=2"][..], false),
    ] {
        let warning = parse(text, set).unwrap().adapters_warning();
        let is_expected = |warning: &String| {
            warning.starts_with("quick.toml:3: [lora] makes no adapters without lora.rank")
        };
        assert_eq!(warning.as_ref().map(is_expected), warns.then_some(true), "{warning:?}");
    }
    assert!(refusal(LEAST, &["lora.alpha=8"]).starts_with("--set lora.alpha=8: lora.alpha is for adapters"));
}

#[test]
fn a_base_is_in_codes_or_in_a_type() {
    let text = format!("{LEAST}[lora]\nrank = 2\n");
    assert_eq!(parse(&text, &[]).unwrap().lora.base.alphabet(), None);
    for base in LoraBase::ALL {
        let config = parse(&text, &[&format!("lora.base={}", base.name())]).unwrap();
        assert_eq!(config.tuning.lora().unwrap().base, base.alphabet());
        assert!(base.alphabet().is_none() || base.dtype().is_none());
    }
    let refused = refusal(&text, &["lora.base=f16", "precision.compute=bf16"]);
    assert!(
        refused.contains("lora.base = \"f16\" and precision.compute = \"bf16\" are different"),
        "{refused}"
    );
    parse(&text, &["lora.base=f16", "precision.compute=f16"]).unwrap();
}
