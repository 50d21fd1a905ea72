"""What several GPUs of one host do: bits, bytes, speed, checkpoints and failures, a line of JSON a row.

    python3 benches/several_gpus.py --plimsoll target/release/plimsoll [--gpus N] [--pieces NAME,…] [--rows TEXT]
        [--seconds S] [--run-dir DIR] [--bundle DIR] >>rows.jsonl
    python3 benches/several_gpus.py --table rows.jsonl

The program needs MPI for the piece `failures`. Pieces, which --seconds and --rows divide where time is short:

    tests        tests of collectives, and of the program on GPUs, from a bundle of `launch/bundle` (--bundle)
    bits         one hash of weights over grids of data, context, tensor and pipeline ranks with ZeRO stages
    weak         GPT-2 124M and 1558M, weak scaling, beside DistributedDataParallel with torch.compile
    llama        Llama 3 8B, 1 × 8192 each, on several grids, beside FSDP2 with torch.compile, and torchao's float8
    large        models and sequences that no single GPU holds
    pipelines    every schedule
    collective   all-reduce beside PyTorch's
    resnet       ResNet-50, weak scaling
    checkpoints  saving and loading Llama 3 8B
    failures     a rank that is killed: seconds to the next step

Every row says host, GPU, driver and the clocks of the GPUs when it ended, and the predicted time of its step. A run whose bytes
differ from its plan, or whose weights differ from those of the other grids, has an "error". No row begins after --seconds.
"""

import argparse
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "launch" / "configs"
# A GPT whose runs take seconds.
SMALL = """
[model]
layers = 4
heads = 4
width = 128
context = 128
[data]
kind = "synthetic"
[train]
steps = 6
micro_batch_size = 2
global_batch_size = 24
[optim]
warmup_steps = 2
[parallel]
lanes = 12
tensor_lanes = 4
context_lanes = 8
"""
SHAPES = {
    "13B": {"layers": 40, "heads": 40, "key_value_heads": 40, "width": 5120, "feed_forward": 13824, "vocabulary": 32000},
    "34B": {"layers": 48, "heads": 64, "key_value_heads": 8, "width": 8192, "feed_forward": 22016, "vocabulary": 32000},
}


class Failed(Exception):
    """A row that cannot be measured, or is wrong."""


def smi(query):
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def call(command):
    """The standard output of a program."""
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise Failed(f"status {done.returncode}: {reason(done.stderr)}")
    return done.stdout


def reason(messages):
    """The line of a program's messages that says why it failed."""
    lines = messages.strip().splitlines() or ["no message"]
    return next((line for line in lines if line.startswith(("plimsoll: ", "error: "))), lines[-1])


