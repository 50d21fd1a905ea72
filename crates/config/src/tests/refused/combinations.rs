//! Tests of values that contradict each other.

use super::*;

#[test]
fn a_step_that_is_no_whole_number_of_micro_batches_is_refused() {
    let table: [(&[&str], &str); 4] = [
        (
            &["train.global_batch_size=30"],
            "--set train.global_batch_size=30: train.global_batch_size = 30 is not a multiple of \
             train.micro_batch_size = 8 (its default): use train.global_batch_size = 24 or 32",
        ),
        (
            &["train.micro_batch_size=600"],
            "--set train.micro_batch_size=600: train.global_batch_size = 32 (its default) is not a multiple \
             of \
             train.micro_batch_size = 600: use train.global_batch_size = 600",
        ),
        (
            &["train.micro_batch_size=1", "train.global_batch_size=1048577"],
            "--set train.global_batch_size=1048577: train.global_batch_size = 1048577 is more than 1048576 \
             micro-batches of train.micro_batch_size = 1",
        ),
        (
            &["train.global_batch_size=0"],
            "--set train.global_batch_size=0: train.global_batch_size = 0 is not an integer from 1 to \
             17,592,186,044,416",
        ),
    ];
    for (overrides, expected) in table {
        assert_eq!(refusal(LEAST, overrides), expected);
    }
    let sizes = ["train.micro_batch_size=4", "train.global_batch_size=24", "parallel.data=2"];
    let config = parse(LEAST, &sizes).unwrap();
    assert_eq!((config.train.micro_batches(), config.parallel.lanes), (6, 2));
}

#[test]
fn types_of_values_that_do_not_go_together_are_refused() {
    let scaler = "precision.scaler";
    let table: [(&[&str], &str); 7] = [
        (
            &["optim.kind=sgd", "optim.momentum=0", "optim.state=8bit"],
            "--set optim.state=8bit: optim.state = \"8bit\" is for moments or velocity, and SGD with \
             optim.momentum = 0 keeps none",
        ),
        (
            &["precision.weights=f32", "precision.compute=bf16", "precision.gradients=bf16"],
            "--set precision.weights=f32: precision.weights = \"f32\" has gradients in f32, and \
             precision.gradients = \"bf16\"",
        ),
        (
            &["precision.weights=f32", "precision.compute=bf16", "precision.matmul=fp8"],
            "--set precision.weights=f32: precision.matmul = \"fp8\" casts weights of the compute type, and \
             precision.weights = \"f32\": use \"compute\" for one of them",
        ),
        (
            &["precision.gradients=f16", "precision.compute=bf16"],
            "--set precision.gradients=f16: precision.gradients = \"f16\" needs precision.compute = \"f16\", \
             and it is \"bf16\"",
        ),
        (
            &["precision.scaler.init_scale=2"],
            "--set precision.scaler.init_scale=2: precision.scaler.init_scale belongs to \
             precision.compute = \"f16\", and precision.compute is \"f32\"",
        ),
        (
            &["precision.compute=f16", "model.width=256", "precision.scaler.growth_factor=1"],
            "--set precision.scaler.growth_factor=1: precision.scaler.growth_factor = 1 is not above 1",
        ),
        (
            &["precision.compute=f16", "model.width=256", "precision.scaler.backoff_factor=1"],
            "--set precision.scaler.backoff_factor=1: precision.scaler.backoff_factor = 1 is not below 1",
        ),
    ];
    for (overrides, expected) in table {
        assert_eq!(refusal(LEAST, overrides), expected);
    }
    let text = format!("{LEAST}[precision]\ncompute = \"f16\"\n[{scaler}]\ninit_scale = 8\n");
    let config = parse(&text, &["model.width=256"]).unwrap();
    assert_eq!((config.scaler.init_scale, config.scaler.growth_interval), (8.0, 2000));
    assert_eq!(parse(&config.to_toml(), &[]).unwrap().scaler, config.scaler);
    let missing = refusal(&format!("{LEAST}[{scaler}]\ngrowth_facto = 8\n"), &[]);
    let expected = "unknown key precision.scaler.growth_facto: did you mean precision.scaler.growth_factor?";
    assert!(missing.contains(expected), "{missing}");
}

