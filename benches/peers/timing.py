"""Ranks of PyTorch, the time of their steps, and the time of a call on a GPU."""

import os
import statistics
import time


def over_ranks(given, rank, *arguments):
    """Calls `rank(ranks, given, *arguments)` on every GPU of `given`, in processes of their own if there are several. Returns
    the seconds of the first rank's median step and the largest peaks of the ranks' allocators."""
    if given.gpus == 1:
        return rank(1, given, *arguments)
    import torch.multiprocessing as processes

    answers = processes.get_context("spawn").SimpleQueue()
    processes.spawn(_rank, args=(given, rank, arguments, answers), nprocs=given.gpus)
    found = [answers.get() for _ in range(given.gpus)]
    seconds, peaks = found[0][0], [peaks for _, peaks in found]
    return seconds, tuple(map(max, zip(*peaks)))


def _rank(number, given, rank, arguments, answers):
    import torch

    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533", "WORLD_SIZE": str(given.gpus)}
    os.environ |= where | {"RANK": str(number), "LOCAL_RANK": str(number)}
    torch.cuda.set_device(number)
    torch.distributed.init_process_group("nccl")
    answers.put(rank(given.gpus, given, *arguments))
    torch.distributed.destroy_process_group()


def measured(torch, given, ranks, step):
    """Seconds of the median step and the allocator's peaks, after the warm-up."""
    on_gpu = given.device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    times, warmed, warm_up = [], 0.0, given.warm_up
    while len(times) < warm_up + given.steps:
        wait()
        began = time.perf_counter()
        step()
        wait()
        # All ranks decide by the slowest one's time.
        seconds = torch.tensor(time.perf_counter() - began, device=given.device, dtype=torch.float64)
        if ranks > 1:
            torch.distributed.all_reduce(seconds, torch.distributed.ReduceOp.MAX)
        times.append(seconds.item())
        # The first step may compile, which leaves the GPU cold.
        warmed += times[-1] if len(times) > 1 else 0.0
        if warmed < given.warm_up_seconds:
            warm_up = max(warm_up, len(times))
    peaks = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if on_gpu else (0, 0)
    return statistics.median(times[warm_up:]), peaks


def timed(call, times=8):
    """Returns the milliseconds of a call, the better of two means."""
    import torch

    for _ in range(2):
        call()
    start, end = torch.cuda.Event(True), torch.cuda.Event(True)
    means = []
    for _ in range(2):
        start.record()
        for _ in range(times):
            call()
        end.record()
        torch.cuda.synchronize()
        means.append(start.elapsed_time(end) / times)
    return min(means)


def line(tokens, name, seconds, allocated, reserved, ours=None):
    """Prints a step of `tokens` tokens; `ours`: the seconds of Plimsoll's, to compare."""
    text = f"{name:<28} {1e3 * seconds:9.2f} ms {tokens / seconds:11,.0f} tokens/s"
    if allocated:
        text += f"   peak {allocated / 1e9:6.2f} GB allocated, {reserved / 1e9:6.2f} GB reserved"
    print(text + (f"   Plimsoll is {seconds / ours:.3f} times as fast" if ours else ""), flush=True)
