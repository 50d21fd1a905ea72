//! Tests of `[[optim.groups]]`.

use super::{LEAST, parse, refusal};
use crate::OptimKind;

const TWO: &str = "[data]\npaths = [\"a.txt\"]\n[optim]\nbeta1 = 0.8\n[[optim.groups]]\nmatch = \"wte.*\"\n\
                   learning_rate = 0.5\n[[optim.groups]]\nmatch = [\"*.bias\", \"ln_f.*\"]\nname = \"small\"\n\
                   kind = \"lion\"\nweight_decay = 0\n";

#[test]
fn groups_are_read_in_order_with_defaults_of_their_kind() {
    let config = parse(TWO, &[]).unwrap();
    let [first, second] = &config.optim.groups[..] else { panic!("two groups") };
    assert_eq!(
        (first.name(), first.learning_rate, first.kind, first.beta1),
        ("wte.*", Some(0.5), None, None)
    );
    assert!(first.matches("wte.weight") && !first.matches("h.0.wte"));
    assert_eq!((second.name(), second.kind), ("small", Some(OptimKind::Lion)));
    // Another kind than [optim]'s has its own decay rates.
    assert_eq!((second.beta1, second.beta2, second.weight_decay), (Some(0.9), Some(0.99), Some(0.0)));
    assert!(second.matches("h.1.ln_1.bias") && second.matches("ln_f.weight"));
    // The resolved text parses to an equal value, and so do groups of the command line.
    let again = parse(&config.to_toml(), &[]).unwrap();
    assert_eq!(again, config);
    let set = "optim.groups=[{match='wte.*', learning_rate=0.5}, {match=['*.bias', 'ln_f.*'], name='small', \
               kind='lion', weight_decay=0}]";
    assert_eq!(parse(LEAST, &["optim.beta1=0.8", set]).unwrap().optim, config.optim);
}

#[test]
fn a_rules_own_keys_are_for_groups_of_that_rule_too() {
    let sgd = "optim.groups=[{match='*.bias', kind='sgd'}]";
    let config = parse(LEAST, &[sgd, "optim.momentum=0.5"]).unwrap();
    assert_eq!(config.optim.momentum, 0.5);
    assert!(config.to_toml().contains("momentum = 0.5"));
    assert!(!parse(LEAST, &[]).unwrap().to_toml().contains("momentum"));
    let epsilon = ["optim.kind=lion", "optim.epsilon=1e-6", "optim.groups=[{match='*', kind='adamw'}]"];
    assert_eq!(parse(LEAST, &epsilon).unwrap().optim.epsilon, 1e-6);
}

#[test]
fn contradictions_in_groups_are_refused() {
    let table = [
        ("[{learning_rate=2}]", "group 1: it has no match, the globs of its parameters' names"),
        ("[{match=[]}]", "group 1: it has no match, the globs of its parameters' names"),
        ("[{match='a[', kind='sgd'}]", "group 1: match: \"a[\" is no glob: invalid range pattern"),
        ("[{match=3}]", "group 1: match = 3 is not a string or a list of strings"),
        ("[{match='a', lerning_rate=2}]", "group 1: unknown key lerning_rate: did you mean learning_rate?"),
        (
            "[{match='a'}, {match='b', learning_rate=0}]",
            "group 2: learning_rate = 0 is not a positive number in the range of f32",
        ),
        ("[{match='a', beta1=1}]", "group 1: beta1 = 1 is not a number from 0 to below 1"),
        ("[{match='a', kind='adam'}]", "group 1: kind = \"adam\" is not one of adamw, lion, sgd, muon"),
        ("[{match='a', kind='sgd', beta2=0.9}]", "group 1: beta2 has no use with kind = \"sgd\""),
        ("[{match='a'}, {match='a'}]", "group 2: it is called \"a\" as group 1 is: set its name"),
        ("[{match='a', name=''}]", "group 1: name = \"\" is not a name"),
        (
            "[{match='a', name='default'}]",
            "group 1: \"default\" is the name of a group that every run may have: use another",
        ),
        ("[2]", "group 1: it is no table"),
    ];
    for (groups, reason) in table {
        let text = refusal(LEAST, &[&format!("optim.groups={groups}")]);
        assert!(text.ends_with(&format!("optim.groups: {reason}")), "{text}\n{reason}");
    }
    let text = refusal(LEAST, &["optim.groups={match='a'}"]);
    assert!(text.contains("optim.groups takes a list of tables with match, name, kind"), "{text}");
    let lines = format!("{TWO}[[optim.groups]]\nmatch = \"wte.*\"\n");
    let text = refusal(&lines, &[]);
    assert!(text.starts_with("quick.toml:5: optim.groups: group 3: "), "{text}");
    let momentum = refusal(LEAST, &["optim.momentum=0.5"]);
    assert!(momentum.contains("momentum"), "{momentum}");
    let eight_bit = ["optim.state=8bit", "optim.groups=[{match='*', kind='sgd'}]", "optim.momentum=0"];
    assert!(refusal(LEAST, &eight_bit).contains("keeps none"));
}

#[test]
fn a_base_width_is_refused_where_it_has_no_rules() {
    let base = "model.base_width=64";
    for (sets, expected) in [
        (&["optim.kind=sgd"][..], "model.base_width scales the rates of \"adamw\" and \"lion\""),
        (&["optim.groups=[{match='*', kind='sgd'}]"], "has no rules for \"sgd\""),
        (&["lora.rank=2"], "model.base_width is for whole models, and lora.rank trains adapters"),
        (&["model.kind=llama", "model.experts=4"], "model.base_width has no rules for model.experts = 4"),
        (
            &["model.kind=llama", "model.latent_width=8", "model.rope_width=4"],
            "no rules for model.latent_width = 8",
        ),
        (&["model.kind=mlp", "data.kind=synthetic"], "model.base_width"),
    ] {
        let text = refusal(LEAST, &[sets, &[base]].concat());
        assert!(text.contains(expected), "{text}");
        // The width itself scales nothing.
        if !sets[0].ends_with("mlp") {
            let same = parse(LEAST, &[sets, &["model.base_width=128"]].concat()).unwrap();
            assert!(same.model.width_scaling().is_none());
        }
    }
    let text = refusal(LEAST, &["model.base_head_width=8"]);
    assert!(
        text.contains("model.base_head_width = 8 is of the model of model.base_width, and that is 0"),
        "{text}"
    );
    assert!(!parse(LEAST, &[base]).unwrap().model.width_scaling().is_none());
}
