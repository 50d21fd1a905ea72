"""Records what PyTorch's Muon computes for a small network of five linear layers, and the same in float64.

The hidden matrices are updated by torch.optim.Muon, the biases and the last layer by AdamW. Iterations in bf16 amplify
the rounding of small singular values, so the float64 run shows how far apart two correct results may be.

Usage: python3 muon.py muon.safetensors        (PyTorch 2.11, on a CPU)
"""

import sys

import torch
from safetensors.torch import save_file

SIZES = [12, 64, 48, 80, 56, 10]
STEPS = 20


class ExactMuon(torch.optim.Optimizer):
    """Muon with Newton-Schulz iterations in the type of the weights."""

    def __init__(self, matrices, rms):
        super().__init__(matrices, {})
        self.rms = rms

    @torch.no_grad()
    def step(self):
        a, b, c = 3.4445, -4.775, 2.0315
        for weight in self.param_groups[0]["params"]:
            mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
            mean.lerp_(weight.grad, 1 - 0.95)
            x = weight.grad.lerp(mean, 0.95)
            rows, columns = x.shape
            x = x.T if rows > columns else x
            x = x / x.norm().clamp(min=1e-7)
            for _ in range(5):
                gram = x @ x.T
                x = a * x + (b * gram + c * gram @ gram) @ x
            x = x.T if rows > columns else x
            scale = 0.2 * max(rows, columns) ** 0.5 if self.rms else max(1, rows / columns) ** 0.5
            weight.mul_(1 - 0.01 * 0.1).add_(x, alpha=-0.01 * scale)


def network(weights, dtype):
    layers = [torch.nn.Linear(i, o, dtype=dtype) for i, o in zip(SIZES, SIZES[1:])]
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
    tensors["x"] = torch.randn(256, SIZES[0])
    tensors["y"] = torch.randn(256, SIZES[-1])
    for name, dtype, adjust in [
        ("spectral", torch.float32, "original"),
        ("rms", torch.float32, "match_rms_adamw"),
        ("exact.spectral", torch.float64, None),
        ("exact.rms", torch.float64, None),
    ]:
        train(tensors, name, dtype, adjust)
    save_file({key: value.float().contiguous() for key, value in tensors.items()}, path)


def train(tensors, name, dtype, adjust):
    x, y = tensors["x"].to(dtype), tensors["y"].to(dtype)
    layers = network(tensors, dtype)
    matrices = [layer.weight for layer in layers[:-1]]
    rest = [layer.bias for layer in layers] + [layers[-1].weight]
    if adjust is None:
        muon = ExactMuon(matrices, name.endswith("rms"))
    else:
        muon = torch.optim.Muon(
            matrices, lr=0.01, weight_decay=0.1, momentum=0.95, nesterov=True, adjust_lr_fn=adjust
        )
    adamw = torch.optim.AdamW(rest, lr=0.001, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for step in range(1, STEPS + 1):
        loss = torch.nn.functional.mse_loss(forward(layers, x), y)
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


if __name__ == "__main__":
    main(sys.argv[1])
