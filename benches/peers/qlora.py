"""A step of QLoRA in Plimsoll and in transformers with PEFT and bitsandbytes, one after the other on one machine.

    python3 benches/peers/qlora.py --plimsoll target/release/plimsoll [--model llama3-8b] [--context 4096] [--rank 16]
        [--micro-batch-size 1] [--device cuda|cpu] [--set model.KEY=N] [--steps 20] [--warm-up 5] [--warm-up-seconds 5] [--json]

The shape of a Llama with random weights, whose linear layers but the head are in NF4 with double quantisation, adapters of all of
them, blocks recomputed (gradient checkpointing), AdamW (fused), clipping at 1.0, bf16 on a GPU. The head's scores are computed in
eight pieces here (model.loss_pieces); transformers compute all of them at once.
"""

import argparse
import functools
import json
import pathlib
import subprocess
import sys

import llama
import step
import timing

# Sizes of a Llama by the names of transformers.
NAMES = {
    "layers": "num_hidden_layers", "heads": "num_attention_heads", "key_value_heads": "num_key_value_heads",
    "width": "hidden_size", "feed_forward": "intermediate_size", "vocabulary": "vocab_size",
    "context": "max_position_embeddings", "norm_epsilon": "rms_norm_eps",
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", help="the program; without it the others are measured alone")
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="model.KEY=N", help="another size in both")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--warm-up-seconds", type=float, help="at least [default: 5 on a GPU, else 0]")
    parser.add_argument("--json", action="store_true", help="also print a line of JSON")
    given = parser.parse_args()
    if given.warm_up_seconds is None:
        given.warm_up_seconds = 5.0 if given.device == "cuda" else 0.0
    given.gpus = 1
    return given


def sizes(given):
    own = {key.removeprefix("model."): int(value) for key, value in (size.split("=") for size in given.set)}
    return llama.sizes(step.CONFIGS / f"{given.model}.toml") | {"context": given.context} | own


def model(torch, given, size):
    """A quantised model of transformers with PEFT's adapters."""
    import bitsandbytes
    import peft
    import transformers

    rope = {"rope_type": "default", "rope_theta": size["rope_theta"]}
    config = transformers.LlamaConfig(rope_parameters=rope, **{NAMES[key]: value for key, value in size.items() if key in NAMES})
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    with torch.device(given.device):
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    linear = [name for name, module in made.named_modules() if isinstance(module, torch.nn.Linear) and name != "lm_head"]
    for name in linear:
        plain = made.get_submodule(name)
        coded = bitsandbytes.nn.Linear4bit(
            plain.in_features, plain.out_features, bias=False, compute_dtype=dtype, compress_statistics=True, quant_type="nf4",
            device="meta")
        weight = bitsandbytes.nn.Params4bit(
            plain.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4", module=coded)
        coded.weight = weight.to(given.device)
        made.set_submodule(name, coded)
        del plain, weight
    made.is_loaded_in_4bit = True
    made.config.use_cache = False
    made.gradient_checkpointing_enable({"use_reentrant": False})
    made.enable_input_require_grads()
    lora = peft.LoraConfig(r=given.rank, lora_alpha=given.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    made = peft.get_peft_model(made, lora)
    made.train()
    return made


def peers(given):
    """Seconds of the median step, and the peaks of the allocator."""
    import torch

    size = sizes(given)
    made = model(torch, given, size)
    trained = [parameter for parameter in made.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    on_gpu = given.device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def step_of_peers():
        tokens = torch.randint(size["vocabulary"], (given.micro_batch_size, given.context), device=given.device)
        with torch.autocast(given.device, torch.bfloat16, enabled=on_gpu):
            loss = made(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timing.measured(torch, given, 1, step_of_peers)


def plimsoll(given):
    sets = [f"lora.rank={given.rank}", "lora.base=nf4", "memory.recompute=block", "model.loss_pieces=8"]
    own = argparse.Namespace(**vars(given) | {"set": [f"model.context={given.context}", *given.set, *sets]})
    return step.plimsoll(own)


def main():
    given = arguments()
    tokens = given.micro_batch_size * given.context

    line = functools.partial(timing.line, tokens)
    ours = []

    def own(when):
        seconds, answer = plimsoll(given)
        ours.append(seconds)
        line(f"Plimsoll, {when}", seconds, answer["peak_allocated_bytes"], answer["peak_reserved_bytes"])

    if given.plimsoll:
        own("before")
    # In a process of its own: its memory is then its own too.
    command = [sys.executable, "-c", CHILD.format(folder=str(pathlib.Path(__file__).parent))]
    found = subprocess.run(command, input=json.dumps(vars(given)), check=True, stdout=subprocess.PIPE, text=True)
    seconds, (allocated, reserved) = json.loads(found.stdout.splitlines()[-1])
    if given.plimsoll:
        own("after")
    line("transformers and PEFT", seconds, allocated, reserved, max(ours, default=None))
    if given.json:
        peaks = {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved}
        print(json.dumps({"variant": "qlora", "tokens_per_second": tokens / seconds} | peaks))


CHILD = """
import argparse, json, sys
sys.path.insert(0, {folder!r})
import qlora
print(json.dumps(qlora.peers(argparse.Namespace(**json.load(sys.stdin)))))
"""

if __name__ == "__main__":
    main()
