//! Tests of invalid input, each with its exact error message.

mod averages;
mod combinations;
mod context;
mod later_tokens;
mod tensor;

use super::*;

/// Asserts that each text of a table is refused with the message beside it.
fn assert_refused(table: &[(&str, &str)]) {
    for (text, expected) in table {
        assert_eq!(refusal(text, &[]), *expected);
    }
}

#[test]
fn unknown_names_are_refused_with_the_nearest_known() {
    assert_refused(&[
        ("[model]\nwitdh = 8\n", "quick.toml:2: unknown key model.witdh: did you mean model.width?"),
        (
            "[train]\n\nlearning_rate = 1\n",
            "quick.toml:3: unknown key train.learning_rate: did you mean optim.learning_rate?",
        ),
        ("[modle]\nwidth = 8\n", "quick.toml:1: unknown section [modle]: did you mean [model]?"),
        ("[train]\nlr = 1\n", "quick.toml:2: unknown key train.lr: did you mean optim.learning_rate?"),
        ("[model]\nn_layer = 1\n", "quick.toml:2: unknown key model.n_layer: did you mean model.layers?"),
        ("[model]\nn_embd = 1\n", "quick.toml:2: unknown key model.n_embd: did you mean model.width?"),
        ("[model]\nn_head = 1\n", "quick.toml:2: unknown key model.n_head: did you mean model.heads?"),
        ("block_size = 1\n", "quick.toml:1: unknown key block_size: did you mean model.context?"),
        (
            "[train]\nbatch_size = 1\n",
            "quick.toml:2: unknown key train.batch_size: use train.micro_batch_size, of a micro-batch, or \
             train.global_batch_size, of a step",
        ),
        (
            "[train]\ngradient_accumulation_steps = 1\n",
            "quick.toml:2: unknown key train.gradient_accumulation_steps: use train.global_batch_size, \
             which is train.micro_batch_size times the micro-batches of a step",
        ),
        (
            "[wandb]\nproject = 1\n",
            "quick.toml:1: unknown section [wandb]: nothing is sent anywhere; telemetry.tensorboard = true \
             writes event files for TensorBoard, and metrics.jsonl in the run directory has every step",
        ),
        ("[train]\nxylophone = 1\n", "quick.toml:2: unknown key train.xylophone"),
        ("[zebra]\nx = 1\n", "quick.toml:1: unknown section [zebra]"),
        ("width = 8\n", "quick.toml:1: unknown key width: did you mean model.width?"),
        ("foo = 8\n", "quick.toml:1: unknown key foo"),
        ("model = 8\n", "quick.toml:1: model is a section, not a key: write [model] and its keys below"),
        (
            "[[model]]\nwidth = 8\n",
            "quick.toml:1: model is a section, not a key: write [model] and its keys below",
        ),
        // The first mistake in the file is reported, not in the alphabet.
        (
            "[train]\nstep = 8\n[model]\nwitdh = 8\n",
            "quick.toml:2: unknown key train.step: did you mean train.steps?",
        ),
    ]);
}

#[test]
fn former_names_are_refused_with_the_new_ones() {
    assert_refused(&[
        ("[train]\nmicro_batch = 2\n", "quick.toml:2: train.micro_batch is now train.micro_batch_size"),
        (
            "[train]\nmicro_batches = 4\n",
            "quick.toml:2: train.micro_batches is now train.global_batch_size, in sequences or samples: \
             train.micro_batches × train.micro_batch",
        ),
        ("[parallel]\ndivision = [2, 2]\n", "quick.toml:2: parallel.division is now parallel.partition"),
        ("[parallel]\n\npeers = \"off\"\n", "quick.toml:3: parallel.peers is now parallel.peer_access"),
        (
            "[parallel]\nshard_optimizer = true\n",
            "quick.toml:2: parallel.shard_optimizer is now parallel.zero_stage: true is 1, false is 0",
        ),
    ]);
    assert_eq!(
        refusal(LEAST, &["train.micro_batch=2"]),
        "--set train.micro_batch=2: train.micro_batch is now train.micro_batch_size"
    );
}

