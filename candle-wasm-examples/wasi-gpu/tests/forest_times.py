"""Times the guests' forests beside those of scikit-learn and xgboost, on the same rows, and prints a line for each.

    pip install scikit-learn xgboost-cpu        (or xgboost, which also trains on CUDA; without either, there are fewer lines)
    python forest_times.py --host ../target/release/wasi-gpu \\
        --guest ../guests/target/wasm32-wasip2/release/forest-cli.wasm --device cpu --device cuda

All train on the same four fifths of the rows and predict the others, with the same number of trees, depth and features per split. What
differs: the guests and scikit-learn draw rows with replacement, xgboost 63.2% of them without; the guests try all thresholds, or with
--max-thresholds that many evenly spread in a node, xgboost 256 bins, scikit-learn all. Errors next to each other show what that matters.
Times are the least of --repeat; those of a guest are its own, after it was compiled and had read its file.
"""

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
WORD = 0xFFFFFFFF


def hash_word(word):
    """The guests' hash, see guests/trees/src/random.rs."""
    state = (word * 747796405 + 2891336453) & WORD
    mixed = (((state >> ((state >> 28) + 4)) ^ state) * 277803737) & WORD
    return (mixed >> 22) ^ mixed


def split(count, seed):
    """The guests' test and training rows."""
    order = list(range(count))
    state = seed
    for i in range(count):
        state = hash_word(state)
        pick = i + ((state * (count - i)) >> 32)
        order[i], order[pick] = order[pick], order[i]
    fifth = -(-count // 5)
    return order[:fifth], order[fifth:]


def synthetic(rows, features, path):
    """Friedman's first problem: five features of use, the others noise."""
    rng = np.random.default_rng(1)
    x = rng.random((rows, features), dtype=np.float32)
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = (y + rng.standard_normal(rows)).astype(np.float32)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"f{i}" for i in range(features)] + ["y"])
        writer.writerows([*map(str, row), str(label)] for row, label in zip(x, y))


class Case:
    def __init__(self, name, path, args, trees, depth, thresholds):
        self.name, self.path, self.args = name, path, args
        self.trees, self.depth, self.thresholds = trees, depth, thresholds
        table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float32)
        self.x, self.y = np.ascontiguousarray(table[:, :-1]), table[:, -1].copy()
        self.test, self.train = split(len(table), args.seed)
        self.tried = math.ceil(math.sqrt(self.x.shape[1]))

    def title(self):
        thresholds = f", {self.thresholds} thresholds by the guests" if self.thresholds else ""
        print(
            f"\n{self.name}: {len(self.train)} x {self.x.shape[1]}, {self.trees} trees of depth {self.depth}, "
            f"{self.tried} features per split{thresholds}"
        )
        print(f"{'':<42} {'training':>11} {'prediction':>11} {'error':>9}")

    def line(self, who, training, prediction, mse, more=""):
        print(f"{who:<42} {training * 1e3:>8.1f} ms {prediction * 1e3:>8.1f} ms {mse:>9.3f}  {more}", flush=True)

    def library(self, who, make):
        times = []
        for _ in range(self.args.repeat):
            model = make()
            start = time.perf_counter()
            model.fit(self.x[self.train], self.y[self.train])
            trained = time.perf_counter()
            found = model.predict(self.x[self.test])
            times.append((trained - start, time.perf_counter() - trained))
        mse = float(np.mean((found.astype(np.float64) - self.y[self.test]) ** 2))
        self.line(who, min(t[0] for t in times), min(t[1] for t in times), mse)

    def guest(self, device):
        command = [self.args.host, "run", "--timeout", f"{self.args.timeout}s", "--device", device]
        command += ["--dir", f"{self.path.parent}::/", self.args.guest, "--", f"/{self.path.name}"]
        command += ["--trees", str(self.trees), "--max-depth", str(self.depth), "--seed", str(self.args.seed)]
        command += ["--max-thresholds", str(self.thresholds)]
        reports = []
        for _ in range(self.args.repeat):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                print(f"guest on {device}: {done.stderr.strip()}", flush=True)
                return
            reports.append(json.loads(done.stdout))
        least = lambda key: min(report[key] for report in reports) / 1e3
        report = reports[0]
        more = f"{report['kernels']} kernels, {report['reads']} waits, hash {report['hash']}"
        who = f"guest on {device} ({report['gpu_device']})"
        self.line(who[:42], least("training_ms"), least("inference_ms"), report["mse"], more)


def libraries(case):
    state, jobs = case.args.seed, case.args.jobs
    try:
        import sklearn
        from sklearn.ensemble import RandomForestRegressor
    except ImportError:
        print("scikit-learn: not installed")
    else:
        for n in jobs:
            case.library(
                f"scikit-learn {sklearn.__version__}, {n} threads",
                lambda: RandomForestRegressor(
                    case.trees, max_depth=case.depth, max_features=case.tried, n_jobs=n, random_state=state
                ),
            )
    try:
        import xgboost
    except ImportError:
        print("xgboost: not installed")
        return
    for device in ["cpu"] + (["cuda"] if xgboost.build_info().get("USE_CUDA") else []):
        case.library(
            f"xgboost {xgboost.__version__} on {device}, {max(jobs)} threads",
            lambda: xgboost.XGBRFRegressor(
                n_estimators=case.trees,
                max_depth=case.depth,
                subsample=0.632,
                colsample_bynode=case.tried / case.x.shape[1],
                tree_method="hist",
                device=device,
                n_jobs=max(jobs),
                random_state=state,
            ),
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="wasi-gpu", help="the program wasi-gpu")
    parser.add_argument("--guest", help="forest-cli.wasm or forest-cpp.wasm; without it, only the libraries run")
    parser.add_argument("--device", action="append", default=[], help="as for wasi-gpu run; may be given several times")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the synthetic set, of which four fifths train")
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--trees", type=int, default=100, help="trees for the synthetic set")
    parser.add_argument("--depth", type=int, default=8, help="their depth")
    parser.add_argument("--max-thresholds", type=int, default=64, help="thresholds that a guest tries there; 0: all")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--jobs", type=int, action="append", help="threads of the libraries; first 1, then all, if not given")
    parser.add_argument("--data", choices=("diabetes", "synthetic"), action="append", help="both, if not given")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for a run of a guest")
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    args.jobs = args.jobs or sorted({1, len(os.sched_getaffinity(0))})

    with tempfile.TemporaryDirectory() as folder:
        cases = []
        if "diabetes" in (args.data or ["diabetes"]):
            cases.append(Case("diabetes", HERE / "fixtures/diabetes.csv", args, 200, 16, 0))
        if "synthetic" in (args.data or ["synthetic"]):
            path = Path(folder) / "synthetic.csv"
            synthetic(args.rows, args.features, path)
            cases.append(Case("synthetic", path, args, args.trees, args.depth, args.max_thresholds))
        for case in cases:
            case.title()
            libraries(case)
            for device in args.device if args.guest else []:
                case.guest(device)


if __name__ == "__main__":
    sys.exit(main())
