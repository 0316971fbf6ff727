#!/usr/bin/env python3
"""Measures every table of BENCHMARKS.md about language models on a GPU, in one run on one machine, and prints them as Markdown.

    cargo build --release -p candle-dvm
    python3 xtask/bench-gpu.py target/release/candle-dvm [--tables models,lengths,texts,drafts] [--devices webgpu,cuda] [--repeat 5]
        [--llama-bench PATH --gguf FOLDER --llama-name "llama.cpp CUDA"]

The program runs on random weights, so nothing is downloaded. A peer is llama.cpp's `llama-bench`, with files named `SHAPE-FORMAT.gguf`
(`llama-3-8b-q4_0.gguf`) in one folder; `--llama-bench` may be given more than once, each with a `--llama-name`. Every figure is a median of
`--repeat` measurements (llama-bench: its mean). Before the first, the largest shape runs for a few seconds, which raises the card's clocks.
A figure that could not be measured is printed as "–", and its reason goes to standard error. The exit status is 1 if there was one.
"""

import argparse
import json
import subprocess
import sys
import time

SHAPES = ["llama-3.2-1b", "llama-3-8b"]
FORMATS = ["f16", "q4_0", "q8_0"]
LARGE = ["--shape", "llama-3-8b", "--dtype", "q4_0"]
TIMEOUT = 300


class Bench:
    def __init__(self, args):
        self.args = args
        self.failed = False

    def fail(self, what, why):
        self.failed = True
        print(f"{what}: {why}", file=sys.stderr)

    def run(self, command):
        """The standard output of a command, or None with the reason on standard error."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as err:
            return self.fail(" ".join(command), err)
        if done.returncode != 0:
            return self.fail(" ".join(command), done.stderr.strip() or f"exit status {done.returncode}")
        return done.stdout

    def ours(self, device, *options, repeat=None):
        """The report of `candle-dvm bench --json`, or None."""
        repeat = str(repeat or self.args.repeat)
        out = self.run([self.args.program, "bench", "--device", device, "--repeat", repeat, "--json", *options])
        return None if out is None else json.loads(out)

    def theirs(self, bench, name, *options):
        """Tokens a second of one test of llama-bench, or None."""
        file = f"{self.args.gguf}/{name}.gguf"
        out = self.run([bench, "-m", file, "-ngl", "99", "-r", str(self.args.repeat), "-o", "json", *options])
        return None if out is None else json.loads(out)[-1]["avg_ts"]


def speed(report, part):
    """Median tokens a second of a part of a report."""
    return None if report is None else report[part]["median"]


def cell(number):
    return "–" if number is None else f"{number:,.0f}" if number >= 1000 else f"{number:.1f}"


def table(title, head, rows):
    print(f"\n### {title}\n")
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(str(x) for x in row) + " |", flush=True)


def names(bench):
    return [*bench.args.devices, *bench.args.llama_name]


def models(bench):
    prompts, generations = [], []
    for shape in SHAPES:
        for form in FORMATS:
            reports = [bench.ours(device, "--shape", shape, "--dtype", form) for device in bench.args.devices]
            peers = bench.args.llama_bench
            file = f"{shape}-{form}"
            prompts.append([shape, form, *(cell(speed(r, "prompt")) for r in reports),
                            *(cell(bench.theirs(p, file, "-p", "512", "-n", "0")) for p in peers)])
            generations.append([shape, form, *(cell(speed(r, "generation")) for r in reports),
                                *(cell(bench.theirs(p, file, "-p", "0", "-n", "128")) for p in peers)])
    head = ["shape", "weights", *names(bench)]
    table("Prompt of 512 tokens, tokens a second", head, prompts)
    table("Generation of 128 tokens, tokens a second", head, generations)


def lengths(bench):
    rows = []
    for tokens in [16, 64, 512, 2048, 7936]:
        # A process for each length: a first prompt pays for its kernels in the warm-up alone.
        options = [*LARGE, "--prompt", str(tokens), "--generate", "1"]
        ours = [speed(bench.ours(device, *options), "prompt") for device in bench.args.devices]
        peers = [bench.theirs(p, "llama-3-8b-q4_0", "-p", str(tokens), "-n", "0") for p in bench.args.llama_bench]
        rows.append([f"prompt of {tokens:,}", *map(cell, [*ours, *peers])])
    for keys in [8192, 32768]:
        options = [*LARGE, "--context", str(keys), "--prompt", "16", "--generate", "64"]
        ours = [speed(bench.ours(device, *options), "generation") for device in bench.args.devices]
        peers = [bench.theirs(p, "llama-3-8b-q4_0", "-p", "0", "-n", "64", "-d", str(keys)) for p in bench.args.llama_bench]
        rows.append([f"generation behind {keys:,} keys", *map(cell, [*ours, *peers])])
    table("Lengths, Llama 3 8B Q4_0, tokens a second", ["", *names(bench)], rows)


def texts(bench):
    rows = []
    for form in ["q4_0", "f16"]:
        for count in [1, 2, 4, 8, 16, 32, 64]:
            options = ["--shape", "llama-3-8b", "--dtype", form, "--batch", str(count), "--prompt", "16", "--generate", "64"]
            ours = [speed(bench.ours(device, *options), "generation") for device in bench.args.devices]
            rows.append([form, count, *map(cell, ours)])
    table("Texts that run together, Llama 3 8B, tokens a second in all", ["weights", "texts", *bench.args.devices], rows)


def drafts(bench):
    rows = []
    for form in ["f16", "q4_0"]:
        for accept in ["0.7", "0"]:
            options = ["--shape", "llama-3-8b", "--dtype", form, "--draft", "llama-3.2-1b", "--draft-dtype", "q4_0", "--accept", accept]
            for device in bench.args.devices:
                report = bench.ours(device, *options, repeat=1)
                cells = [] if report is None else [f"{r['proposed']}: {cell(r['tokens_per_second'])}" for r in report["lengths"]]
                rows.append([form, accept, device, ", ".join(cells) or "–"])
    table("A draft of 1B Q4_0 for 8B: number of proposed tokens, tokens a second", ["weights", "accepted", "device", "speeds"], rows)


TABLES = {"models": models, "lengths": lengths, "texts": texts, "drafts": drafts}


def listed(text):
    return [word for word in text.split(",") if word]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", help="a release build of candle-dvm")
    parser.add_argument("--tables", type=listed, default=list(TABLES))
    parser.add_argument("--devices", type=listed, default=["webgpu", "cuda"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--llama-bench", action="append", default=[], metavar="PATH")
    parser.add_argument("--llama-name", action="append", default=[], metavar="NAME")
    parser.add_argument("--gguf", default=".", metavar="FOLDER")
    args = parser.parse_args()
    unknown = [name for name in args.tables if name not in TABLES]
    if unknown:
        parser.error(f"no table {unknown[0]!r}: there are {', '.join(TABLES)}")
    if len(args.llama_bench) != len(args.llama_name):
        parser.error("each --llama-bench needs a --llama-name")
    bench = Bench(args)
    card = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"]
    version = (bench.run([args.program, "--version"]) or "").strip()
    for device in args.devices:
        bench.ours(device, *LARGE, repeat=3)
    clocks = subprocess.run(card, capture_output=True, text=True).stdout.strip() if args.devices else ""
    print(f"{version}, {time.strftime('%d %B %Y')}. {clocks or 'nvidia-smi is not here, so the clocks are unknown'}", flush=True)
    for name in args.tables:
        TABLES[name](bench)
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