#[test]
fn wrong_types_are_refused_with_the_allowed_values() {
    assert_refused(&[
        (
            "[model]\nwidth = \"big\"\n",
            "quick.toml:2: model.width takes an integer from 1 to 16,777,216, not the string \"big\"",
        ),
        (
            "[model]\nwidth = 8.0\n",
            "quick.toml:2: model.width takes an integer from 1 to 16,777,216, not the float 8.0",
        ),
        (
            "[model]\nkind = 1\n",
            "quick.toml:2: model.kind takes \"gpt\" or \"llama\" or \"mlp\" or \"resnet\", not the integer 1",
        ),
        (
            "[model.width]\nx = 1\n",
            "quick.toml:1: model.width takes an integer from 1 to 16,777,216, not the table [model.width]",
        ),
        (
            "[data]\npaths = \"a.txt\"\n",
            "quick.toml:2: data.paths takes a list of strings, not the string \"a.txt\": write [\"a.txt\"]",
        ),
        ("[data]\npaths = [1]\n", "quick.toml:2: data.paths takes a list of strings, not the list [1]"),
        (
            "[parallel]\nzero_stage = true\n",
            "quick.toml:2: parallel.zero_stage takes an integer from 0 to 3, not the boolean true",
        ),
        (
            "[optim]\nlearning_rate = true\n",
            "quick.toml:2: optim.learning_rate takes a positive number in the range of f32, not the boolean true",
        ),
        (
            "[train]\nseed = 2026-11-20\n",
            "quick.toml:2: train.seed takes an integer from 0 to 9,223,372,036,854,775,807, not the date \
             2026-11-20",
        ),
    ]);
}

#[test]
fn values_out_of_range_are_refused() {
    assert_refused(&[
        ("[model]\nlayers = 0\n", "quick.toml:2: model.layers = 0 is not an integer from 1 to 10,000"),
        ("[model]\nlayers = -4\n", "quick.toml:2: model.layers = -4 is not an integer from 1 to 10,000"),
        (
            "[train]\nmicro_batch_size = 0\n",
            "quick.toml:2: train.micro_batch_size = 0 is not an integer from 1 to 16,777,216",
        ),
        (
            "[train]\nseed = 99999999999999999999999999999999999999999999\n",
            "quick.toml:2: train.seed = 99999999999999999999999999999999999999999999 is not an integer from \
             0 to 9,223,372,036,854,775,807",
        ),
        (
            "[parallel]\nbucket_bytes = 511\n",
            "quick.toml:2: parallel.bucket_bytes = 511 is not an integer from 512 to 1,099,511,627,776",
        ),
        (
            "[optim]\nlearning_rate = inf\n",
            "quick.toml:2: optim.learning_rate = inf is not a positive number in the range of f32",
        ),
        (
            "[optim]\nweight_decay = nan\n",
            "quick.toml:2: optim.weight_decay = nan is not 0 or a positive number in the range of f32",
        ),
        (
            "[optim]\nclip_norm = -1\n",
            "quick.toml:2: optim.clip_norm = -1 is not 0 or a positive number in the range of f32",
        ),
        ("[optim]\nbeta1 = 1.0\n", "quick.toml:2: optim.beta1 = 1.0 is not a number from 0 to below 1"),
        (
            "[optim]\nepsilon = 1e-60\n",
            "quick.toml:2: optim.epsilon = 1e-60 is not a positive number in the range of f32",
        ),
        (
            "[data]\nvalidation_fraction = 1\n",
            "quick.toml:2: data.validation_fraction = 1 is not a number from 0 to below 1",
        ),
        (
            "[model]\nkind = \"gtp\"\n",
            "quick.toml:2: model.kind = \"gtp\" is not \"gpt\" or \"llama\" or \"mlp\" or \"resnet\": did you mean \"gpt\"?",
        ),
        (
            "[precision]\ncompute = \"f64\"\n",
            "quick.toml:2: precision.compute = \"f64\" is not \"f32\" or \"bf16\" or \"f16\"",
        ),
        (
            "[model]\nkind = \"mlp\"\nsizes = [3]\n[data]\nkind = \"synthetic\"",
            "quick.toml:3: model.sizes = [3] is not a list of 2 or more integers from 1 to 16,777,216",
        ),
        (
            "[model]\nkind = \"mlp\"\nsizes = [3, 0]\n[data]\nkind = \"synthetic\"",
            "quick.toml:3: model.sizes = [3, 0] is not a list of 2 or more integers from 1 to 16,777,216",
        ),
    ]);
}