def lines(path):
    """The values of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class Bench:
    def __init__(self, given):
        self.given, self.began, self.hash = given, time.monotonic(), {}
        self.program = str(pathlib.Path(given.plimsoll).resolve())
        self.where = pathlib.Path(given.run_dir or tempfile.mkdtemp(prefix="plimsoll-bench-"))
        self.where.mkdir(parents=True, exist_ok=True)
        self.machine = {"host": platform.node(), "gpus": given.gpus}
        self.machine |= {"gpu": (smi("name") or ["?"])[0], "driver": (smi("driver_version") or ["?"])[0]}

    def row(self, piece, name, measure):
        """Measures a row and prints it."""
        if self.given.rows not in name:
            return
        if time.monotonic() - self.began > self.given.seconds:
            print(f"several_gpus.py: left out: {piece}, {name}", file=sys.stderr)
            return
        began = time.monotonic()
        try:
            found = measure()
        except Failed as error:
            found = {"error": str(error)}
        clocks = smi("clocks.sm")[: self.given.gpus]
        row = {"piece": piece, "row": name} | self.machine | {"clocks_mhz": clocks} | found
        row["row_seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps(row), flush=True)
        print(f"several_gpus.py: {piece}, {name}: {found.get('error', 'measured')}", file=sys.stderr)

    def train(self, config, sets, run_dir=None, options=(), keep=False):
        """Trains, and returns the row of its summary."""
        run_dir = run_dir or self.where / "run"
        if not keep:
            shutil.rmtree(run_dir, ignore_errors=True)
        command = [self.program, "train", config, "--device", self.given.device, "--run-dir", run_dir, *options]
        for key in sets:
            command += ["--set", key]
        call(command)
        summary = json.loads((run_dir / "summary.json").read_text())
        sessions = json.loads((run_dir / "sessions.json").read_text())
        ranks = summary["ranks"]
        measured = [line["seconds"] for line in lines(run_dir / "metrics.jsonl") if line.get("seconds")]
        found = {
            "grid": summary["grid"],
            # The first steps prepare.
            "step_seconds": statistics.median(measured[len(measured) // 2 :]),
            "sets": list(sets),
            "ranks": len(ranks),
            "libraries": summary["libraries"],
            "tokens_per_second": round(summary["tokens_per_second"], 1),
            "weights_sha256": summary["weights_sha256"],
            "peak_allocated_bytes": max(rank["peak_allocated_bytes"] for rank in ranks),
            "peak_reserved_bytes": max(rank["peak_reserved_bytes"] for rank in ranks),
            "session": sessions[-1]["results"],
        }
        if (run_dir / "prediction.json").exists():
            found["predicted_step_seconds"] = json.loads((run_dir / "prediction.json").read_text())["step_seconds"]
        if summary["divergences"]:
            found["error"] = f"not as planned: {summary['divergences']}"
        if not keep:
            # The checkpoint at the end of a large model's run would leave no room for the next one's.
            shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
        return found

    def same_bits(self, group, found):
        """Compares the hash with that of the group's first run."""
        first = self.hash.setdefault(group, found["weights_sha256"])
        if first != found["weights_sha256"]:
            found["error"] = f"other weights than {first}"
        return found

    def scaling(self, model, *options):
        """One line of `bench scaling` for each number of ranks."""
        command = [self.program, "bench", "scaling", "--json", "--device", self.given.device, "--model", model, "--warm-up-seconds", 4, *options]
        rows = [json.loads(line) for line in call(command).splitlines() if line.startswith("{")]
        rates = {row["ranks"]: row["tokens"] / row["step_seconds"] for row in rows}
        one, all_ = min(rates), max(rates)
        found = {"tokens_per_second": round(rates[all_], 1), "libraries": rows[-1]["libraries"], "sets": list(map(str, options))}
        if one < all_:
            found |= {"one_gpu": round(rates[one], 1), "efficiency": round(rates[all_] / rates[one] / all_, 4)}
        last = max(rows, key=lambda row: row["ranks"])
        found |= {key: last[key] for key in ("step_seconds", "predicted_step_seconds") if key in last}
        for peak in ("peak_allocated_bytes", "peak_reserved_bytes"):
            found[peak] = max(rank[peak] for rank in last["by_rank"])
        return found

    def of_all(self, model, share, steps, sets):
        """`bench scaling` on all GPUs, of which `share` each work on the same micro-batches."""
        keys = [word for key in [*sets, "precision.gradients=bf16"] for word in ("--set", key)]
        return self.scaling(model, "--weak", "--ranks", self.given.gpus // share, "--reduction", "tree", "--steps", steps, *keys)

    def peer(self, model, *options, variant="compile"):
        """The rate of PyTorch's step with torch.compile on all GPUs."""
        peers = ROOT / "benches" / "peers" / "step.py"
        command = [sys.executable, peers, "--model", model, "--gpus", self.given.gpus, "--variants", variant, "--json", *options]
        found = json.loads(call(command).splitlines()[-1])
        kept = {key: found[key] for key in ("tokens_per_second", "peak_allocated_bytes", "peak_reserved_bytes")}
        return kept | {"libraries": f"PyTorch {found['version']}"}


def grids(gpus):
    """Grids of at most `gpus` ranks, each axis alone and in pairs, with ZeRO stages where ranks share state."""
    for data in (1, 2, 3, 4):
        for context in (1, 2, 4):
            for tensor in (1, 2, 4):
                for pipeline in (1, 2, 4):
                    if data * context * tensor * pipeline > gpus:
                        continue
                    stages = (0, 1, 2, 3) if data * context > 1 and tensor * pipeline < 4 else (0,)
                    for stage in stages:
                        yield data, context, tensor, pipeline, stage


def tests(bench):
    for name, only in (("collective-suite", "conformance::"), ("collective-suite", "nccl::"), ("plimsoll-program", "gpu::"), ("plimsoll-training", "two_gpu_ranks")):
        bench.row("tests", f"{name} {only}".strip(), lambda: tested(bench.given.bundle, name, only))


def tested(bundle, name, only):
    """The tests of a binary of a bundle that passed, and those among them that were skipped."""
    if not bundle:
        raise Failed("--bundle names no bundle of launch/bundle")
    output = call([pathlib.Path(bundle) / "run-tests", name, *filter(None, [only])])
    return {"passed": output.count(" ... ok"), "skipped": output.count("skipped: ")}


def bits(bench):
    config = bench.where / "small.toml"
    config.write_text(SMALL)
    for precision in ("f32", "bf16"):
        for data, context, tensor, pipeline, stage in grids(bench.given.gpus):
            # Every grid in f32, some of those of all GPUs also in bf16.
            used = data * context * tensor * pipeline
            if precision == "bf16" and (1 < used < bench.given.gpus or stage in (1, 2)):
                continue
            sets = [f"parallel.data={data}", f"parallel.context={context}", f"parallel.tensor={tensor}"]
            sets += [f"parallel.pipeline={pipeline}", f"parallel.zero_stage={stage}", f"precision.compute={precision}"]
            name = f"{precision}, {data} × {context} × {tensor} × {pipeline}, ZeRO {stage}"
            bench.row("bits", name, lambda: bench.same_bits(precision, bench.train(config, sets)))


def weak(bench):
    gpus = bench.given.gpus
    for model, steps in (("gpt2-124m", 40), ("gpt2-1558m", 15)):
        options = ["--ranks", f"1,{gpus}", "--reduction", "tree", "--steps", steps]
        for kind, sets in (("bf16 gradients, ZeRO-1", ["--shard", "--set", "precision.gradients=bf16"]), ("f32 gradients", [])):
            bench.row("weak", f"{model}, {kind}", lambda: bench.scaling(model, "--weak", *options, *sets))
        sets = ["--shard", "--set", "precision.gradients=bf16"]
        bench.row("weak", f"{model}, strong", lambda: bench.scaling(model, "--strong", *options, *sets))
        bench.row("weak", f"{model}, DDP", lambda: bench.peer(model, "--steps", steps))


def of_all_ranks(gpus, **sizes):
    """Keys of a grid whose data ranks take what the other axes leave."""
    axes = {"data": gpus, "context": 1, "tensor": 1, "pipeline": 1} | sizes
    axes["data"] = gpus // (axes["context"] * axes["tensor"] * axes["pipeline"])
    keys = [f"parallel.{axis}={size}" for axis, size in axes.items()]
    return keys + [f"parallel.lanes={axes['data']}", f"train.global_batch_size={axes['data']}"]


def llama(bench):
    gpus = bench.given.gpus
    rows = [(f"ZeRO-{stage}", [f"parallel.zero_stage={stage}"], 1) for stage in (1, 2, 3)]
    rows.append(("tensor 2, ZeRO-3", ["parallel.zero_stage=3", "parallel.tensor=2"], 2))
    rows.append(("ZeRO-3, FP8", ["parallel.zero_stage=3", "precision.matmul=fp8"], 1))
    for name, sets, share in rows:
        bench.row("llama", name, lambda: bench.of_all("llama3-8b", share, 10, sets))
    bench.row("llama", "FSDP2", lambda: bench.peer("llama3-8b", "--steps", 10))
    bench.row("llama", "FSDP2, float8", lambda: bench.peer("llama3-8b", "--steps", 10, variant="float8"))


def large(bench):
    gpus, config = bench.given.gpus, CONFIGS / "llama3-8b.toml"
    common = ["parallel.zero_stage=3", "memory.recompute=block"]
    for name, shape in SHAPES.items():
        sets = common + [f"model.{key}={value}" for key, value in shape.items()] + ["model.context=4096"]
        bench.row("large", f"{name}, ZeRO-3", lambda: bench.of_all("llama3-8b", 1, 4, sets))
    long = common + [f"parallel.context={gpus}", f"parallel.context_lanes={2 * gpus}", "model.context=65536"]
    bench.row("large", f"8B, 65,536 tokens, context {gpus}", lambda: bench.of_all("llama3-8b", gpus, 3, long))
    # With the plan's bytes, which a run of three steps shows.
    long += of_all_ranks(gpus, context=gpus) + ["train.steps=3"]
    bench.row("large", f"8B, 65,536 tokens, context {gpus}, as planned", lambda: bench.train(config, long))


def pipelines(bench):
    command = [bench.program, "bench", "pipeline", "--json", "--model", "gpt2-1558m", "--ranks", bench.given.gpus]
    command += ["--micro-batch-size", 4, "--micro-batches", 16, "--steps", 8, "--alone"]
    bench.row("pipelines", "gpt2-1558m", lambda: {"schedules": [json.loads(line) for line in call(command).splitlines() if line[:1] == "{"]})


def collective(bench):
    peers = [sys.executable, ROOT / "benches" / "peers" / "collective.py", "--plimsoll", bench.program, "--json", "--turns", 3]
    peers += ["--ranks", bench.given.gpus, "--dtypes", "float32", "--milliseconds", 150]
    found = lambda: {"operations": [json.loads(line) for line in call(peers).splitlines() if line[:1] == "{"]}
    bench.row("collective", "all-reduce", found)


def resnet(bench):
    options = ["--weak", "--batch", 256, "--precision", "bf16", "--ranks", f"1,{bench.given.gpus}", "--reduction", "tree"]
    bench.row("resnet", "ResNet-50", lambda: bench.scaling("resnet50", *options))


def checkpoints(bench):
    """Saves a sharded 8B in the middle of a run and at its end, and resumes."""
    run_dir, config = bench.where / "saved", CONFIGS / "llama3-8b.toml"
    sets = of_all_ranks(bench.given.gpus) + ["parallel.zero_stage=3", "checkpoint.every=5", "checkpoint.keep=1"]

    def step_times(found):
        return found | {"seconds_of_steps": [line.get("seconds") for line in lines(run_dir / "metrics.jsonl")]}

    def saved():
        shutil.rmtree(run_dir, ignore_errors=True)
        found = step_times(bench.train(config, sets + ["train.steps=8"], run_dir, keep=True))
        files = [file for file in run_dir.rglob("*") if file.is_file() and "checkpoint" in str(file)]
        return found | {"checkpoint_bytes": sum(file.stat().st_size for file in files)}

    bench.row("checkpoints", "8B saved", saved)
    resumed = ["--resume"]
    bench.row("checkpoints", "8B resumed", lambda: bench.train(config, sets + ["train.steps=10"], run_dir, resumed, keep=True))
    shutil.rmtree(run_dir, ignore_errors=True)


def failures(bench):
    """Kills a rank of GPT-2 124M that keeps its state in memory, twice."""
    gpus, run_dir, config = bench.given.gpus, bench.where / "killed", CONFIGS / "gpt2-124m.toml"
    if bench.given.device == "cpu":
        config = bench.where / "small.toml"
        config.write_text(SMALL)

    def killed():
        shutil.rmtree(run_dir, ignore_errors=True)
        command = [ROOT / "launch" / "mpirun", "--restarts", 3, "-n", gpus, "train", config, "--device", bench.given.device, "--run-dir", run_dir]
        sets = [f"parallel.data={gpus}", f"parallel.lanes={gpus}", "precision.compute=bf16"]
        sets += ["train.micro_batch_size=16", f"train.global_batch_size={16 * gpus}", "train.steps=300", "parallel.zero_stage=1"]
        sets += ["parallel.tensor_lanes=1", "parallel.context_lanes=1"]
        sets += ["checkpoint.memory_steps=10", "checkpoint.every=1000"]
        for key in sets:
            command += ["--set", key]
        with open(bench.where / "killed.log", "w+") as log:
            job = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, env=os.environ | {"PLIMSOLL": bench.program})
            try:
                for step in (60, 160):
                    wait_for_step(run_dir, step, job)
                    os.kill(int(status(run_dir, gpus - 1)["pid"]), signal.SIGKILL)
                    time.sleep(2)
                ended = job.wait()
            finally:
                # A second signal ends a job at once.
                while job.poll() is None:
                    job.terminate()
                    time.sleep(0.2)
            if ended != 0:
                log.seek(0)
                raise Failed(reason(log.read()))
        sessions = json.loads((run_dir / "sessions.json").read_text())
        return {"restarts": [session["restart"] for session in sessions if session.get("restart")]}

    bench.row("failures", "a rank is killed", killed)


