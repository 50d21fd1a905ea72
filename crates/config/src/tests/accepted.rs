//! Tests of valid configurations and their values.

use collective::{Axis, GridShape};

use super::super::*;
use super::*;
use nn::Examples;
use std::collections::BTreeSet;

#[test]
fn the_last_of_several_overrides_applies() {
    let config = parse(
        &format!("{LEAST}[train]\nsteps = 5\n"),
        &[
            "train.steps=6",
            "train.steps=7",
            "optim.kind=sgd",
            "model.width = 64",
            "data.paths=['x', \"y\"]",
            "data.base=\"z\"",
        ],
    )
    .unwrap();
    assert_eq!((config.train.steps, config.optim.kind), (7, OptimKind::Sgd));
    assert_eq!(config.data.paths, ["x", "y"]);
    // A path on the command line is relative to where it was written.
    assert_eq!(config.data.base, std::env::current_dir().unwrap().join("z"));
    // A string without quotes is a string, even if it looks like another value.
    assert_eq!(
        parse(LEAST, &["memory.allocator=expandable_segments:True"]).unwrap().memory.allocator,
        "expandable_segments:True"
    );
}

#[test]
fn a_kind_from_the_command_line_drops_keys_of_another_kind() {
    let text = format!("{LEAST}[model]\nlayers = 2\n[optim]\nbeta1 = 0.5\n");
    let config = parse(&text, &["data.kind=synthetic", "model.kind=mlp", "optim.kind=sgd"]).unwrap();
    assert_eq!((config.data.kind, config.data.paths.len()), (DataKind::Synthetic, 0));
    assert_eq!(config.model.kind(), "mlp");
    assert_eq!(
        refusal(&text, &["optim.kind=sgd", "optim.beta1=0.5"]),
        "--set optim.beta1=0.5: optim.beta1 belongs to optim.kind = \"adamw\" or \"lion\" or \"muon\", and \
         optim.kind is \"sgd\""
    );
}

#[test]
fn the_path_of_a_profile_is_relative_to_the_configuration() {
    let named =
        |sets: &[&str]| parse(&format!("{LEAST}[parallel]\nprofile = \"a/../times.toml\"\n"), sets).unwrap();
    let config = named(&[]);
    assert_eq!(config.parallel.profile.as_deref(), Some(Path::new("/base/times.toml")));
    assert_eq!(config.with(&[]).unwrap(), config);
    let elsewhere = named(&["parallel.profile=/other/times.toml"]);
    assert_eq!(elsewhere.parallel.profile.as_deref(), Some(Path::new("/other/times.toml")));
    assert_eq!((elsewhere.fingerprint(), elsewhere.identity()), (config.fingerprint(), config.identity()));
    for none in [
        "parallel.profile=",
        "parallel.profile=\"\"",
        "parallel.partition=smallest",
        "parallel.partition=[4]",
    ] {
        assert_eq!(named(&[none]).parallel.profile, None, "{none}");
    }
    // Other layers have other times; the same layers on another grid have the same.
    for (set, is_kept) in
        [("model.width=64", false), ("train.micro_batch_size=4", false), ("parallel.pipeline=2", true)]
    {
        let mut sets = vec![set.to_owned()];
        sets.extend((!is_kept).then(|| "parallel.profile=".to_owned()));
        assert_eq!(config.with_profile_of(vec![set.to_owned()]).unwrap(), sets);
        assert_eq!(parse(LEAST, &[]).unwrap().with_profile_of(vec![set.to_owned()]).unwrap(), [set]);
    }
}

#[test]
fn defaults_may_depend_on_other_keys() {
    for (micro_batches, lanes) in [(1, 1), (2, 2), (3, 1), (4, 4), (6, 2), (8, 8), (12, 4), (16, 8), (40, 8)]
    {
        let samples = format!("train.global_batch_size={}", 8 * micro_batches);
        let config = parse(LEAST, &[&samples, "parallel.pipeline=2"]).unwrap();
        assert_eq!(config.parallel.lanes, lanes, "{micro_batches}");
    }
    let config = parse(LEAST, &["optim.learning_rate=1"]).unwrap();
    assert_eq!(config.optim.min_learning_rate, 0.1);
    assert_eq!(config.data.base, Path::new("/base"));
    assert_eq!(config.model.examples(), Examples::Tokens { vocabulary: 256, context: 128 });
    let lower = refusal(LEAST, &["optim.min_learning_rate=1"]);
    assert_eq!(
        lower,
        "--set optim.min_learning_rate=1: optim.min_learning_rate = 1 is above optim.learning_rate = 0.001"
    );
}

