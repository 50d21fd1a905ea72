//! A test with a model family defined in another crate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

use std::path::Path;
use std::sync::LazyLock;

use keys::{RawValues, Row, section};
use nn::models::{GPT, MLP, MlpSizes};
use nn::{Conditions, Examples, Families, Family, Model, ModelSpec, Parameters, Recompute, Stage};
use tensor::ops::Activation;

use config::RunConfig;

section! {
    /// The sizes of a stack of equal linear layers.
    pub struct StackSizes = "model" {
        /// Number of linear layers.
        layers: usize = Row::count(1, 100).default("3");
        /// Width of the activations between layers.
        side: usize = Row::count(1, 1000).default("16");
    }
}

impl ModelSpec for StackSizes {
    fn layers(&self) -> usize {
        self.layers
    }

    fn layers_key(&self) -> &'static str {
        Self::layers
    }

    fn examples(&self) -> Examples {
        Examples::Numbers { inputs: self.side, outputs: self.side }
    }

    fn check(&self, raw: &RawValues, conditions: &Conditions) -> keys::Result<()> {
        if self.side < conditions.micro_batch_size {
            let reason = "model.side is less than train.micro_batch_size".to_owned();
            return Err(raw.conflict(&[Self::side, "train.micro_batch_size"], reason));
        }
        Ok(())
    }

    fn build(
        &self,
        parameters: Parameters,
        stage: &Stage,
        recompute: Recompute,
    ) -> nn::Result<Box<dyn Model>> {
        let sizes = MlpSizes { sizes: vec![self.side; self.layers + 1], activation: Activation::Relu };
        sizes.build(parameters, stage, recompute)
    }

    fn summary(&self) -> String {
        format!("stack of {}", self.layers)
    }
}

fn families() -> &'static Families {
    static FAMILIES: LazyLock<Families> =
        LazyLock::new(|| Families::new(vec![GPT, MLP, Family::new::<StackSizes>("stack")]));
    &FAMILIES
}

fn parse(text: &str, overrides: &[&str]) -> Result<RunConfig, String> {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let parsed = RunConfig::parse_with(families(), text, "stack.toml", Path::new("/base"), &overrides);
    parsed.map_err(|error| error.to_string())
}

const STACK: &str = "[model]\nkind = \"stack\"\nlayers = 5\n[data]\nkind = \"synthetic\"\n";

#[test]
fn its_keys_are_read_written_and_decide_the_bits() {
    let config = parse(STACK, &["model.side=32"]).unwrap();
    assert_eq!((config.layers(), config.model.summary()), (5, "stack of 5".to_owned()));
    assert_eq!(config.model.examples(), Examples::Numbers { inputs: 32, outputs: 32 });
    let section = "[model]\nkind = \"stack\"\nfrom = \"\"\nfrom_config = false\nlayers = 5\nside = 32\n";
    assert_eq!(config.section_toml("model"), section);
    assert_eq!(config.with(&[]).unwrap(), config);
    assert_eq!(config.identity()["model.side"], "32");
    assert_eq!(config.timing()["model.side"], "32");
    // Another family has the key `layers` too.
    assert_eq!(parse("[data]\nkind = \"synthetic\"\n", &["model.layers=2"]).unwrap().layers(), 2);
}

#[test]
fn values_that_contradict_each_other_are_refused() {
    let table: [(&[&str], &str); 5] = [
        (
            &["model.kind=stac"],
            "--set model.kind=stac: model.kind = \"stac\" is not \"gpt\" or \"mlp\" or \"stack\": did you \
             mean \"stack\"?",
        ),
        (
            &["model.width=8"],
            "--set model.width=8: model.width belongs to model.kind = \"gpt\", and model.kind is \"stack\"",
        ),
        (
            &["model.kind=mlp", "model.layers=2"],
            "--set model.layers=2: model.layers belongs to model.kind = \"gpt\" or \"stack\", and \
             model.kind is \"mlp\"",
        ),
        (&["model.side=7"], "--set model.side=7: model.side is less than train.micro_batch_size"),
        (
            &["data.kind=text", "data.paths=['a']"],
            "--set data.kind=text: data.kind = \"text\" gives tokens and model.kind = \"stack\" takes \
             numbers: use \
             data.kind = \"synthetic\"",
        ),
    ];
    for (overrides, expected) in table {
        assert_eq!(parse(STACK, overrides).unwrap_err(), expected);
    }
}
