"""The training step of benches/step.rs in PyTorch, eager, on the CPU.

python3 step.py LAYERS HEADS WIDTH CONTEXT VOCABULARY MICRO_BATCH MICRO_BATCHES STEPS WARM_UP
prints PyTorch's version and the median step in seconds.
"""

import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

layers, heads, width, context, vocabulary, micro_batch, micro_batches, steps, warm_up = map(int, sys.argv[1:])


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
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(mixed.transpose(1, 2).reshape(batch, time_, width))
        return x + self.mlp_proj(F.gelu(self.mlp_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.t()
        return F.cross_entropy(logits.view(-1, vocabulary), targets.reshape(-1))


torch.manual_seed(1)
model = Gpt()
for parameter in model.parameters():
    if parameter.dim() == 2:
        nn.init.normal_(parameter, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
times = []
for step in range(warm_up + steps):
    tokens = torch.randint(vocabulary, (micro_batches, micro_batch, context + 1))
    began = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    for part in tokens:
        (model(part[:, :-1], part[:, 1:]) / micro_batches).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step >= warm_up:
        times.append(time.perf_counter() - began)
print(torch.__version__, statistics.median(times))
