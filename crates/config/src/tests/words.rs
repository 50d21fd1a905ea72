//! Words of other tools: refused with ours.

use super::*;

/// The words of PEFT, of torchtitan and of Hugging Face's Trainer.
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
    ];
    for (text, expected) in table {
        let refused = refusal(text, &[]);
        assert!(refused.contains(expected), "{text}: {refused}");
    }
}
