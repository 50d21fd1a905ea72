"""Sampling of Llama 3 with random weights in Plimsoll and in transformers, one after the other, and the ratio.

    python3 benches/peers/generate.py --plimsoll target/release/plimsoll [--model llama3-1b] [--batch 1,64]
        [--prompt-tokens 128] [--new-tokens 256] [--rounds 3] [--device cuda|cpu]

transformers generate with their static cache, for which generate() calls torch.compile on a GPU itself; in bf16 on a GPU, f32 on
a CPU. Both draw tokens at temperature 1. Times are from the prompts to the last token, the median of the rounds after one that
compiles. Plimsoll is measured before and after; the slower of its two runs is the one that is compared.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import time
import tomllib

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "launch" / "configs"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", help="the program; without it transformers are measured alone")
    parser.add_argument("--model", default="llama3-1b", choices=["llama3-1b", "llama3-8b"])
    parser.add_argument("--batch", default="1,64")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    return parser.parse_args()


def plimsoll(given, batch):
    command = [given.plimsoll, "bench", "sample", "--json", "--model", given.model, "--device", given.device]
    command += ["--batch", str(batch), "--prompt-tokens", str(given.prompt_tokens)]
    command += ["--new-tokens", str(given.new_tokens), "--rounds", str(given.rounds)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peer(given):
    """Returns a function from a batch to the median seconds of a generation."""
    import torch
    import transformers

    sizes = tomllib.loads((CONFIGS / f"{given.model}.toml").read_text())["model"]
    config = transformers.LlamaConfig(
        hidden_size=sizes["width"],
        intermediate_size=sizes["feed_forward"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["key_value_heads"],
        vocab_size=sizes["vocabulary"],
        max_position_embeddings=given.prompt_tokens + given.new_tokens,
        tie_word_embeddings=sizes.get("tied", False),
    )
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    torch.set_default_dtype(dtype)
    with torch.device(given.device):
        model = transformers.LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)

    def wait():
        if given.device == "cuda":
            torch.cuda.synchronize()

    def seconds(batch):
        prompts = torch.randint(0, config.vocab_size, (batch, given.prompt_tokens), device=given.device)
        options = {
            "attention_mask": torch.ones_like(prompts),
            "max_new_tokens": given.new_tokens,
            "min_new_tokens": given.new_tokens,
            "do_sample": True,
            "top_k": 0,
            "eos_token_id": None,
            "pad_token_id": 0,
            "cache_implementation": "static",
        }
        times = []
        for _ in range(given.rounds + 2):
            wait()
            began = time.perf_counter()
            model.generate(prompts, **options)
            wait()
            times.append(time.perf_counter() - began)
        return statistics.median(times[2:])

    return seconds


def main():
    given = arguments()
    for module, package in [("torch", "PyTorch"), ("transformers", "transformers")]:
        if importlib.util.find_spec(module) is None:
            sys.exit(f"generate.py: {package} is not installed for {sys.executable}: pip install {module}")
    batches = [int(batch) for batch in given.batch.split(",")]
    before = {batch: plimsoll(given, batch) for batch in batches} if given.plimsoll else {}
    seconds = peer(given)
    theirs = {batch: seconds(batch) for batch in batches}
    for batch in batches:
        rate = batch * given.new_tokens / theirs[batch]
        line = f"{given.model}, batch {batch}: transformers {rate:,.0f} tokens/s"
        if given.plimsoll:
            found = [before[batch], plimsoll(given, batch)]
            ours = max(found, key=lambda one: one["seconds"])
            share = ours["bandwidth_share"]
            bandwidth = f", {100 * share:.0f} % of the memory bandwidth in a step" if share else ""
            line += f", plimsoll {ours['tokens_per_second']:,.0f} tokens/s{bandwidth}; ratio {theirs[batch] / ours['seconds']:.2f}"
        print(line)


main()
