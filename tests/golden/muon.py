"""Records what PyTorch's Muon computes for a small network of five linear layers.

The hidden matrices are updated by torch.optim.Muon, the biases and the last layer by AdamW.

Usage: python3 muon.py muon.safetensors        (PyTorch 2.11, on a CPU)
"""

import sys

import torch
from safetensors.torch import save_file

SIZES = [12, 64, 48, 80, 56, 10]
STEPS = 20


def network(weights):
    layers = [torch.nn.Linear(i, o) for i, o in zip(SIZES, SIZES[1:])]
    for index, layer in enumerate(layers):
        layer.weight.data.copy_(weights[f"init.{index}.weight"])
        layer.bias.data.copy_(weights[f"init.{index}.bias"])
    return layers


def forward(layers, x):
    for layer in layers[:-1]:
        x = torch.nn.functional.gelu(layer(x), approximate="tanh")
    return layers[-1](x)


def main(path):
    torch.manual_seed(7)
    tensors = {}
    for index, (i, o) in enumerate(zip(SIZES, SIZES[1:])):
        bound = i**-0.5
        tensors[f"init.{index}.weight"] = torch.empty(o, i).uniform_(-bound, bound)
        tensors[f"init.{index}.bias"] = torch.empty(o).uniform_(-bound, bound)
    tensors["x"] = torch.randn(32, SIZES[0])
    tensors["y"] = torch.randn(32, SIZES[-1])
    for name, adjust in [("spectral", "original"), ("rms", "match_rms_adamw")]:
        layers = network(tensors)
        matrices = [layer.weight for layer in layers[:-1]]
        rest = [layer.bias for layer in layers] + [layers[-1].weight]
        muon = torch.optim.Muon(
            matrices, lr=0.01, weight_decay=0.1, momentum=0.95, nesterov=True, adjust_lr_fn=adjust
        )
        adamw = torch.optim.AdamW(rest, lr=0.001, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
        losses = []
        for step in range(1, STEPS + 1):
            loss = torch.nn.functional.mse_loss(forward(layers, tensors["x"]), tensors["y"])
            losses.append(loss.item())
            muon.zero_grad()
            adamw.zero_grad()
            loss.backward()
            muon.step()
            adamw.step()
            if step in (1, STEPS):
                for index, layer in enumerate(layers):
                    tensors[f"{name}.{step}.{index}.weight"] = layer.weight.detach().clone()
                    tensors[f"{name}.{step}.{index}.bias"] = layer.bias.detach().clone()
        tensors[f"{name}.losses"] = torch.tensor(losses)
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)


if __name__ == "__main__":
    main(sys.argv[1])