#[test]
fn files_are_read_and_their_errors_name_them() {
    families();
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("run.toml");
    std::fs::write(&path, LEAST).unwrap();
    assert_eq!(RunConfig::load(&path, &[]).unwrap().data.base, directory.path());

    std::fs::write(&path, "[model]\nlayers = 0\n").unwrap();
    let refused = RunConfig::load(&path, &[]).unwrap_err().to_string();
    assert_eq!(refused, format!("{}:2: model.layers = 0 is not an integer from 1 to 10,000", path.display()));

    std::fs::write(&path, b"\xff").unwrap();
    let refused = RunConfig::load(&path, &[]).unwrap_err().to_string();
    assert_eq!(refused, format!("{} cannot be read: it is not UTF-8", path.display()));
    let missing = directory.path().join("missing.toml");
    let refused = RunConfig::load(&missing, &[]).unwrap_err().to_string();
    assert_eq!(
        refused,
        format!("{} cannot be read: No such file or directory (os error 2)", missing.display())
    );
}

#[test]
fn the_shipped_configurations_are_valid() {
    families();
    // Tests run in the folder of their package.
    let folder = std::env::current_dir().unwrap();
    let root = folder.ancestors().nth(2).unwrap();
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(root.join("launch/configs")).unwrap() {
        let path = entry.unwrap().path();
        let config = RunConfig::load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
        names.insert(path.file_stem().unwrap().to_string_lossy().into_owned());
        if path.ends_with("quickstart.toml") {
            let mut built_in = RunConfig::quickstart(&[]).unwrap();
            // The directory of the source tree, if it still exists.
            assert!(built_in.data.base.join("crates").is_dir());
            built_in.data.base.clone_from(&config.data.base);
            assert_eq!(built_in, config, "one definition");
            assert_eq!(config.data.base, root);
            let corpus = data::Corpus::open(&config.data.base, &config.data.paths).unwrap();
            assert!(corpus.files().any(|file| file.ends_with("crates/config/src/lib.rs")));
            assert_eq!(config.world_size(), 2);
        }
    }
    assert!(
        [
            "quickstart",
            "mlp",
            "gpt2-124m",
            "gpt2-355m",
            "gpt2-1558m",
            "llama3-1b",
            "llama3-8b",
            "llama3-70b",
            "llama3-405b",
            "gemma3-1b",
            "qwen3-30b-a3b",
            "qwen3.5-1b",
            "resnet50"
        ]
        .iter()
        .all(|name| names.contains(*name)),
        "{names:?}"
    );
}

#[test]
fn the_documentation_has_a_table_for_each_section_and_family() {
    families();
    let text = reference();
    let (links, _) = text.split_once('\n').unwrap();
    let anchors: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("<a id=\"")?.strip_suffix("\"></a>")).collect();
    let sections: Vec<&str> = all_keys().iter().map(|key| key.section).collect();
    for section in sections {
        assert!(anchors.contains(&section.replace('.', "-").as_str()), "{section}");
    }
    for family in families().names() {
        assert!(anchors.contains(&format!("model-{family}").as_str()), "{family}");
    }
    assert_eq!(links.matches("](#").count(), anchors.len());
    assert!(anchors.iter().all(|anchor| links.contains(&format!("](#{anchor})"))), "{links}");
    // The kind stands in the heading, and not in each line.
    assert!(!text.contains("Only with `model.kind = \"gpt\"`."));
}

#[test]
fn the_documentation_lists_every_key_and_the_defaults_are_a_configuration() {
    families();
    let table = reference();
    let listing = defaults();
    for key in all_keys() {
        // Families may have keys of one name, each with its own row.
        let same = all_keys().iter().filter(|other| other.path == key.path).count();
        assert_eq!(table.matches(&format!("| `{}` |", key.path)).count(), same, "{}", key.path);
        let mut rows = table.lines().filter(|line| line.starts_with('|'));
        assert!(rows.all(|line| line.matches('|').count() == 6), "{table}");
        if let keys::Default::Literal(literal) = key.default {
            assert!(listing.contains(&format!("\n# {} = {literal}\n", key.name)), "{}", key.path);
            // The default is a value that the key accepts.
            let kind = key.only.map(|only| format!("{}=\"{}\"", only.key, only.is[0]));
            // Images need a model that takes them.
            if kind.as_deref() == Some("data.kind=\"images\"") {
                continue;
            }
            let mut overrides: Vec<String> = kind.into_iter().collect();
            if overrides.iter().any(|kind| kind.contains("mlp") || kind.contains("resnet")) {
                overrides.push("data.kind=synthetic".into());
            }
            overrides.push(format!("{}={literal}", key.path));
            let names_grid = ["parallel.data", "parallel.pipeline", "parallel.tensor", "parallel.context"];
            // A grid that is named has the lanes of grids.
            if key.path != "data.paths" && !names_grid.contains(&key.path) {
                let without: Vec<String> = overrides[..overrides.len() - 1].to_vec();
                let parse =
                    |overrides: &[String]| RunConfig::parse(LEAST, "t", Path::new("/base"), overrides);
                assert_eq!(parse(&overrides).unwrap(), parse(&without).unwrap(), "{}", key.path);
            }
        }
    }
    assert_eq!(
        parse(&format!("{listing}\n{LEAST}").replace("\n[data]\n#", "\n#"), &[]).unwrap(),
        parse(LEAST, &[]).unwrap()
    );
}

