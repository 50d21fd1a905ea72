//! Tests of other tools' names for keys, which are refused with the equivalent here.

use super::*;

#[test]
fn words_of_other_tools_are_refused_with_ours() {
    let table = [
        ("[lora]\nr = 8\n", "unknown key lora.r: did you mean lora.rank?"),
        ("[lora]\nlora_alpha = 8\n", "unknown key lora.lora_alpha: did you mean lora.alpha?"),
        ("[lora]\nlora_dropout = 0\n", "unknown key lora.lora_dropout: did you mean lora.dropout?"),
        (
            "[lora]\nbnb_4bit_quant_type = \"nf4\"\n",
            "unknown key lora.bnb_4bit_quant_type: did you mean lora.base?",
        ),
        ("[lora]\nuse_rslora = true\n", "unknown key lora.use_rslora: use lora.scaling = \"rslora\""),
        ("[lora]\nloraplus_lr_ratio = 16\n", "did you mean lora.b_learning_rate?"),
        ("[lora]\nmodules_to_save = []\n", "did you mean lora.train_also?"),
        ("[lora]\ntarget_modules = []\n", "unknown key lora.target_modules: did you mean lora.targets?"),
        ("[peft]\nr = 8\n", "unknown section [peft]: did you mean [lora]?"),
        (
            "[parallelism]\ntensor_parallel_degree = 2\n",
            "unknown section [parallelism]: did you mean [parallel]?",
        ),
        ("[training]\nsteps = 2\n", "unknown section [training]: did you mean [train]?"),
        ("[optimizer]\nlr = 2\n", "unknown section [optimizer]: did you mean [optim]?"),
        ("[lr_scheduler]\nwarmup_steps = 2\n", "unknown section [lr_scheduler]: did you mean [optim]?"),
        ("[metrics]\nlog_freq = 2\n", "unknown section [metrics]: did you mean [telemetry]?"),
        (
            "[activation_checkpoint]\nmode = \"full\"\n",
            "unknown section [activation_checkpoint]: did you mean memory.recompute?",
        ),
        ("[compile]\nenable = true\n", "unknown section [compile]: leave it out: "),
        ("[train]\ncompile = true\n", "unknown key train.compile: leave it out: "),
        ("[parallel]\ntensor_parallel_degree = 2\n", "did you mean parallel.tensor?"),
        ("[parallel]\nsequence_parallel = true\n", "parallel.tensor divides the rows between layers too"),
        ("[parallel]\ncontext_parallel = 2\n", "did you mean parallel.context?"),
        ("[parallel]\ncontext_parallel_degree = 2\n", "did you mean parallel.context?"),
        ("[parallel]\nexpert = 2\n", "unknown key parallel.expert: ranks are not divided over experts"),
        ("[model]\nnum_local_experts = 8\n", "did you mean model.experts?"),
        ("[train]\nrouter_aux_loss_coef = 0.1\n", "did you mean train.balance_loss?"),
        ("[parallel]\nfsdp = true\n", "unknown key parallel.fsdp: use parallel.zero_stage = 3"),
        ("[train]\nwandb_project = \"a\"\n", "telemetry.tensorboard = true"),
        ("[train]\nreport_to = \"wandb\"\n", "telemetry.tensorboard = true"),
        ("[train]\nnum_train_epochs = 3\n", "did you mean train.epochs?"),
        ("[train]\nlr_scheduler_type = \"linear\"\n", "did you mean optim.schedule?"),
        ("[train]\nbf16 = true\n", "use precision.compute = \"bf16\""),
        // Hugging Face's Trainer and TRL.
        ("[train]\nmax_seq_length = 2048\n", "did you mean model.context?"),
        ("[train]\nwarmup_epochs = 1\n", "use optim.warmup_steps, a number of steps, or optim.warmup_ratio"),
        ("[train]\nwarmup_fraction = 0.03\n", "optim.warmup_ratio"),
        ("[train]\ncompletion_only_loss = true\n", "use data.train_on of data.kind = \"chat\""),
        ("[data]\nroles_to_train = [\"assistant\"]\n", "did you mean data.train_on?"),
        ("[data]\ntrain_on_inputs = true\n", "use data.train_on of data.kind = \"chat\""),
        ("[train]\nmask_history = true\n", "write \"weight\": 0 in the messages of earlier answers"),
        ("[train]\nsave_strategy = \"epoch\"\n", "use checkpoint.every, in steps, or checkpoint.minutes"),
        (
            "[train]\nper_device_eval_batch_size = 4\n",
            "validations have micro-batches of train.micro_batch_size",
        ),
        ("[train]\nload_best_model_at_end = true\n", "did you mean checkpoint.keep_best?"),
        ("[train]\noptim = \"adamw_torch\"\n", "did you mean optim.kind?"),
        ("[train]\nbeta = 0.1\n", "did you mean preference.beta?"),
        // DeepSpeed.
        ("[train]\ntrain_batch_size = 16\n", "did you mean train.global_batch_size?"),
        ("[train]\ntrain_micro_batch_size_per_gpu = 16\n", "did you mean train.micro_batch_size?"),
        ("[train]\ngradient_clipping = 1.0\n", "did you mean optim.clip_norm?"),
        ("[zero_optimization]\nstage = 2\n", "unknown section [zero_optimization]: did you mean [parallel]?"),
        // Axolotl, LLaMA-Factory, unsloth.
        ("[train]\nsequence_len = 4096\n", "did you mean model.context?"),
        ("[train]\nsample_packing = true\n", "did you mean data.pack_documents?"),
        ("[data]\nval_set_size = 0.05\n", "did you mean data.validation_fraction?"),
        ("[model]\nbase_model = \"m\"\n", "did you mean model.from?"),
        ("[train]\nadapter = \"qlora\"\n", "use lora.rank, which is above 0 for adapters, and lora.base"),
        ("[data]\ndatasets = []\n", "did you mean data.paths?"),
        ("[model]\nflash_attention = true\n", "leave it out: attention never stores its matrix"),
        ("[train]\ncutoff_len = 2048\n", "did you mean model.context?"),
        ("[train]\nfinetuning_type = \"lora\"\n", "use lora.rank for adapters"),
        ("[train]\nrandom_state = 3407\n", "did you mean train.seed?"),
        // Megatron-LM, also as on its command line.
        ("[train]\ntrain-iters = 100\n", "did you mean train.steps?"),
        ("[train]\nmicro-batch-size = 4\n", "did you mean train.micro_batch_size?"),
        ("[model]\nnum-query-groups = 8\n", "did you mean model.key_value_heads?"),
        ("[optim]\nlr_warmup_fraction = 0.1\n", "did you mean optim.warmup_ratio?"),
        // Lightning and others.
        ("[train]\nmax_epochs = 3\n", "did you mean train.epochs?"),
        ("[train]\naccumulate_grad_batches = 3\n", "use train.global_batch_size"),
        ("[train]\neval_every = 5\n", "did you mean train.validate_every?"),
        ("[train]\nsave_every = 5\n", "did you mean checkpoint.every?"),
        ("[train]\nstage = \"sft\"\n", "use data.kind for what is learnt"),
        ("[optim]\nclip = 1.0\n", "did you mean optim.clip_norm?"),
        ("[optim]\nname = \"adamw\"\n", "did you mean optim.kind?"),
        ("[train]\niterations = 3\n", "did you mean train.steps?"),
        // The same name here means something else.
        ("[train]\ndevice = \"cuda\"\n", "use the option --device"),
        ("[data]\ndataset_text_field = \"text\"\n", "use `plimsoll tokenize --text-key`"),
        ("[trainer]\nprecision = \"bf16\"\n", "unknown section [trainer]: did you mean [train]?"),
    ];
    for (text, expected) in table {
        let refused = refusal(text, &[]);
        assert!(refused.contains(expected), "{text}: {refused}");
    }
    for (set, expected) in [
        ("zero_optimization.offload_optimizer.device=cpu", "use optim.offload = true"),
        ("zero_optimization.offload_param.device=cpu", "use memory.offload_weights = true"),
        ("optimizer.type=AdamW", "did you mean optim.kind?"),
        ("fp16.enabled=true", "did you mean [precision]?"),
        ("train.device=cuda", "use the option --device"),
    ] {
        let refused = refusal(LEAST, &[set]);
        assert!(refused.contains(expected), "{set}: {refused}");
    }
}

