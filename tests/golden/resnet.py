"""Writes resnet.json: losses, gradients and running statistics of torchvision's ResNets in float64, of weights and
images rounded to f32 or bf16, and how far PyTorch's own results in that type are from them.

    pip install torch torchvision
    python tests/golden/resnet.py

Weights and images are functions of a name and an index: `uniform(name, i)` in -0.5..0.5 hashes both. Element i is
counted in torchvision's order (kernels [out, in, height, width], images [batch, channels, height, width]).
"""
import json
import math
import os

import numpy
import torch
import torchvision

BATCH, CLASSES = 4, 10
# Images with which no input of a ReLU is within rounding of 0: f32 then has the gradients of float64 up to 1e-5.
IMAGES = "images3"


def uniform(name, count):
    """FNV-1a of the name, added to the index and mixed by murmur3's finaliser; 24 bits of the result."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 % 2**32
    x = (numpy.arange(count, dtype=numpy.uint64) * 2654435761 + seed) % 2**32
    x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
    x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
    x ^= x >> 16
    return (x >> 8).astype(numpy.float32) / numpy.float32(2**24) - numpy.float32(0.5)


def initial(name, shape):
    """A convolution has He's variance, a norm weights around 1 and biases around 0, the output's layer 0.2."""
    values = uniform(name, math.prod(shape))
    if len(shape) == 4:
        return values * numpy.float32(math.sqrt(24 / (shape[0] * shape[2] * shape[3])))
    if name.startswith("fc."):
        return values * numpy.float32(0.2)
    if name.endswith("bn3.weight"):
        # Small branches keep the gradients of a deep network apart from rounding errors.
        return values * numpy.float32(0.125) + numpy.float32(0.25)
    return values * numpy.float32(0.5) + numpy.float32(1 if name.endswith("weight") else 0)


def sampled(tensor):
    """Norm, and four elements evenly spaced in torchvision's order."""
    flat = tensor.detach().double().reshape(-1)
    return [flat.norm().item()] + [flat[len(flat) * part // 4].item() for part in range(4)]


def network(depth, stem):
    """torchvision's network; its usual variant for small images begins with 3 x 3, stride 1 and no pooling."""
    model = getattr(torchvision.models, f"resnet{depth}")(num_classes=CLASSES)
    if stem == "small":
        model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        model.maxpool = torch.nn.Identity()
    return model


def results(depth, stem, size, rounded, computed):
    """A step's and an evaluation's results, of values rounded to one type, computed in another."""
    model = network(depth, stem)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(initial(name, parameter.shape)).reshape(parameter.shape).to(rounded))
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=computed == torch.bfloat16)
    wide = torch.float64 if computed == torch.float64 else torch.float32
    model = model.to(wide).train()
    shape = (BATCH, 3, size, size)
    images = torch.from_numpy(uniform(IMAGES, math.prod(shape)) * numpy.float32(4)).reshape(shape).to(rounded).to(wide)
    targets = torch.tensor([(3 * image + 1) % CLASSES for image in range(BATCH)])
    with autocast:
        loss = torch.nn.functional.cross_entropy(model(images), targets)
    loss.backward()
    gradients = {name: sampled(parameter.grad) for name, parameter in model.named_parameters()}
    buffers = {name: sampled(value) for name, value in model.named_buffers() if "running" in name}
    model.eval()
    with torch.no_grad(), autocast:
        evaluated = torch.nn.functional.cross_entropy(model(images), targets)
    return dict(loss=loss.item(), evaluated=evaluated.item(), gradients=gradients, buffers=buffers)


def differences(found, expected):
    """The largest difference from the expected values of tensors, relative to each one's norm, and the root of the
    mean square of all."""
    off = [abs(x - y) / max(abs(values[0]), 1e-3)
           for name, values in expected.items() for x, y in zip(found[name], values)]
    return dict(largest=max(off), mean=math.sqrt(sum(value * value for value in off) / len(off)))


def case(depth, stem, size, dtype):
    rounded = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    exact, own = [results(depth, stem, size, rounded, computed) for computed in (torch.float64, rounded)]
    errors = {key: abs(own[key] / exact[key] - 1) for key in ("loss", "evaluated")}
    errors |= {key: differences(own[key], exact[key]) for key in ("gradients", "buffers")}
    print(depth, stem, dtype, errors)
    buffers = network(depth, stem).named_buffers()
    elements = sum(value.numel() for name, value in buffers if "running" in name)
    return dict(depth=depth, stem=stem, size=size, dtype=dtype, buffers_elements=elements, **exact, pytorch_errors=errors)


CASES = [
    (18, "imagenet", 48, "f32"),
    (50, "imagenet", 48, "f32"),
    (18, "small", 16, "f32"),
    (18, "imagenet", 48, "bf16"),
    (50, "imagenet", 48, "bf16"),
]
path = os.path.join(os.path.dirname(__file__), "resnet.json")
with open(path, "w") as file:
    json.dump(dict(torchvision=torchvision.__version__, batch=BATCH, classes=CLASSES, images=IMAGES,
                   cases=[case(*which) for which in CASES]), file, indent=0)
    file.write("\n")
