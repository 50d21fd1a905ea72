//! Tests of layers that do not divide into the configured lanes.

use super::*;

#[test]
fn divided_layers_are_refused_where_they_cannot_be() {
    const MODEL: &[&str] = &[
        "model.kind=llama",
        "model.layer_types=['state_space']",
        "model.state_heads=12",
        "parallel.tensor_lanes=4",
    ];
    for (option, expected) in [
        ("model.state_heads=6", "model.state_heads = 6"),
        ("model.state_groups=6", "model.state_groups = 6"),
        ("model.state_norm_groups=3", "model.state_norm_groups = 3"),
        ("model.state_width=6", "model.state_width = 6"),
    ] {
        let refused = refusal(LEAST, &[MODEL, &[option]].concat());
        let expected = format!("parallel.tensor_lanes = 4: it does not divide {expected}");
        assert!(refused.contains(&expected), "{refused}\n{expected}");
    }
    for groups in [1, 2, 4] {
        let groups = [format!("model.state_groups={groups}"), format!("model.state_norm_groups={groups}")];
        parse(LEAST, &[MODEL, &groups.each_ref().map(String::as_str)].concat()).unwrap();
    }
}
