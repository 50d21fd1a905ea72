"""Writes `block_codes.safetensors` and `block_codes.json` beside this file: matrices as bitsandbytes encodes them in
NF4 with double quantisation, and losses of recorded models with weights that it has encoded and decoded.
Usage: python block_codes.py, with torch, safetensors, transformers 5.17 and bitsandbytes 0.50.2 without its library
of C++ code for the CPU (libbitsandbytes_cpu.so): that finds the nearest 8-bit fraction by a coarse table, while the
library's PyTorch code, which then runs, and its code for GPUs find it exactly. No GPU is needed."""

import json
from pathlib import Path

import bitsandbytes.functional as bnb
import numpy
import torch
import transformers
from bitsandbytes.cextension import ErrorHandlerMockBNBNativeLibrary, lib
from safetensors.torch import save_file
from transformers.pytorch_utils import Conv1D

CONTEXT, SEQUENCES = 96, 8
HERE = Path(__file__).parent
assert isinstance(lib, ErrorHandlerMockBNBNativeLibrary), "remove libbitsandbytes_cpu.so"


def matrices():
    """Less than a group of scales, one group and a part, and blocks of zeros, outliers and small values."""
    torch.manual_seed(42)
    for name, shape in {"short": (5, 128), "long": (96, 256)}.items():
        x = 0.02 * torch.randn(shape)
        x[1, :64] = 0
        x[2, 3] = 2.5
        x[3, 64:128] *= 1e-6
        yield name, x.bfloat16().float()


def coded(x):
    codes, state = bnb.quantize_4bit(x, blocksize=64, compress_statistics=True, quant_type="nf4")
    return codes, state


def tables():
    tensors = {"scale_code": bnb.create_dynamic_map(), "nf4": bnb.get_4bit_type("nf4", device="cpu")}
    for name, x in matrices():
        codes, state = coded(x)
        decoded = bnb.dequantize_4bit(codes, state)
        tensors |= {f"{name}.x": x.bfloat16(), f"{name}.codes": codes.flatten(), f"{name}.scales": state.absmax,
                    f"{name}.most": state.state2.absmax, f"{name}.mean": state.offset.reshape(1),
                    f"{name}.decoded": decoded, f"{name}.bf16": decoded.bfloat16()}
    save_file(tensors, HERE / "block_codes.safetensors")


def loss(model, inputs, targets):
    logits = model(inputs).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()


@torch.no_grad()
def losses(name):
    folder = HERE / "models" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    stored = numpy.fromfile(folder / "tokens.bin", numpy.uint16, offset=1024).astype(numpy.int64)
    count = SEQUENCES * CONTEXT
    tokens = [torch.from_numpy(stored[at:at + count]).view(SEQUENCES, CONTEXT) for at in (0, 1)]
    plain = loss(model, *tokens)
    for layer, module in model.named_modules():
        if layer.endswith("lm_head") or not isinstance(module, (torch.nn.Linear, Conv1D)):
            continue
        turn = (lambda w: w.T.contiguous()) if isinstance(module, Conv1D) else (lambda w: w)
        module.weight.copy_(turn(bnb.dequantize_4bit(*coded(turn(module.weight.data)))))
    return {"plain": plain, "nf4": loss(model, *tokens)}


tables()
expected = {name: losses(name) for name in ("llama", "gpt2", "qwen3")}
(HERE / "block_codes.json").write_text(json.dumps(expected, indent=1) + "\n")
