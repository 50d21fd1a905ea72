"""Rotary positions in PyTorch, in halves as Llama has them."""


def tables(torch, theta, head, context, device, dtype):
    """Returns cosines and sines `[context, head]` of each position's angles."""
    frequencies = theta ** (-torch.arange(0, head, 2, device=device, dtype=torch.float32) / head)
    angles = torch.outer(torch.arange(context, device=device, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(torch, x, cos, sin):
    """Rotates the heads of `x` `[.., context, head]`."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin
