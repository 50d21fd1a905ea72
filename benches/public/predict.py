#!/usr/bin/env python3
"""Predicts published configurations of other trainers, and writes predictions.json beside this file.

Usage: benches/public/predict.py [PROGRAM] [DEVICE]

PROGRAM is plimsoll (default: target/release/plimsoll), DEVICE a described device (default: h100-80gb).
"""
import json
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def predict(program, device, entry):
    """Returns what the plan of a configuration predicts, or why it cannot be planned."""
    command = [program, "plan", f"launch/configs/{entry['file']}", "--device", device, "--json"]
    command += [argument for key in entry["set"] for argument in ("--set", key)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not done.stdout:
        return {"refused": done.stderr.strip()}
    plan = json.loads(done.stdout)
    time = plan.get("predicted") or {}
    peak = max(rank["peak_reserved_bytes"] for rank in plan["ranks"])
    return {
        "fits": done.returncode == 0,
        "predicted_step_seconds": plan["predicted_step_seconds"],
        "predicted_tokens_per_second_per_gpu": round(time.get("tokens_per_second_per_rank", 0.0)),
        "peak_reserved_bytes": peak,
        "measured_share": time.get("measured_share"),
        "assumed": time.get("assumed", []),
    }


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "target/release/plimsoll"
    device = sys.argv[2] if len(sys.argv) > 2 else "h100-80gb"
    described = tomllib.loads((HERE / "configurations.toml").read_text())
    rows = []
    for entry in described["configurations"]:
        row = {"device": device, **entry, **predict(program, device, entry)}
        rows.append(row)
        print(entry["source"], entry["table"], row.get("predicted_tokens_per_second_per_gpu"), entry["published"])
    result = {"sources": described["sources"], "predictions": rows}
    (HERE / "predictions.json").write_text(json.dumps(result, indent=1) + "\n")


main()
