"""Tokenizing the same documents with Plimsoll and with Python's tokenizers, in turn on one machine, and the ratio.

    python3 benches/peers/encode.py --plimsoll target/release/plimsoll [--tokenizer FILE.json | --vocabulary 16384]
        [--rounds 5] [--megabytes 100] FILE...

Files are text; a document is some paragraphs of one, of 4 kB or more. `encode_batch` is timed alone, on documents in
memory. Plimsoll is timed as a whole process: start, JSON lines from disk, tokens, shards on disk. Both use all cores that
this process may use. Tokens are compared first.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

for module in ["numpy", "tokenizers"]:
    if importlib.util.find_spec(module) is None:
        sys.exit(f"tokenize.py: {module} is not installed for {sys.executable}: pip install {module}")

import numpy
import tokenizers

LEAST = 4096  # bytes of a document


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--plimsoll", required=True)
    parser.add_argument("--tokenizer", help="a tokenizer.json; without one, one is trained on the documents")
    parser.add_argument("--vocabulary", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=100, help="most text to take")
    return parser.parse_args()


def documents(files, most):
    """Documents of the files until they have `most` bytes."""
    found, total = [], 0
    for path in files:
        lengths, parts = 0, []
        for part in path.read_text(errors="replace").split("\n\n"):
            parts.append(part)
            lengths += len(part) + 2
            if lengths >= LEAST:
                found.append("\n\n".join(parts))
                total += len(found[-1].encode())
                lengths, parts = 0, []
            if total >= most:
                return found
        if parts:
            found.append("\n\n".join(parts))
    return found


def timed(call):
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def main():
    given = arguments()
    texts = documents(given.files, given.megabytes * 1_000_000)
    size = sum(len(text.encode()) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as directory:
        lines = pathlib.Path(directory, "documents.jsonl")
        lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        tokenizer = given.tokenizer or str(pathlib.Path(directory, "tokenizer.json"))
        if not given.tokenizer:
            train = [given.plimsoll, "tokenizer", "train", "--vocabulary", str(given.vocabulary), "-o", tokenizer]
            subprocess.run([*train, str(lines)], check=True, stdout=subprocess.DEVNULL)
        theirs = tokenizers.Tokenizer.from_file(tokenizer)
        theirs.encode_special_tokens = True

        def encode():
            return theirs.encode_batch(texts, add_special_tokens=False)

        def tokenize(round):
            out = pathlib.Path(directory, f"shards-{round}")
            command = [given.plimsoll, "tokenize", "--tokenizer", tokenizer, "-o", str(out), str(lines)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return out

        separator = next(i for i in (theirs.token_to_id(t) for t in ("<|begin_of_text|>", "<|endoftext|>")) if i is not None)
        expected = numpy.concatenate([[separator, *encoding.ids] for encoding in encode()])
        shards = sorted(tokenize("check").glob("*.bin"))
        words = numpy.uint16 if theirs.get_vocab_size() <= 1 << 16 else numpy.uint32
        ours = numpy.concatenate([numpy.fromfile(shard, words, offset=1024) for shard in shards])
        assert numpy.array_equal(ours, expected), "the tokens differ"

        rounds = [(timed(encode)[0], timed(lambda: tokenize(round))[0]) for round in range(given.rounds)]
    cores = len(os.sched_getaffinity(0))
    python, plimsoll = (statistics.median(times) for times in zip(*rounds))
    ratio = statistics.median(theirs / ours for theirs, ours in rounds)
    print(f"{len(texts)} documents, {size:.1f} MB, {len(expected):,} tokens, {cores} cores, {given.rounds} rounds")
    print(f"tokenizers {tokenizers.__version__} encode_batch: {size / python:.1f} MB/s")
    print(f"plimsoll tokenize, the whole process: {size / plimsoll:.1f} MB/s, {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
