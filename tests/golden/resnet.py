"""Writes resnet.json: losses, gradients and running statistics of torchvision's ResNets in float64.

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

BATCH, SIZE, CLASSES = 4, 48, 10
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
    flat = tensor.detach().reshape(-1)
    return [flat.norm().item()] + [flat[len(flat) * part // 4].item() for part in range(4)]


def case(depth):
    model = getattr(torchvision.models, f"resnet{depth}")(num_classes=CLASSES)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(initial(name, parameter.shape)).reshape(parameter.shape))
    model = model.double().train()
    shape = (BATCH, 3, SIZE, SIZE)
    images = torch.from_numpy(uniform(IMAGES, math.prod(shape)) * numpy.float32(4)).reshape(shape).double()
    targets = torch.tensor([(3 * image + 1) % CLASSES for image in range(BATCH)])
    loss = torch.nn.functional.cross_entropy(model(images), targets)
    loss.backward()
    gradients = {name: sampled(parameter.grad) for name, parameter in model.named_parameters()}
    buffers = {name: sampled(value) for name, value in model.named_buffers() if "running" in name}
    model.eval()
    with torch.no_grad():
        evaluated = torch.nn.functional.cross_entropy(model(images), targets)
    sizes = {
        "parameters": sum(p.numel() for p in torchvision.models.__dict__[f"resnet{depth}"]().parameters()),
        "buffers_elements": sum(value.numel() for value in running(model)),
    }
    return dict(depth=depth, **sizes, loss=loss.item(), evaluated=evaluated.item(), gradients=gradients, buffers=buffers)


def running(model):
    return [value for name, value in model.named_buffers() if "running" in name]


path = os.path.join(os.path.dirname(__file__), "resnet.json")
with open(path, "w") as file:
    json.dump(dict(torchvision=torchvision.__version__, batch=BATCH, size=SIZE, classes=CLASSES,
                   images=IMAGES,
                   cases=[case(18), case(50)]), file, indent=0)
    file.write("\n")