#[test]
fn the_resolved_configuration_has_every_key_that_applies() {
    let config = parse(LEAST, &[]).unwrap();
    let text = config.to_toml();
    let written = text.lines().filter(|line| line.contains(" = ")).count();
    assert_eq!(written, config.settings().len());
}

/// Commands that use a trained model on another grid keep `parallel.shard` only if it divides the new grid.
#[test]
fn groups_that_do_not_divide_a_new_grid_end() {
    let groups = ["parallel.data=4", "parallel.shard=2", "parallel.zero_stage=3"];
    let mut parallel = parse(LEAST, &groups).unwrap().parallel;
    for (data, shard, owners) in [(4, 2, 2), (2, 2, 2), (1, 0, 1)] {
        parallel.set_grid(parallel.grid().with_size(Axis::Data, data));
        assert_eq!((parallel.shard, parallel.owners()), (shard, owners));
        assert_eq!(parallel.shards_weights(), data > 1);
    }
}

/// Errors after a change of some keys still name the lines that the user wrote.
#[test]
fn values_keep_their_origins() {
    let config = parse(&format!("{LEAST}[train]\nsteps = 5\n"), &["train.seed=7"]).unwrap();
    let changed = config.with(&["optim.clip_norm=2".to_owned()]).unwrap().with(&[]).unwrap();
    for (key, origin) in [
        ("train.steps", "quick.toml:4"),
        ("data.paths", "quick.toml:2"),
        ("train.seed", "--set train.seed=7"),
        ("parallel.data", "quick.toml"),
        ("optim.clip_norm", "--set optim.clip_norm=2"),
    ] {
        assert_eq!(changed.origins.find(key).to_string(), origin, "{key}");
    }
    let refused = config.with(&["train.micro_batch_size=7".to_owned()]).unwrap_err().to_string();
    assert!(refused.starts_with("--set train.micro_batch_size=7: "), "{refused}");
    let wide = parse(&format!("{LEAST}[model]\nwidth = 60\nheads = 5\n"), &[]).unwrap();
    let refused = wide.with(&["precision.compute=bf16".to_owned()]).unwrap_err().to_string();
    assert!(!refused.contains("the configuration"), "{refused}");
}

#[test]
fn numbers_are_written_as_they_were_given() {
    let text = format!("{LEAST}\n[optim]\nlearning_rate = 3e-4\nweight_decay = 0\nclip_norm = 1.50\n");
    let config = parse(&text, &["optim.beta2=95e-2"]).unwrap();
    let written = config.to_toml();
    for line in
        ["learning_rate = 3e-4", "weight_decay = 0", "clip_norm = 1.50", "beta2 = 95e-2", "beta1 = 0.9"]
    {
        assert!(written.lines().any(|written| written == line), "{line}: {written}");
    }
    // The settings are equal however their numbers are written.
    let plain = parse(&text.replace("3e-4", "0.0003"), &["optim.beta2=0.95"]).unwrap();
    assert_eq!(plain.fingerprint(), config.fingerprint());
    assert_eq!(plain.identity(), config.identity());
    assert_eq!(parse(&written, &[]).unwrap().to_toml(), written);
}

#[test]
fn every_axis_of_the_grid_has_a_key() {
    let grid = GridShape::from_sizes(|axis| 2 + axis as usize);
    let mut parallel = parse(LEAST, &[]).unwrap().parallel;
    parallel.set_grid(grid);
    assert_eq!(parallel.grid(), grid);
    for axis in Axis::ALL {
        let key = Parallel::axis_key(axis);
        assert!(all_keys().iter().any(|other| other.path == key), "{key}");
        assert!(parallel.grid_in_words().contains(&format!("{key} = {}", grid.size(axis))));
    }
}
