"""All-reduce over GPUs in Plimsoll and in PyTorch, in turns on one machine with one NCCL library, and the ratios.

    python3 benches/peers/collective.py --plimsoll target/release/plimsoll [--ranks 4] [--sizes 25,64,256]
        [--dtypes float32,bfloat16] [--turns 5] [--operations all-reduce,tree] [--json]

Sizes are in MiB. PyTorch is one process for each GPU (`torch.distributed`, NCCL), which live from the first turn to the
last and wait on the host while Plimsoll has its turn; Plimsoll's ranks are threads of a process that each turn starts. Both
enqueue many calls one behind the other and wait for the last; the time of one call is that of all over their number, on the
slowest rank. What is compared is the best turn of each: what else runs on the machine can only make a turn slower. The
library that PyTorch has loaded is the one that Plimsoll gets (LD_LIBRARY_PATH), and both say its version.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
SHORT = {"float32": "f32", "bfloat16": "bf16"}
WARM_UP = 3


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", required=True, help="the program")
    parser.add_argument("--ranks", type=int, help="GPUs [default: all]")
    parser.add_argument("--sizes", default="25,64,256", help="in MiB")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--operations", default="all-reduce,tree", help="of Plimsoll's, beside PyTorch's all-reduce")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--milliseconds", type=int, default=300, help="how long each size is measured in a turn")
    parser.add_argument("--json", action="store_true", help="also print a line of JSON for each operation and size")
    given = parser.parse_args()
    given.sizes = [int(size) for size in given.sizes.split(",")]
    given.dtypes = given.dtypes.split(",")
    given.operations = given.operations.split(",")
    return given


def library():
    """The NCCL library that PyTorch loads, by where it lies."""
    import torch

    torch.cuda.nccl.version()
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libnccl.so" in path:
            return pathlib.Path(path)
    sys.exit("PyTorch has NCCL inside it here, and not as a library of its own: there is none to share")


def plimsoll(given, folder):
    """Seconds by (operation, dtype, MiB), and what it says of itself."""
    command = [given.plimsoll, "bench", "collective", "--device", "cuda", "--json", "--ranks", str(given.ranks)]
    command += ["--sizes", ",".join(f"{size}MiB" for size in given.sizes), "--only", ",".join(given.operations)]
    command += ["--milliseconds", str(given.milliseconds)]
    path = os.pathsep.join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))
    answer = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": path}
    )
    head, *lines = map(json.loads, answer.stdout.splitlines())
    return {(line["operation"], line["dtype"], line["bytes"] // MIB): line["seconds"] for line in lines}, head


def rank(number, given, orders, answers, meeting):
    """One GPU of PyTorch's: measures whenever it is told to, until it is told to end."""
    import torch
    from torch import distributed

    torch.cuda.set_device(number)
    distributed.init_process_group(
        "nccl", init_method=f"file://{meeting}", rank=number, world_size=given.ranks, device_id=torch.device("cuda", number)
    )
    while orders[number].get():
        found = []
        for dtype in given.dtypes:
            for size in given.sizes:
                values = torch.zeros(size * MIB // getattr(torch, dtype).itemsize, dtype=getattr(torch, dtype), device="cuda")

                def seconds(rounds):
                    distributed.barrier()
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    for _ in range(rounds):
                        distributed.all_reduce(values)
                    torch.cuda.synchronize()
                    slowest = torch.tensor((time.perf_counter() - began) / rounds, dtype=torch.float64, device="cuda")
                    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
                    return slowest.item()

                rounds = int(given.milliseconds / 1e3 / seconds(WARM_UP))
                found.append((dtype, size, seconds(min(max(rounds, 5), 2000))))
        if number == 0:
            answers.put(found)
    distributed.destroy_process_group()


def main():
    given = arguments()
    import torch
    from torch import multiprocessing

    given.ranks = given.ranks or torch.cuda.device_count()
    found = library()
    processes = multiprocessing.get_context("spawn")
    orders, answers = [processes.Queue() for _ in range(given.ranks)], processes.Queue()
    with tempfile.TemporaryDirectory() as folder:
        # Plimsoll looks for libnccl.so, and packages have libnccl.so.2.
        (pathlib.Path(folder) / "libnccl.so").symlink_to(found)
        common = (given, orders, answers, f"{folder}/meeting")
        context = multiprocessing.start_processes(rank, common, given.ranks, join=False, start_method="spawn")
        ours, theirs, head = {}, {}, {}
        for turn in range(given.turns):
            times, head = plimsoll(given, folder)
            for key, seconds in times.items():
                ours.setdefault(key, []).append(seconds)
            for order in orders:
                order.put(True)
            for dtype, size, seconds in wait(context, answers):
                theirs.setdefault((SHORT[dtype], size), []).append(seconds)
            print(f"turn {turn + 1} of {given.turns}", file=sys.stderr, flush=True)
        for order in orders:
            order.put(False)
        context.join()
    report(given, ours, theirs, head, torch)


def wait(context, answers):
    """What rank 0 found; a rank that failed ends all of it, with its own words."""
    from queue import Empty

    while True:
        try:
            return answers.get(timeout=1)
        except Empty:
            context.join(timeout=0.01)


def report(given, ours, theirs, head, torch):
    version = ".".join(map(str, torch.cuda.nccl.version()))
    print(f"{given.ranks} × {head['device']}; Plimsoll with NCCL {head['nccl']}, PyTorch {torch.__version__} with NCCL {version}")
    print(f"best of {given.turns} turns in µs, with bus bandwidth in GB/s and the worst turn over the best")
    mebibytes = [head[key] / MIB for key in ("meeting_bytes", "connection_bytes")]
    print(f"Plimsoll's NCCL takes {mebibytes[0]:.0f} MiB of each GPU to meet and {mebibytes[1]:.0f} MiB for connections")
    both_ways = 2 * (given.ranks - 1) / given.ranks
    for (dtype, size), library in theirs.items():

        def line(name, turns, beside=""):
            best = min(turns)
            bus = size * MIB / best / 1e9 * both_ways
            print(f"{size:4} MiB {dtype:5} {name:22} {1e6 * best:9.1f} {bus:8.1f} {max(turns) / best:6.2f}   {beside}")

        line("PyTorch all-reduce", library)
        for operation in given.operations:
            own = ours[operation, dtype, size]
            share = min(library) / min(own)
            line(f"Plimsoll {operation}", own, f"{share:.3f} of PyTorch's bandwidth")
            if given.json:
                print(json.dumps({"operation": operation, "dtype": dtype, "mib": size, "seconds": min(own), "of_pytorch": share}))


if __name__ == "__main__":
    main()