def status(run_dir, rank):
    """The last status of a rank."""
    try:
        lines = (run_dir / "logs" / f"rank-{rank}.status").read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(" = ", 1) for line in lines if " = " in line)


def wait_for_step(run_dir, step, job):
    while int(status(run_dir, 0).get("step", 0)) < step:
        if job.poll() is not None:
            raise Failed("the job ended early")
        time.sleep(0.05)


ALL = (tests, bits, weak, llama, large, pipelines, collective, resnet, checkpoints, failures)
PIECES = {piece.__name__: piece for piece in ALL}


def table(paths):
    """Prints rows as Markdown, those of a piece together."""
    rows = [row for path in paths for row in lines(pathlib.Path(path))]
    for piece in PIECES:
        mine = [row for row in rows if row["piece"] == piece]
        if not mine:
            continue
        print(f"\n{piece}, {mine[0]['gpus']} × {mine[0]['gpu']}, driver {mine[0]['driver']}:\n")
        if piece == "bits":
            wrong = [row["row"] for row in mine if "error" in row]
            print(f"{len(mine)} grids, {len(mine) - len(wrong)} with equal weights and planned bytes{': not ' if wrong else ''}{'; '.join(wrong)}")
            continue
        print("| | tokens/s | of one GPU times their number | step, ms | predicted | peak reserved, GB |")
        print("| --- | --- | --- | --- | --- | --- |")
        for row in mine:
            for name, part in parts(row):
                print("| " + " | ".join([name, *cells(part)]) + " |")