#[test]
fn values_that_contradict_each_other_are_refused() {
    assert_refused(&[
        (
            "[model]\nheads = 4\nwidth = 130\n",
            "quick.toml:3: model.width = 130 is not a multiple of model.heads = 4",
        ),
        (
            "[model]\nkind = \"llama\"\nwidth = 130\n",
            "quick.toml:3: model.width = 130 is not a multiple of model.heads = 4",
        ),
        (
            "[model]\nkind = \"llama\"\nkey_value_heads = 3\n",
            "quick.toml:3: model.key_value_heads = 3 does not divide model.heads = 4",
        ),
        (
            "[model]\nkind = \"llama\"\nlayer_types = [\"linear\"]\n",
            "quick.toml:3: model.layer_types has \"linear\", which is none of \"full_attention\", \
             \"sliding_attention\", \"linear_attention\", \"convolution\", \"state_space\", \
             \"attention_and_state_space\", \"feed_forward\"",
        ),
        (
            "[model]\nkind = \"llama\"\nlayer_types = [\"feed_forward\", \"full_attention\"]\n",
            "quick.toml:3: model.layer_types has \"feed_forward\", and model.single_branches = false",
        ),
        (
            "[model]\nkind = \"llama\"\nsingle_branches = true\nparallel_branches = true\n",
            "quick.toml:3: model.single_branches = true and model.parallel_branches = true exclude each \
             other",
        ),
        (
            "[model]\nkind = \"llama\"\nsingle_branches = true\nnorm_position = \"after\"\n",
            "quick.toml:3: model.single_branches = true and model.norm_position = \"after\" exclude each \
             other",
        ),
        (
            "[model]\nkind = \"llama\"\nlayer_types = [\"linear_attention\"]\nlinear_value_heads = 6\n",
            "quick.toml:4: model.linear_key_heads = 4 does not divide model.linear_value_heads = 6",
        ),
        (
            "[model]\nkind = \"llama\"\nattention_gate = true\nvalue_width = 16\n",
            "quick.toml:3: model.attention_gate = true is not built with this model.value_width",
        ),
        (
            "[model]\nkind = \"llama\"\nhead_width = 33\n",
            "quick.toml:3: model.head_width = 33 is odd; rotary embeddings need an even one",
        ),
        (
            "[model]\nkind = \"llama\"\nvalue_width = 16\nqk_norm = true\n",
            "quick.toml:3: model.qk_norm needs values as wide as keys, and model.value_width = 16 is not \
             model.head_width = 32",
        ),
        (
            "[data]\nkind = \"preference\"\npaths = [\"a\"]\n[preference]\nlambda = 0.2",
            "quick.toml:5: preference.lambda belongs to preference.loss = \"orpo\", and preference.loss is \
             \"dpo\"",
        ),
        (
            "[data]\nkind = \"preference\"\npaths = [\"a\"]\n[preference]\nloss = \"ipo\"\n\
             label_smoothing = 0.1",
            "quick.toml:6: preference.label_smoothing belongs to preference.loss = \"dpo\", and \
             preference.loss is \"ipo\"",
        ),
        (
            "[data]\nkind = \"preference\"\npaths = [\"a\"]\n[preference]\nloss = \"orpo\"\nbeta = 0.5",
            "quick.toml:6: preference.beta belongs to preference.loss = \"dpo\" or \"ipo\", and \
             preference.loss is \"orpo\"",
        ),
        (
            "[data]\nkind = \"preference\"\npaths = [\"a\"]\n[parallel]\ncontext_lanes = 2",
            "quick.toml:5: parallel.context_lanes = 2 divides sequences, and data.kind = \"preference\" \
             compares whole answers: use 1",
        ),
        (
            "[data]\nkind = \"preference\"\npaths = [\"a\"]\npack_documents = true",
            "quick.toml:4: data.pack_documents belongs to data.kind = \"text\" or \"tokens\" or \
             \"chat\", and data.kind is \"preference\"",
        ),
        (
            "[data]\nkind = \"chat\"\npaths = [\"a\"]\ngroup_by_length = true\npack_documents = true",
            "quick.toml:4: packed sequences have no lengths by which data.group_by_length could group them: \
             set data.pack_documents = false",
        ),
        (
            "[data]\nkind = \"chat\"\npaths = [\"a\"]\ngroup_by_length = true\n[parallel]\npipeline = 2",
            "quick.toml:4: data.group_by_length needs sequences of one length with parallel.pipeline = 2",
        ),
        (
            "[data]\nkind = \"text\"\npaths = [\"a\"]\ngroup_by_length = true",
            "quick.toml:4: data.group_by_length belongs to data.kind = \"chat\" or \"preference\", and \
             data.kind is \"text\"",
        ),
        (
            "[data]\nkind = \"preference\"\npaths = [\"a\"]\ntrain_on = \"all\"",
            "quick.toml:4: data.train_on belongs to data.kind = \"chat\", and data.kind is \"preference\"",
        ),
        (
            "[data]\nkind = \"chat\"\npaths = [\"a\"]\ntrain_on = [\"user\", \"gpt\"]",
            "quick.toml:4: data.train_on: [\"user\", \"gpt\"] is none of \"answers\", \"all\" and no list of \
             roles out of \"system\", \"user\", \"assistant\", \"tool\"",
        ),
        (
            "[data]\nkind = \"chat\"\npaths = [\"a\"]\ntrain_on = []",
            "quick.toml:4: data.train_on: [] is none of \"answers\", \"all\" and no list of roles out of \
             \"system\", \"user\", \"assistant\", \"tool\"",
        ),
        (
            "[data]\nkind = \"chat\"\npaths = [\"a\"]\ntrain_on = 1",
            "quick.toml:4: data.train_on takes a string or a list of strings, not the integer 1",
        ),
        (
            "[data]\npaths = [\"a\"]\nvalidation_fraction = 0",
            "quick.toml:3: data.validation_fraction = 0 is for data.kind = \"chat\" or \"preference\", and \
             data.kind = \"text\" needs validation data: use a number above 0",
        ),
        (
            "[data]\nkind = \"chat\"\npaths = [\"a\"]\nvalidation_fraction = 0\n[train]\nvalidate_every = 5",
            "quick.toml:6: train.validate_every needs validation data: data.validation_paths, or a \
             data.validation_fraction above 0",
        ),
        (
            "[data]\nkind = \"preference\"\npaths = [\"a\"]\nvalidation_fraction = 0\n[checkpoint]\n\
             keep_best = true",
            "quick.toml:6: checkpoint.keep_best needs validation data: data.validation_paths, or a \
             data.validation_fraction above 0",
        ),
        (
            "[train]\nbalance_loss = 0.1\n[data]\npaths = [\"a\"]",
            "quick.toml:2: train.balance_loss = 0.1 balances experts, and the model has none",
        ),
        (
            "[model]\nkind = \"llama\"\nexperts = 4\n[train]\ncorrection_rate = 0.1\n[data]\npaths = [\"a\"]",
            "quick.toml:5: train.correction_rate = 0.1 moves corrections of experts, and the model has none: \
             model.router_correction = true adds them to a model with experts",
        ),
        (
            "[model]\nkind = \"llama\"\nexperts = 6\nexpert_groups = 4\n",
            "quick.toml:4: model.expert_groups = 4 does not divide model.experts = 6",
        ),
        (
            "[model]\nkind = \"llama\"\nexperts = 6\nexpert_groups_per_token = 2\n",
            "quick.toml:4: model.expert_groups_per_token = 2 is more than model.expert_groups = 1",
        ),
        (
            "[model]\nkind = \"llama\"\nexperts = 6\nexpert_groups = 3\nexperts_per_token = 3\n",
            "quick.toml:5: model.experts_per_token = 3 is more than the 2 experts that a token chooses from",
        ),
        (
            "[model]\nkind = \"llama\"\nlatent_width = 64\n",
            "quick.toml:3: model.latent_width = 64 needs columns of heads that rotate and others that do not, and \
             model.rope_width = 0 is not between 0 and model.head_width = 32",
        ),
        (
            "[model]\nkind = \"llama\"\nlatent_width = 64\nrope_width = 16\nkey_value_heads = 2\n",
            "quick.toml:3: model.latent_width = 64 has keys and values for every head, and \
             model.key_value_heads = 2 is not model.heads = 4",
        ),
        (
            "[model]\nkind = \"llama\"\nlatent_width = 64\nrope_width = 16\nqk_norm = true\n",
            "quick.toml:3: model.qk_norm = true is not built for latents (model.latent_width = 64)",
        ),
        (
            "[model]\nkind = \"llama\"\nquery_latent_width = 64\n",
            "quick.toml:3: model.query_latent_width = 64 needs model.latent_width, which is 0",
        ),
        (
            "[model]\nkind = \"llama\"\nqk_norm = true\nqk_norm_last = true\nqk_norm_span = \"all\"\n",
            "quick.toml:4: model.qk_norm_last = true is built for norms of heads, and model.qk_norm_span is \"all\"",
        ),
        (
            "[model]\nkind = \"llama\"\nrope_scaling = \"llama3\"\nrope_low_turns = 4\n",
            "quick.toml:4: model.rope_low_turns = 4 is not below model.rope_high_turns = 4",
        ),
        ("[model]\nheads = 3\n", "quick.toml:2: model.width = 128 is not a multiple of model.heads = 3"),
        ("", "quick.toml: data.paths names no file, such as data.paths = [\"corpus/*.txt\"]"),
        (
            "[data]\npaths = []\n",
            "quick.toml:2: data.paths names no file, such as data.paths = [\"corpus/*.txt\"]",
        ),
    ]);
}

