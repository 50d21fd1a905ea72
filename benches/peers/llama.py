"""A Llama in PyTorch for step.py: the step of `plimsoll bench step --model llama3-1b` with FSDP2 and torch.compile.

Parameters are f32 masters, computed with in bf16: by autocast on one GPU, by FSDP2's mixed precision on several, which reduces
gradients in f32. Each block is compiled by itself, and so is the loss. The variant `float8` is the compiled one with torchao's
float8 linear layers but the head (a scale for each tensor, and on several GPUs weights gathered as codes). Random tokens, AdamW (fused), clipping at 1.0. Experts are
sorted by a stable sort and multiplied by torch._grouped_mm, with weights cast to bf16 once a pass, as torchtitan's are.
"""

import tomllib

import gemma3
import rotary
import timing

# The sizes that a configuration may leave out.
DEFAULTS = {"rope_theta": 10000.0, "norm_epsilon": 1e-5}


def sizes(path):
    return DEFAULTS | tomllib.loads(path.read_text())["model"]


def model(torch, size):
    from torch import nn
    from torch.nn import functional as F

    width, heads, kv_heads = size["width"], size["heads"], size["key_value_heads"]
    head = size.get("head_width", width // heads)

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=False)

    def norm():
        return nn.RMSNorm(width, size["norm_epsilon"])

    class Experts(nn.Module):
        """A mixture of experts with normalised softmax weights."""

        def __init__(self):
            super().__init__()
            experts, hidden = size["experts"], size["expert_width"]
            self.router = linear(width, experts)
            self.gate_up = nn.Parameter(torch.empty(experts, 2 * hidden, width))
            self.down = nn.Parameter(torch.empty(experts, width, hidden))

        def forward(self, x):
            rows, chosen = x.reshape(-1, width), size["experts_per_token"]
            with torch.autocast(x.device.type, enabled=False):
                scores = F.linear(rows.float(), self.router.weight).softmax(-1)
            weights, choices = scores.topk(chosen, dim=-1)
            weights = weights / weights.sum(-1, keepdim=True)
            order = choices.flatten().argsort(stable=True)
            ends = torch.histc(choices.flatten().float(), size["experts"], 0, size["experts"] - 1).cumsum(0).int()
            kind = torch.bfloat16
            gathered = rows.to(kind)[order // chosen]
            pair = torch._grouped_mm(gathered, self.gate_up.to(kind).transpose(-2, -1), offs=ends)
            gate, up = pair.chunk(2, -1)
            hidden = F.silu(gate) * up * weights.flatten()[order].to(kind)[:, None]
            out = torch._grouped_mm(hidden, self.down.to(kind).transpose(-2, -1), offs=ends)
            back = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=x.device))
            return out[back].view(rows.shape[0], chosen, width).sum(1).view_as(x)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_norm, self.mlp_norm = norm(), norm()
            self.query, self.out = linear(width, heads * head), linear(heads * head, width)
            self.key, self.value = linear(width, kv_heads * head), linear(width, kv_heads * head)
            if "qk_norm" in size:
                self.query_norm, self.key_norm = nn.RMSNorm(head, size["norm_epsilon"]), nn.RMSNorm(head, size["norm_epsilon"])
            if "experts" in size:
                self.experts = Experts()
                return
            self.gate, self.up = linear(width, size["feed_forward"]), linear(width, size["feed_forward"])
            self.down = linear(size["feed_forward"], width)

        def forward(self, x, cos, sin):
            rows, columns, _ = x.shape
            normed = self.attention_norm(x)
            query, key, value = (
                project(normed).view(rows, columns, -1, head).transpose(1, 2)
                for project in (self.query, self.key, self.value)
            )
            if "qk_norm" in size:
                query, key = self.query_norm(query), self.key_norm(key)
            query, key = rotary.rotated(torch, query, cos, sin), rotary.rotated(torch, key, cos, sin)
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(rows, columns, -1))
            normed = self.mlp_norm(x)
            if "experts" in size:
                return x + self.experts(normed)
            return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(size["vocabulary"], width)
            self.blocks = nn.ModuleList(Block() for _ in range(size["layers"]))
            self.norm, self.head = norm(), linear(width, size["vocabulary"])

        def prepare(self, _, context, device, dtype):
            self.cos, self.sin = rotary.tables(torch, size["rope_theta"], head, context, device, dtype)

        def forward(self, tokens):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return self.head(self.norm(x))

    return Llama()


def built(torch, size):
    """The model of a configuration: a Gemma 3 if layers have types."""
    return gemma3.model(torch, size) if "layer_types" in size else model(torch, size)


def sharded(llama, torch, ranks):
    """FSDP2 over the ranks: parameters are gathered in bf16, and gradients reduced in f32."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cuda", (ranks,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in llama.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(llama, mesh=mesh, mp_policy=policy)


def as_float8(llama, ranks):
    """Makes the linear layers but the head multiply codes of torchao."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(enable_fsdp_float8_all_gather=ranks > 1)
    convert_to_float8_training(llama, config=config, module_filter_fn=lambda _, name: "head" not in name)


def rank(ranks, given, variant, size):
    """One of the ranks: seconds of its median step and the peaks of its allocator."""
    import torch
    from torch.nn import functional as F

    on_gpu = given.device == "cuda"
    with torch.device("meta"):
        llama = built(torch, size)
    compiled = variant in ("compile", "float8")
    if variant == "float8":
        as_float8(llama, ranks)
    if compiled:
        for block in llama.blocks:
            block.compile(fullgraph=True)
    if ranks > 1:
        sharded(llama, torch, ranks)
    llama.to_empty(device=given.device)
    with torch.no_grad():
        for name, parameter in llama.named_parameters():
            parameter.normal_(0, 0.02) if parameter.dim() > 1 else parameter.fill_("less_one" not in name)
    llama.prepare(given.micro_batch_size, size["context"], given.device, torch.bfloat16 if on_gpu else torch.float32)
    optimizer = torch.optim.AdamW(llama.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def cross_entropy(logits, targets):
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    loss_of = torch.compile(cross_entropy) if compiled else cross_entropy

    def step():
        tokens = torch.randint(size["vocabulary"], (given.micro_batch_size, size["context"] + 1), device=given.device)
        with torch.autocast(given.device, torch.bfloat16, enabled=on_gpu and ranks == 1):
            logits = llama(tokens[:, :-1].contiguous())
        loss = loss_of(logits, tokens[:, 1:].contiguous())
        del logits
        loss.backward()
        torch.nn.utils.clip_grad_norm_(llama.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if variant == "float8" and ranks > 1:
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

            precompute_float8_dynamic_scale_for_fsdp(llama)

    return timing.measured(torch, given, ranks, step)


def pytorch(given, variant, size):
    """Seconds of the median step, and the largest peaks of the ranks' allocators."""
    return timing.over_ranks(given, rank, variant, size)