def parts(row):
    """The lines of a table that a row becomes: name and figures of each."""
    for schedule in row.get("schedules", []):
        ranks, chunks = schedule["ranks"], schedule["chunks"]
        name = f"{schedule['schedule']}{f' × {chunks}' if chunks > 1 else ''}" if len(ranks) > 1 else "one rank"
        peak = max(rank["peak_reserved_bytes"] for rank in ranks)
        yield f"{row['row']}, {name}", schedule | {"step_seconds": schedule["seconds"], "peak_reserved_bytes": peak}
    for operation in row.get("operations", []):
        share = f"{operation['of_pytorch']:.3f} of PyTorch's bandwidth"
        yield f"{operation['operation']}, {operation['mib']} MiB of {operation['dtype']}", {"instead": share}
    if "passed" in row:
        yield row["row"], row | {"instead": f"{row['passed']} tests passed, of which {row['skipped']} were skipped"}
    elif "restarts" in row:
        yield row["row"], row | {"instead": json.dumps(row["restarts"])}
    elif not {"schedules", "operations"} & row.keys():
        yield row["row"], row


def cells(row):
    """The figures of a line of a table."""
    step, predicted, peak = (row.get(key) for key in ("step_seconds", "predicted_step_seconds", "peak_reserved_bytes"))
    return [
        row.get("error") or row.get("instead") or f"{row.get('tokens_per_second', 0):,.0f}",
        f"{100 * row['efficiency']:.1f} %" if "efficiency" in row else "",
        f"{1e3 * step:.1f}" if step else "",
        f"{1e3 * predicted:.1f} ({100 * (predicted / step - 1):+.1f} %)" if step and predicted else "",
        f"{peak / 1e9:.2f}" if peak else "",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", default="target/release/plimsoll", help="the program")
    parser.add_argument("--gpus", type=int, default=len(smi("name")), help="GPUs to use [default: all]")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try this script, with --gpus threads")
    parser.add_argument("--pieces", default=",".join(PIECES), help="pieces to measure [default: all]")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no row after so many seconds")
    parser.add_argument("--rows", default="", help="measure only rows whose name contains this")
    parser.add_argument("--bundle", help="a directory of launch/bundle, for the piece `tests`")
    parser.add_argument("--run-dir", help="a directory with room for checkpoints [default: a temporary one]")
    parser.add_argument("--table", nargs="+", metavar="FILE", help="print rows that were measured as tables")
    given = parser.parse_args()
    if given.table:
        return table(given.table)
    unknown = set(given.pieces.split(",")) - set(PIECES)
    if unknown:
        parser.error(f"--pieces {','.join(unknown)}: the pieces are {', '.join(PIECES)}")
    if given.gpus < 2:
        parser.error(f"--gpus {given.gpus}: several GPUs are needed")
    # What was started ends with this script.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(given)
    for piece in given.pieces.split(","):
        PIECES[piece](bench)
    if not given.run_dir:
        shutil.rmtree(bench.where, ignore_errors=True)


if __name__ == "__main__":
    main()
