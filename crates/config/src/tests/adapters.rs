//! Keys of adapters, and their values.

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
fn a_base_in_codes_is_one_of_three() {
    let text = format!("{LEAST}[lora]\nrank = 2\n");
    assert_eq!(parse(&text, &[]).unwrap().lora.base.alphabet(), None);
    for base in LoraBase::ALL {
        let config = parse(&text, &[&format!("lora.base={}", base.name())]).unwrap();
        assert_eq!(config.tuning.lora().unwrap().base, base.alphabet());
    }
}
