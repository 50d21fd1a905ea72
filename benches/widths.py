#!/usr/bin/env python3
"""What half the channels cost in accuracy: ResNet-18 of width 1.0 and 0.5 on made images in CIFAR-10's format.

    python3 benches/widths.py --plimsoll target/release/plimsoll
    python3 benches/widths.py --plimsoll target/release/plimsoll --device cpu --steps 20 --training 640 --test 256

Images are 32 × 32. A class is one of five shapes (disc, square, triangle, plus, ring) with stripes or a checkerboard
in it. Place, size, angle, colours, background and the pattern's phase are random; part of another shape covers a
corner, and noise covers everything. Trains by launch/recipes/cifar10-resnet18.toml with fewer steps, and prints a
table: parameters, memory, speed, and the accuracy on images that training has not seen.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy

SIDE, CLASSES, SHAPES = 32, 10, 5
RECIPE = pathlib.Path(__file__).resolve().parent.parent / "launch/recipes/cifar10-resnet18.toml"


def inside(shape, x, y):
    """Which points of the plane are in a shape of radius 1, one shape for each image."""
    disc, square = numpy.hypot(x, y), numpy.maximum(abs(x), abs(y))
    triangle = numpy.maximum(-y, (math.sqrt(3) * abs(x) + y) / 2)
    choices = [
        disc < 0.9,
        square < 0.8,
        triangle < 0.55,
        numpy.where(abs(x) < 0.35, abs(y), numpy.where(abs(y) < 0.35, abs(x), 2)) < 1,
        abs(disc - 0.75) < 0.25,
    ]
    return numpy.choose(shape[:, None, None], choices)


def images(count, seed):
    """Returns classes [count] and pixels [count, 3, SIDE, SIDE] of 8 bits."""
    draw = numpy.random.default_rng(seed)
    classes = draw.integers(0, CLASSES, count)

    def each(least, most, *shape):
        return draw.uniform(least, most, (count, *shape, 1, 1)).astype(numpy.float32)

    def drawn(shape, left, top, radius):
        """A mask, and the coordinates in it."""
        down, across = numpy.mgrid[:SIDE, :SIDE].astype(numpy.float32)
        angle = each(0, 2 * math.pi)
        x, y = (across - left) / radius, (down - top) / radius
        x, y = x * numpy.cos(angle) - y * numpy.sin(angle), x * numpy.sin(angle) + y * numpy.cos(angle)
        return inside(shape, x, y), x * radius, y * radius

    mask, x, y = drawn(classes % SHAPES, each(11, 21), each(11, 21), each(7, 12))
    period, phase = each(4, 6), each(0, 6, 2)
    first = numpy.sin(2 * math.pi * (x + phase[:, 0]) / period)
    second = numpy.sin(2 * math.pi * (y + phase[:, 1]) / period)
    checkered = (classes >= SHAPES)[:, None, None]
    pattern = numpy.where(checkered, first * second, first) > 0
    back, other = each(50, 205, 3), each(30, 225, 3)
    front = back + each(-90, 90, 3)
    # A gradient of the background, and two shades of the shape.
    slope = each(-2, 2) * numpy.arange(SIDE, dtype=numpy.float32)
    pixels = back + slope[:, None]
    shade = numpy.where(pattern, 20, -20)[:, None]
    pixels = numpy.where(mask[:, None], front + shade, pixels)
    corner = each(0, 1, 2) > 0.5
    hidden, *_ = drawn(draw.integers(0, SHAPES, count), corner[:, 0] * 31.0, corner[:, 1] * 31.0, each(4, 8))
    pixels = numpy.where(hidden[:, None], other, pixels)
    pixels = pixels + draw.normal(0, 30, pixels.shape).astype(numpy.float32)
    return classes.astype(numpy.uint8), pixels.clip(0, 255).astype(numpy.uint8)


def write(path, count, seed):
    """Writes CIFAR-10's records: the class, then red, green and blue."""
    classes, pixels = images(count, seed)
    path.write_bytes(numpy.concatenate([classes[:, None], pixels.reshape(count, -1)], axis=1).tobytes())


def train(args, folder, width):
    """Trains and returns the run's summary."""
    batch = 128
    settings = {
        "model.width": width,
        "data.paths": json.dumps([str(folder)]),
        "train.steps": args.steps,
        "train.validate_every": args.steps,
        "train.validation_micro_batches": -(-args.test // batch),
        "optim.warmup_steps": args.steps // 20,
        "precision.compute": args.precision,
    }
    run = folder / f"run-{width}"
    command = [args.plimsoll, "train", str(RECIPE), "--device", args.device, "--run-dir", str(run)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(ran.stderr)
    return json.loads((run / "summary.json").read_text())


def row(width, found):
    """A row of the table, of a run's summary."""
    [rank] = found["ranks"]
    images = 128 / rank["median_step_microseconds"] * 1e6
    return (f"| {width} | {rank['live_parameter_bytes']:,} | {rank['peak_allocated_bytes']:,} | {images:,.0f} "
            f"| {found['validation_loss']:.4f} | {found['validation_top_1']:.2%} | {found['validation_top_5']:.2%} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", required=True, help="the program")
    parser.add_argument("--widths", type=float, nargs="+", default=[1.0, 0.5])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--training", type=int, default=25_000, help="training images")
    parser.add_argument("--test", type=int, default=5_000, help="test images")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write(folder / "data_batch_1.bin", args.training, 1)
        write(folder / "test_batch.bin", args.test, 2)
        rows = [(width, train(args, folder, width)) for width in args.widths]
    print("| width | parameters, bytes | peak allocated, bytes | images/s | loss | top-1 | top-5 |")
    print("| --- " * 7 + "|")
    for width, found in rows:
        print(row(width, found))


if __name__ == "__main__":
    main()
