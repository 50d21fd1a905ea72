"""What traffic between two GPUs costs products that need all the power there is, however little it is.

    python3 benches/peers/links.py [--seconds 2] [--turns 2]

Two GPUs multiply bf16 matrices of 65,536 × 768 and 768 × 3,072 without a pause, by themselves or with copies from each
other's memory beside that, on streams of their own. Links between GPUs sleep some time after a transfer
(`nvidia-smi nvlink -gLowPwrInfo` says when) and draw power until then. Prints, in turns, milliseconds of a product, and of
each GPU watts and MHz.
"""

import argparse
import ctypes
import glob
import importlib.util
import subprocess
import sys
import threading
import time

KINDS = [  # name, products between two copies, bytes of a copy
    ("no copies", 0, 0),
    ("4 KiB every 8 products", 8, 4 << 10),
    ("4 KiB every 160 products", 160, 4 << 10),
    ("16 MiB every 8 products", 8, 16 << 20),
]
DEVICE_TO_DEVICE = 3


def runtime(torch):
    import nvidia

    found = [path for root in nvidia.__path__ for path in glob.glob(root + "/**/libcudart.so*", recursive=True)]
    cudart = ctypes.CDLL(found[0])
    for gpu in range(2):
        assert cudart.cudaSetDevice(gpu) == 0
        already = 704
        assert cudart.cudaDeviceEnablePeerAccess(1 - gpu, 0) in (0, already)
    return cudart


class Gpu:
    def __init__(self, torch, index):
        self.index = index
        bf16 = {"device": index, "dtype": torch.bfloat16}
        self.a, self.b = torch.randn(65536, 768, **bf16), torch.randn(768, 3072, **bf16)
        self.out = torch.empty(65536, 3072, **bf16)
        self.memory = torch.zeros(32 << 20, device=index, dtype=torch.uint8)
        self.stream = torch.cuda.Stream(index)

    def fetch(self, cudart, peer, count):
        assert cudart.cudaSetDevice(self.index) == 0
        to, source = (ctypes.c_void_p(at) for at in (self.memory.data_ptr(), peer.memory.data_ptr() + (16 << 20)))
        stream = ctypes.c_void_p(self.stream.cuda_stream)
        assert cudart.cudaMemcpyAsync(to, source, ctypes.c_size_t(count), DEVICE_TO_DEVICE, stream) == 0


def milliseconds(torch, cudart, gpus, seconds, every, count):
    """Of a product, over the second half of the time."""
    began, products, half = time.time(), 0, None
    while True:
        for gpu in gpus:
            with torch.cuda.device(gpu.index):
                torch.mm(gpu.a, gpu.b, out=gpu.out)
            if every and products % every == 0:
                gpu.fetch(cudart, gpus[1 - gpu.index], count)
        products += 1
        if products % 32:
            continue
        for gpu in gpus:
            torch.cuda.current_stream(gpu.index).synchronize()
        now = time.time()
        if half is None and now - began > seconds / 2:
            half = (now, products)
        elif half and now - began > seconds:
            return 1e3 * (now - half[0]) / (products - half[1])


def watch(readings, done):
    query = ["nvidia-smi", "--query-gpu=power.draw,clocks.sm", "--format=csv,noheader,nounits"]
    while not done.wait(0.2):
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
        readings.append((time.time(), [[float(value) for value in line.split(",")] for line in lines[:2]]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement [default: 2]")
    parser.add_argument("--turns", type=int, default=2, help="of all of them [default: 2]")
    given = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"links.py: PyTorch is not installed for {sys.executable}: pip install torch")
    import torch

    cudart, gpus = runtime(torch), [Gpu(torch, index) for index in range(2)]
    readings, done = [], threading.Event()
    watcher = threading.Thread(target=watch, args=(readings, done))
    watcher.start()
    print(f"2 × {torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}")
    try:
        milliseconds(torch, cudart, gpus, 2 * given.seconds, 0, 0)
        for _ in range(given.turns):
            for name, every, count in KINDS:
                began = time.time()
                took = milliseconds(torch, cudart, gpus, given.seconds, every, count)
                seen = [reading for at, reading in readings if at > began + given.seconds / 2]
                mean = [[sum(r[gpu][i] for r in seen) / max(len(seen), 1) for i in (0, 1)] for gpu in (0, 1)]
                said = ", ".join(f"{watts:.0f} W at {clock:.0f} MHz" for watts, clock in mean)
                print(f"{name:26} {took:.4f} ms a product; {said}", flush=True)
    finally:
        done.set()
        watcher.join()


if __name__ == "__main__":
    main()
