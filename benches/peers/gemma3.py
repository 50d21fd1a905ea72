"""A Gemma 3 in PyTorch for step.py, whose step is in llama.py: blocks with norms before and after, windows in most layers.

Attention is what is fastest at the model's sizes, forward and backward, of FlexAttention with a block mask (of the window, in layers
that have one) and, in layers without a window, each backend of scaled_dot_product_attention; the choice is printed to stderr. The
residual stream is bf16 on a GPU, as in Plimsoll.
"""

import sys

import rotary

# The type of a layer with a window.
SLIDING = "sliding_attention"


def model(torch, size):
    from torch import nn
    from torch.nn import functional as F

    width, heads, kv_heads, head = size["width"], size["heads"], size["key_value_heads"], size["head_width"]

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=False)

    class Norm(nn.Module):
        """An RMS norm whose weight is stored less 1."""

        def __init__(self, columns):
            super().__init__()
            self.less_one = nn.Parameter(torch.zeros(columns))

        def forward(self, x):
            wide = x.float()
            normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + size["norm_epsilon"])
            return (normed * (1.0 + self.less_one)).to(x.dtype)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(Norm(width) for _ in range(4))
            self.query_norm, self.key_norm = Norm(head), Norm(head)
            self.query, self.out = linear(width, heads * head), linear(heads * head, width)
            self.key, self.value = linear(width, kv_heads * head), linear(width, kv_heads * head)
            self.gate, self.up = linear(width, size["feed_forward"]), linear(width, size["feed_forward"])
            self.down = linear(size["feed_forward"], width)

        def forward(self, x, cos, sin):
            rows, columns, _ = x.shape
            normed = self.norms[0](x)
            query, key, value = (
                project(normed).view(rows, columns, -1, head).transpose(1, 2)
                for project in (self.query, self.key, self.value)
            )
            query = rotary.rotated(torch, self.query_norm(query), cos, sin)
            key = rotary.rotated(torch, self.key_norm(key), cos, sin)
            mixed = self.attention(query, key, value)
            x = x + self.norms[1](self.out(mixed.transpose(1, 2).reshape(rows, columns, -1)))
            normed = self.norms[2](x)
            return x + self.norms[3](self.down(F.gelu(self.gate(normed), approximate="tanh") * self.up(normed)))

    class Gemma3(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(size["vocabulary"], width)
            self.blocks = nn.ModuleList(Block() for _ in range(size["layers"]))
            self.norm = Norm(width)

        def prepare(self, rows, context, device, dtype):
            """Makes the rotary tables and chooses the attention of layers with a window and without."""
            self.dtype = dtype
            types = size["layer_types"]
            self.windowed = [types[i % len(types)] == SLIDING for i in range(size["layers"])]
            theta = {False: size["rope_theta"], True: size["window_rope_theta"]}
            self.tables = {key: rotary.tables(torch, base, head, context, device, dtype) for key, base in theta.items()}
            shapes = [(rows, count, context, head) for count in (heads, kv_heads, kv_heads)]
            chosen = {key: fastest(torch, shapes, size["window"] if key else None, device, dtype) for key in theta}
            for block, windowed in zip(self.blocks, self.windowed):
                block.attention = chosen[windowed]

        def forward(self, tokens):
            x = self.embedding(tokens).to(self.dtype) * size["embedding_scale"]
            for block, windowed in zip(self.blocks, self.windowed):
                x = block(x, *self.tables[windowed])
            return F.linear(self.norm(x), self.embedding.weight)

    return Gemma3()


def candidates(torch, context, window, device):
    """Functions of queries, keys and values, by name; those that cannot run here fail when they are called."""
    from torch.nn.attention import SDPBackend, flex_attention, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def seen(_, __, query, key):
        causal = query >= key
        return causal & (query - key < window) if window else causal

    if device == "cpu":  # FlexAttention has no gradients there
        dense = flex_attention.create_mask(seen, None, None, context, context, device=device)
        return {"mask": lambda *operands: scaled_dot_product_attention(*operands, attn_mask=dense, enable_gqa=True)}
    mask = flex_attention.create_block_mask(seen, None, None, context, context, device=device)

    def flex(query, key, value):
        return flex_attention.flex_attention(query, key, value, block_mask=mask, enable_gqa=True)

    found = {"flex_attention": flex}
    if window:
        return found

    def of(backend, copies):
        def call(query, key, value):
            if copies:
                group = query.shape[1] // key.shape[1]
                key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
            with sdpa_kernel([backend]):
                return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=not copies)

        return call

    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        for copies in (False, True):
            found[f"{backend.name}{' of copied keys' if copies else ''}"] = of(backend, copies)
    return found


def fastest(torch, shapes, window, device, dtype):
    """The candidate whose compiled forward and backward pass takes least."""
    import timing

    operands = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]
    best = None
    for name, call in candidates(torch, shapes[0][2], window, device).items():
        compiled = torch.compile(call, fullgraph=True)

        def both():
            torch.autograd.grad(compiled(*operands).sum(), operands)

        try:
            both()
            milliseconds = timing.timed(both) if device == "cuda" else 0.0
        except Exception as error:
            print(f"{name}: {str(error).splitlines()[0][:90]}", file=sys.stderr)
            continue
        print(f"window {window}, {name}: {milliseconds:.3f} ms forward and backward", file=sys.stderr)
        if best is None or milliseconds < best[0]:
            best = (milliseconds, name, call)
    print(f"window {window}: {best[1]}", file=sys.stderr)
    return best[2]
