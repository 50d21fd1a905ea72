"""The same training step in Plimsoll and in PyTorch, one after the other on one machine, and the ratios.

    python3 benches/peers/step.py --plimsoll target/release/plimsoll [--model gpt2-124m] [--micro-batch-size 64]
        [--device cuda|cpu] [--gpus N] [--variants eager,compile,graphs,float8] [--steps 20] [--warm-up 5]
        [--warm-up-seconds 5] [--set model.KEY=VALUE] [--json]

A GPT-2, a Llama or a Gemma 3 on random tokens, with dropout if its configuration has it, one micro-batch a step and GPU, AdamW (fused),
clipping at 1.0. On a GPU both compute in bf16 with f32 master weights (PyTorch: autocast); on the CPU both in f32. On several GPUs
PyTorch has FSDP2 for a Llama (llama.py) and DistributedDataParallel for a GPT-2, and the optimizer is sharded here, with
gradients in bf16. The variant `graphs` of a GPT-2 is torch.compile with CUDA graphs (mode="reduce-overhead"), `float8` of a Llama
torch.compile with torchao's float8 linear layers. Plimsoll is measured
before and after PyTorch: the machine may have changed in between, and the slower of its two runs is the one that is compared.
"""

import argparse
import functools
import importlib.util
import json
import pathlib
import subprocess
import sys
import tomllib

import llama
import timing

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "launch" / "configs"
# As in `plimsoll bench step`.
MICRO_BATCHES = {"small": 32, "gpt2-124m": 64, "gpt2-355m": 32, "gpt2-1558m": 16, "gpt-shakespeare": 64}
LLAMAS = {"llama3-1b": 4, "llama3-8b": 1, "gemma3-1b": 4, "qwen3-30b-a3b": 4}


# The keys of `small`, which are the defaults.
SMALL = {"layers": 4, "heads": 4, "width": 128, "context": 128, "vocabulary": 256}


def own_sizes(given):
    """The sizes of --set."""
    pairs = (size.removeprefix("model.").split("=") for size in given.set)
    return {key: float(value) if key == "dropout" else int(value) for key, value in pairs}


def sizes(given):
    """Layers, heads, width, context, vocabulary and dropout of a GPT."""
    table = SMALL
    if given.model != "small":
        table = tomllib.loads((CONFIGS / f"{given.model}.toml").read_text())["model"]
    table = {"dropout": 0.0} | table | own_sizes(given)
    return tuple(table[key] for key in ("layers", "heads", "width", "context", "vocabulary", "dropout"))


def llama_sizes(given):
    return llama.sizes(CONFIGS / f"{given.model}.toml") | own_sizes(given)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", help="the program; without it PyTorch is measured alone")
    parser.add_argument("--model", choices=MICRO_BATCHES | LLAMAS, default="gpt2-124m")
    parser.add_argument("--micro-batch-size", type=int)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="model.KEY=VALUE", help="another size or dropout in both")
    parser.add_argument("--variants", default="eager,compile")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--warm-up-seconds", type=float, help="at least [default: 5 on a GPU, else 0]")
    parser.add_argument("--json", action="store_true", help="also print a line of JSON for each variant of PyTorch")
    given = parser.parse_args()
    if given.warm_up_seconds is None:
        given.warm_up_seconds = 5.0 if given.device == "cuda" else 0.0
    given.micro_batch_size = given.micro_batch_size or (MICRO_BATCHES | LLAMAS)[given.model]
    if given.gpus > 1 and given.device == "cpu":
        parser.error("--gpus: several GPUs are not the CPU")
    return given