#[test]
fn keys_of_another_kind_are_refused() {
    assert_refused(&[
        (
            "[model]\nsizes = [1, 2]\n",
            "quick.toml:2: model.sizes belongs to model.kind = \"mlp\", and model.kind is \"gpt\"",
        ),
        (
            "[data]\nkind = \"synthetic\"\npaths = [\"a\"]\n",
            "quick.toml:3: data.paths belongs to data.kind = \"text\" or \"tokens\" or \"chat\" or \
             \"preference\" or \"images\", and data.kind is \"synthetic\"",
        ),
        (
            "[optim]\nmomentum = 0.5\n",
            "quick.toml:2: optim.momentum belongs to optim.kind = \"sgd\", and optim.kind is \"adamw\"",
        ),
        (
            "[parallel]\npartition = [2, 2]\nprofile = \"times.toml\"\n",
            "quick.toml:3: parallel.profile belongs to parallel.partition = \"fastest\", and \
             parallel.partition is [2, 2]",
        ),
        (
            "[model]\nkind = \"mlp\"\n",
            "quick.toml:2: data.kind = \"text\" gives tokens and model.kind = \"mlp\" takes numbers: use \
             data.kind = \"synthetic\"",
        ),
        (
            "[model]\nkind = \"mlp\"\n[train]\nneftune_alpha = 5\n",
            "quick.toml:4: train.neftune_alpha is for embeddings of tokens, and model.kind = \"mlp\" takes \
             numbers",
        ),
    ]);
}

#[test]
fn text_that_is_not_toml_is_refused_with_its_line() {
    let table = [
        ("[model]\nwidth = 1 2\n", 2),
        ("[model]\n\nkind = \"gpt\n", 3),
        ("[model]\nwidth = 8\nwidth = 9\n", 3),
        ("[model", 1),
    ];
    for (text, line) in table {
        // The rest is the parser's own sentence.
        let refused = refusal(text, &[]);
        assert!(refused.starts_with(&format!("quick.toml:{line}: ")) && refused.len() > 20, "{refused}");
        assert!(!refused.contains('\n'), "{refused}");
    }
}

#[test]
fn defaults_that_are_written_change_nothing() {
    let defaults = ["precision.compute=f32", "precision.weights=compute", "data.tokenizer=bytes"];
    assert_eq!(parse(LEAST, &defaults).unwrap(), parse(LEAST, &[]).unwrap());
}

#[test]
fn overrides_are_refused_with_the_argument() {
    let table: [(&[&str], &str); 9] = [
        (&["model.width"], "--set model.width: write --set section.key=value, such as --set train.steps=100"),
        (&["=3"], "--set =3: write --set section.key=value, such as --set train.steps=100"),
        (
            &["model.width="],
            "--set model.width=: write --set section.key=value, such as --set train.steps=100",
        ),
        (&["model.witdh=3"], "--set model.witdh=3: unknown key model.witdh: did you mean model.width?"),
        (&["steps=3"], "--set steps=3: unknown key steps: did you mean train.steps?"),
        (
            &["train.steps=many"],
            "--set train.steps=many: train.steps takes an integer from 1 to 1,099,511,627,776, not the string \
             \"many\"",
        ),
        (&["model.heads=3"], "--set model.heads=3: model.width = 128 is not a multiple of model.heads = 3"),
        (
            &["optim.kind=sdg"],
            "--set optim.kind=sdg: optim.kind = \"sdg\" is not \"adamw\" or \"lion\" or \"sgd\" or \"muon\": did you \
             mean \"sgd\"?",
        ),
        (
            &["memory.limit_bytes=-1"],
            "--set memory.limit_bytes=-1: memory.limit_bytes = -1 is not an integer from 0 to \
             9,223,372,036,854,775,807",
        ),
    ];
    for (overrides, expected) in table {
        assert_eq!(refusal(LEAST, overrides), expected);
    }
    // The allocator's own words follow its key.
    let refused = refusal(LEAST, &["memory.allocator=max_split_size_mb:1"]);
    assert!(
        refused.starts_with("--set memory.allocator=max_split_size_mb:1: memory.allocator: "),
        "{refused}"
    );
}

#[test]
fn sizes_too_large_to_count_are_refused_without_overflow() {
    let table: [(&[&str], &str); 4] = [
        (&["model.width=16777216", "model.vocabulary=2147483648"], "the token embedding"),
        (&["model.width=16777216", "model.layers=10000"], "the blocks' weights"),
        (&["model.context=16777216", "train.micro_batch_size=16777216"], "a micro-batch's logits"),
        (
            &["model.context=16777216", "train.micro_batch_size=65536", "model.layers=9999"],
            "a micro-batch's activations",
        ),
    ];
    for (overrides, what) in table {
        let refused = refusal(LEAST, overrides);
        assert!(
            refused.ends_with(&format!(": {what} would have more than 72057594037927936 bytes")),
            "{refused}"
        );
    }
    assert_eq!(
        refusal(LEAST, table[1].0),
        "--set model.layers=10000: model.layers = 10000, model.width = 16777216: the blocks' weights would \
         have more \
         than 72057594037927936 bytes"
    );
}