/// Suggestions are made for misspelt names only, not for merely similar ones.
#[test]
fn suggestions_have_the_meaning_of_the_name() {
    for (text, hint) in [
        ("[train]\nglobal_batchsize = 8\n", ": did you mean train.global_batch_size?"),
        ("[train]\nstpes = 8\n", ": did you mean train.steps?"),
        ("[optim]\nlearn_rate = 8\n", ": did you mean optim.learning_rate?"),
        ("[optim]\nweigth_decay = 8\n", ": did you mean optim.weight_decay?"),
        ("[modle]\nlayers = 8\n", ": did you mean [model]?"),
        // Names in several sections.
        ("[train]\nevery = 8\n", ": did you mean telemetry.every or checkpoint.every?"),
        ("[train]\ndropout = 0.1\n", ": did you mean model.dropout or lora.dropout?"),
        // Similar names with other meanings.
        ("[train]\nsolve_every = 8\n", ""),
        ("[train]\ntest_batch_size = 8\n", ""),
        ("[train]\nmacro_steps = 8\n", ""),
        ("[data]\npack_messages = 8\n", ""),
        ("[parallel]\nzero_page = 8\n", ""),
    ] {
        let refused = refusal(text, &[]);
        let end = refused.split_once("unknown ").unwrap().1;
        assert_eq!(
            end.split_once(": ").map_or("", |(_, hint)| hint),
            hint.trim_start_matches(": "),
            "{refused}"
        );
    }
}

/// Advice about other trainers' names refers only to existing keys.
#[test]
fn advice_names_keys_that_exist() {
    let keys = all_keys();
    let is_key = |path: &str| keys.iter().any(|key| key.path == path);
    let is_section = |name: &str| keys.iter().any(|key| format!("[{}]", key.section) == name);
    let mut names = std::collections::BTreeSet::new();
    for (name, here) in crate::foreign::FOREIGN.iter().copied().flatten() {
        assert!(names.insert(*name), "{name} is listed twice");
        assert!(here.contains(' ') || is_key(here) || is_section(here), "{name}: there is no {here}");
    }
}