def plimsoll(given):
    """Seconds of the median step, and the whole answer."""
    command = [given.plimsoll, "bench", "step" if given.gpus == 1 else "scaling", "--json", "--model", given.model]
    if given.gpus > 1:
        command += ["--weak", "--ranks", str(given.gpus), "--reduction", "tree", "--shard", "--set", "precision.gradients=bf16"]
    for size in given.set:
        command += ["--set", size]
    command += ["--device", given.device]
    command += ["--micro-batch-size", str(given.micro_batch_size), "--steps", str(given.steps), "--warm-up", str(given.warm_up)]
    command += ["--warm-up-seconds", str(given.warm_up_seconds)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    if given.gpus == 1:
        return answer["seconds"], answer
    peaks = {key: max(rank[key] for rank in answer["by_rank"]) for key in ("peak_allocated_bytes", "peak_reserved_bytes")}
    return answer["step_seconds"], {"device": answer["device_model"]} | peaks


def model(torch, layers, heads, width, context, vocabulary, dropout):
    from torch import nn
    from torch.nn import functional as F

    def drop(x, training):
        return F.dropout(x, dropout, training) if dropout else x

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attn_qkv, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, time_, _ = x.shape
            q, k, v = (
                part.view(batch, time_, heads, width // heads).transpose(1, 2)
                for part in self.attn_qkv(self.ln_1(x)).split(width, dim=2)
            )
            dropped = dropout if self.training else 0.0
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropped)
            x = x + drop(self.attn_proj(mixed.transpose(1, 2).reshape(batch, time_, width)), self.training)
            hidden = F.gelu(self.mlp_fc(self.ln_2(x)), approximate="tanh")
            return x + drop(self.mlp_proj(hidden), self.training)

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.ln_f = nn.LayerNorm(width)

        def forward(self, tokens, targets):
            x = drop(self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device)), self.training)
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.ln_f(x), self.wte.weight)
            return F.cross_entropy(logits.view(-1, vocabulary), targets.reshape(-1))

    torch.manual_seed(1)
    gpt = Gpt()
    for parameter in gpt.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    return gpt


def pytorch(given, variant):
    """Seconds of the median step, and the peaks of its allocator."""
    if given.model in LLAMAS:
        return llama.pytorch(given, variant, llama_sizes(given))
    return timing.over_ranks(given, gpt_rank, variant)


def gpt_rank(ranks, given, variant):
    """One of the ranks of a GPT-2, which DistributedDataParallel joins: seconds of its median step and the allocator's peaks."""
    import torch

    layers, heads, width, context, vocabulary, dropout = sizes(given)
    on_gpu = given.device == "cuda"
    gpt = model(torch, layers, heads, width, context, vocabulary, dropout).to(given.device)
    run = gpt
    if ranks > 1:
        here = [torch.cuda.current_device()]
        run = torch.nn.parallel.DistributedDataParallel(gpt, device_ids=here, gradient_as_bucket_view=True)
    if variant in ("compile", "graphs"):
        run = torch.compile(run, mode="reduce-overhead" if variant == "graphs" else None)
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()

    def step():
        if variant == "graphs":
            # The memory of the last step's results may be used again.
            torch.compiler.cudagraph_mark_step_begin()
        tokens = torch.randint(vocabulary, (given.micro_batch_size, context + 1), device=given.device)
        with torch.autocast(given.device, torch.bfloat16, enabled=on_gpu):
            loss = run(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return timing.measured(torch, given, ranks, step)


def main():
    given = arguments()
    variants = given.variants.split(",")
    if given.model in LLAMAS and "graphs" in variants:
        sys.exit("step.py: --variants graphs is for a GPT-2 alone: a Llama is compiled block by block")
    if given.model not in LLAMAS and "float8" in variants:
        sys.exit("step.py: --variants float8 is for a Llama alone")
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"step.py: PyTorch is not installed for {sys.executable}: pip install torch")
    context = llama_sizes(given)["context"] if given.model in LLAMAS else sizes(given)[3]
    tokens = given.gpus * given.micro_batch_size * context

    line = functools.partial(timing.line, tokens)
    ours = []

    def own(when):
        seconds, answer = plimsoll(given)
        ours.append(seconds)
        line(f"Plimsoll, {when}", seconds, answer["peak_allocated_bytes"], answer["peak_reserved_bytes"])
        return answer

    if given.plimsoll:
        answer = own("before")
        print(f"on {answer['device']}: {given.model}, micro-batch {given.micro_batch_size}, {given.gpus} of them", flush=True)
    theirs = []
    for variant in filter(None, variants):
        # Each in a process of its own: its memory is then its own too.
        command = [sys.executable, "-c", CHILD.format(folder=str(pathlib.Path(__file__).parent))]
        found = subprocess.run(
            command, input=json.dumps([vars(given), variant]), check=True, stdout=subprocess.PIPE, text=True
        ).stdout.splitlines()[-1]
        theirs.append((variant, *json.loads(found)))
    if given.plimsoll:
        own("after")
    for variant, version, seconds, (allocated, reserved) in theirs:
        line(f"PyTorch {version}, {variant}", seconds, allocated, reserved, max(ours, default=None))
        if given.json:
            peaks = {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved}
            print(json.dumps({"variant": variant, "version": version, "tokens_per_second": tokens / seconds} | peaks))


CHILD = """
import argparse, json, sys
sys.path.insert(0, {folder!r})
import step, torch
given, variant = json.load(sys.stdin)
print(json.dumps([torch.__version__, *step.pytorch(argparse.Namespace(**given), variant)]))
"""

if __name__ == "__main__":
    main()