#[test]
fn impossible_grids_are_refused_with_possible_ones() {
    let table = [
        (
            "global_batch_size = 96\n[parallel]\nlanes = 13\n",
            "quick.toml:6: parallel.lanes = 13 does not divide the 12 micro-batches of \
             train.global_batch_size = 96: use 12",
        ),
        (
            "global_batch_size = 96\n[parallel]\nlanes = 8\n",
            "quick.toml:6: parallel.lanes = 8 does not divide the 12 micro-batches of \
             train.global_batch_size = 96: use 6 or 12",
        ),
        (
            "global_batch_size = 56\n[parallel]\nlanes = 2\n",
            "quick.toml:6: parallel.lanes = 2 does not divide the 7 micro-batches of \
             train.global_batch_size = 56: use 1 or 7",
        ),
        (
            "global_batch_size = 32\n[parallel]\nlanes = 4\ndata = 5\n",
            "quick.toml:7: parallel.data = 5 is more than parallel.lanes = 4, the sums of gradients \
             that ranks share: the 4 micro-batches of train.global_batch_size = 32 allow no more: lower \
             train.micro_batch_size or use fewer ranks",
        ),
        (
            "global_batch_size = 64\n[parallel]\ndata = 6\nzero_stage = 3\nshard = 4\n",
            "quick.toml:8: parallel.shard = 4 does not divide parallel.data = 6: use 3 or 6",
        ),
        (
            "global_batch_size = 256\n[parallel]\ndata = 16\n",
            "quick.toml:6: parallel.data = 16 is more than parallel.lanes = 8 (its default), the sums of \
             gradients that ranks share: set parallel.lanes = 16, which decides the bits, on every grid",
        ),
        (
            "global_batch_size = 256\n[parallel]\nlanes = 2\ndata = 12\n",
            "quick.toml:7: parallel.data = 12 is more than parallel.lanes = 2, the sums of gradients that ranks \
             share: set parallel.lanes = 16, which decides the bits, on every grid",
        ),
        (
            "global_batch_size = 64\n[parallel]\ndata = 16\n",
            "quick.toml:6: parallel.data = 16 is more than parallel.lanes = 8 (its default), the sums of \
             gradients that ranks share: the 8 micro-batches of train.global_batch_size = 64 allow no more: \
             lower train.micro_batch_size or use fewer ranks",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(refusal(&format!("{LEAST}[train]\n{text}"), &[]), expected);
    }
}

#[test]
fn impossible_pipelines_are_refused_by_name() {
    let table: [(&[&str], &str); 8] = [
        (
            &["parallel.pipeline=5"],
            "--set parallel.pipeline=5: parallel.pipeline = 5: 4 layers cannot be divided into 5 stages: a \
             stage would be \
             empty",
        ),
        (
            &["parallel.pipeline=4", "parallel.schedule=interleaved"],
            "--set parallel.pipeline=4: parallel.pipeline = 4 × parallel.chunks = 2: 4 layers cannot be \
             divided into 8 \
             stages: a stage would be empty",
        ),
        (
            &["parallel.pipeline=2", "parallel.partition=[4, 0]"],
            "--set parallel.partition=[4, 0]: parallel.partition = [4, 0] is not \"fastest\" or \
             \"smallest\", or a list of \
             integers from 1 to 10,000",
        ),
        (
            &["parallel.pipeline=2", "parallel.partition=[1, 2]"],
            "--set parallel.partition=[1, 2]: parallel.partition = [1, 2]: the stages' layers add up to 3; \
             the model has 4",
        ),
        (
            &["parallel.pipeline=2", "parallel.partition=[1, 1, 2]"],
            "--set parallel.partition=[1, 1, 2]: parallel.partition = [1, 1, 2]: the layer counts are for 3 \
             stages; the pipeline has 2",
        ),
        (
            &["parallel.partition=fast"],
            "--set parallel.partition=fast: parallel.partition = \"fast\" is not \"fastest\" or \
             \"smallest\", or a list of \
             integers from 1 to 10,000: did you mean \"fastest\"?",
        ),
        (
            &["parallel.pipeline=2", "parallel.schedule=interleaved", "train.global_batch_size=24"],
            "--set parallel.schedule=interleaved: parallel.schedule = \"interleaved\" with the 3 \
             micro-batches of train.global_batch_size = 24 over \
             parallel.data = 1: interleaved: 3 micro-batches are not a multiple of 2 ranks",
        ),
        (
            &["parallel.chunks=3"],
            "--set parallel.chunks=3: parallel.chunks belongs to parallel.schedule = \"interleaved\", and \
             parallel.schedule is \"1f1b\"",
        ),
    ];
    for (overrides, expected) in table {
        assert_eq!(refusal(LEAST, overrides), expected);
    }
}

#[test]
fn recomputation_that_does_not_suit_the_model_is_refused() {
    let table = [
        (
            "recompute = \"blocks\"\n",
            "2: memory.recompute = \"blocks\" is not \"none\" or \"block\" or \"auto\" or an integer from 1 \
             to 10,000: did \
             you mean \"block\"?",
        ),
        (
            "recompute = 0\n",
            "2: memory.recompute = 0 is not \"none\" or \"block\" or \"auto\" or an integer from 1 to 10,000",
        ),
        (
            "recompute = true\n",
            "2: memory.recompute takes \"none\" or \"block\" or \"auto\" or an integer from 1 to 10,000, not \
             the boolean true",
        ),
        ("recompute = 5\n", "2: memory.recompute = 5 is more segments than the model's 4 layers make"),
        (
            "recompute_layers = 1\n",
            "2: memory.recompute_layers = 1 needs a memory.recompute other than \"none\"",
        ),
        (
            "recompute = 2\nrecompute_layers = 5\n",
            "2: memory.recompute_layers = 5 is more than the model's 4 layers",
        ),
        (
            "recompute = 3\nrecompute_layers = 2\n",
            "2: memory.recompute = 3 is more segments than memory.recompute_layers = 2 make",
        ),
        (
            "recompute = \"auto\"\nrecompute_layers = 2\n",
            "2: memory.recompute = \"auto\" chooses the layers itself, and memory.recompute_layers = 2 is \
             set",
        ),
    ];
    for (text, expected) in table {
        let refused = refusal(&format!("[memory]\n{text}{LEAST}"), &[]);
        assert_eq!(refused, format!("quick.toml:{expected}"));
    }
}

#[test]
fn an_emptied_cache_with_another_way_to_return_or_keep_memory_is_refused() {
    let table: [(&[&str], &str); 2] = [
        (
            &["memory.empty_cache_every=5", "memory.preallocate=true"],
            "--set memory.preallocate=true: memory.preallocate = true keeps memory that \
             memory.empty_cache_every = 5 returns: use one of them",
        ),
        (
            &["memory.empty_cache_every=5", "memory.allocator='garbage_collection_threshold:0.5'"],
            "--set memory.empty_cache_every=5: memory.empty_cache_every = 5 and garbage_collection_threshold \
             in memory.allocator both return idle memory: use one of them",
        ),
    ];
    for (overrides, expected) in table {
        assert_eq!(refusal(LEAST, overrides), expected);
    }
}

#[test]
fn the_sources_of_a_mixture_are_refused_for_their_own_reasons() {
    for (source, expected) in [
        ("{paths = ['a'], wieght = 1}", "data.mixture: source 1: unknown key wieght: did you mean weight?"),
        ("{paths = ['a'], weight = 0}", "data.mixture: source 1: weight = 0 is not a positive number"),
        ("{paths = ['a'], weight = 'b'}", "data.mixture: source 1: weight = \"b\" is not a positive number"),
        ("{paths = 'a'}", "data.mixture: source 1: paths = \"a\" is not a list of strings"),
        ("{paths = ['a']}, {weight = 1}", "data.mixture: source 2: it has no paths"),
        ("{paths = ['a']}, 'b'", "data.mixture: source 2: it is no table"),
    ] {
        let refused = refusal(LEAST, &[&format!("data.mixture=[{source}]"), "data.paths=[]"]);
        assert!(refused.contains(expected), "{refused}\n{expected}");
    }
}
