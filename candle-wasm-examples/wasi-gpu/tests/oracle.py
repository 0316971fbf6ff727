"""Writes what scikit-learn makes of four data sets to fixtures/, for the tests of hosts, kernels and guests.

    pip install scikit-learn==1.9.1
    python oracle.py

Data and features are f32, as guests have them; scikit-learn computes in float64. Numbers are written so that the nearest f32 of each is the
one that was meant.

    data-NAME.json      rows, features, outputs (1, or the number of classes), data (row-major), labels
    diabetes.csv        the same for the guests that read a file
    trees-NAME.json     for each depth, the distinct trees of several random states (they break ties between features differently):
                        leaf (of each row), values (of each leaf, one for each output)
    predict.json        for each data set, some of a forest's trees as kernel-batch-predict takes them, and the mean of their leaves
    find-split.json     random nodes, and their scores in float64
    forests.json        how good a forest is on rows that it has not seen, and what is accepted
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import sklearn
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

OUT = Path(__file__).parent / "fixtures"
LOADERS = {
    "diabetes": load_diabetes,
    "iris": load_iris,
    "breast-cancer": load_breast_cancer,
    "digits": load_digits,
}
DEPTHS = (1, 2, 3, 4, 5)
RANDOM_STATES = range(24)
LEAF = 0xFFFFFFFF


def number(value):
    """The shortest decimal whose nearest f32 is `value`; null if there is none."""
    value = np.float32(value)
    if not np.isfinite(value):
        return None
    short = float(str(value))
    assert np.float32(short) == value, value
    return int(short) if short.is_integer() and abs(short) < 1e9 else short


def numbers(values):
    return [number(value) for value in np.asarray(values, dtype=np.float32).ravel()]


def double(value):
    """12 digits of a float64; null for infinity."""
    return float(f"{value:.12g}") if math.isfinite(value) else None


def write(name, content):
    path = OUT / name
    content = {"made by": f"tests/oracle.py, scikit-learn {sklearn.__version__}"} | content
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    size = path.stat().st_size
    print(f"{name}: {size} bytes")
    assert size < 300_000, f"{name} is too large to keep"


def load(name):
    data, labels = LOADERS[name](return_X_y=True)
    labels = labels.astype(np.float32)
    return data.astype(np.float32), labels, 1 if name == "diabetes" else int(labels.max()) + 1


def outputs_of(model, data, outputs):
    """(rows, outputs): a prediction, or the classes' shares."""
    return model.predict(data)[:, None] if outputs == 1 else model.predict_proba(data)


def data_file(name):
    data, labels, outputs = load(name)
    rows, features = data.shape
    content = {"rows": rows, "features": features, "outputs": outputs}
    write(f"data-{name}.json", content | {"data": numbers(data), "labels": numbers(labels)})
    if name == "diabetes":
        table = np.column_stack([data, labels])
        lines = [",".join([f"f{i}" for i in range(features)] + ["progression"])]
        lines += [",".join(str(value) for value in numbers(row)) for row in table]
        (OUT / "diabetes.csv").write_text("\n".join(lines) + "\n")


def trees_file(name):
    data, labels, outputs = load(name)
    kind = DecisionTreeRegressor if outputs == 1 else DecisionTreeClassifier
    depths = []
    for depth in DEPTHS:
        variants = {}
        for state in RANDOM_STATES:
            tree = kind(max_depth=depth, random_state=state).fit(data, labels)
            # Leaves by what they predict: two trees that predict the same are one variant.
            values, leaf = np.unique(np.round(outputs_of(tree, data, outputs), 9), axis=0, return_inverse=True)
            key = (tuple(leaf.ravel().tolist()), tuple(map(tuple, values.tolist())))
            variants.setdefault(key, []).append(state)
        depths.append(
            {
                "depth": depth,
                "variants": [
                    {"random_states": states, "leaf": list(leaf), "values": [[double(v) for v in row] for row in values]}
                    for (leaf, values), states in variants.items()
                ],
            }
        )
    write(f"trees-{name}.json", {"depths": depths})


def down(threshold):
    """The largest f32 that is not above it: f32 values go the same way at both."""
    nearest = np.float32(threshold)
    return nearest if float(nearest) <= threshold else np.nextafter(nearest, np.float32(-np.inf))


def predict_file():
    cases = []
    for name in LOADERS:
        data, labels, outputs = load(name)
        kind = RandomForestRegressor if outputs == 1 else RandomForestClassifier
        forest = kind(n_estimators=7, max_depth=6, random_state=3).fit(data, labels)
        nodes, offsets, depth = [], [], 0
        output = outputs - 1
        for tree in (estimator.tree_ for estimator in forest.estimators_):
            offsets.append(len(nodes))
            depth = max(depth, tree.max_depth)
            for i in range(tree.node_count):
                if tree.children_left[i] < 0:
                    nodes.append([LEAF, number(tree.value[i, 0, output]), 0, 0])
                else:
                    threshold = number(down(tree.threshold[i]))
                    nodes.append([int(tree.feature[i]), threshold, int(tree.children_left[i]), int(tree.children_right[i])])
        expected = outputs_of(forest, data, outputs)[:, output]
        cases.append(
            {
                "data": f"data-{name}.json",
                "trees": len(offsets),
                "max_depth": depth,
                "offsets": offsets,
                "nodes": nodes,
                "expected": [double(value) for value in expected],
            }
        )
    write("predict.json", {"tolerance": "1e-6, relative to the largest of the case", "cases": cases})


def squares(values):
    """The sum of squared distances from the mean."""
    return float(((values - values.mean()) ** 2).sum()) if len(values) else 0.0


def find_split_file():
    rng = np.random.default_rng(20)
    cases = []

    def case(what, rows, features, count, thresholds, change=None):
        data = rng.standard_normal((rows, features)).astype(np.float32)
        labels = rng.standard_normal(rows).astype(np.float32)
        indices = rng.integers(0, rows, count)
        feature = int(rng.integers(features))
        cuts = np.sort(rng.standard_normal(thresholds)).astype(np.float32)
        if change:
            data, labels, indices, cuts = change(data, labels, indices, cuts, feature)
        column, target = data[indices, feature], labels[indices].astype(np.float64)
        scores = []
        for cut in cuts:
            # A NaN is not at most anything: it goes right.
            left = column <= cut
            empty = left.all() or not left.any()
            scores.append(None if empty else double(squares(target[left]) + squares(target[~left])))
        cases.append(
            {
                "what": what,
                "n_features": features,
                "feature_idx": feature,
                "data": numbers(data),
                "labels": numbers(labels),
                "indices": [int(i) for i in indices],
                "thresholds": numbers(cuts),
                "node": double(squares(target)),
                "scores": scores,
            }
        )

    case("one row", 1, 1, 1, 3)
    case("two rows", 2, 1, 2, 5)
    case("a bootstrap sample", 64, 5, 64, 17)
    case("fewer indices than rows", 100, 3, 13, 8)
    case("more indices than rows", 9, 2, 300, 33)
    case("thresholds past a workgroup", 40, 4, 40, 257)
    case("rows past a workgroup", 700, 1, 700, 3)

    def duplicates(data, labels, indices, cuts, feature):
        data = np.round(data * 2) / 2
        return data.astype(np.float32), labels, indices, np.unique(data[:, feature]).astype(np.float32)

    def constant(data, labels, indices, cuts, feature):
        data[:, feature] = 0.5
        return data, labels, indices, np.array([0.25, 0.5, 0.75], dtype=np.float32)

    def one_sided(data, labels, indices, cuts, feature):
        return data, labels, indices, np.array([-100, 100], dtype=np.float32)

    def offset(data, labels, indices, cuts, feature):
        return data, (labels + np.float32(1e6)).astype(np.float32), indices, cuts

    def nan(data, labels, indices, cuts, feature):
        data[::3, feature] = np.nan
        return data, labels, indices, cuts

    def unsorted(data, labels, indices, cuts, feature):
        return data, labels, indices, rng.permutation(cuts)

    def one_hot(data, labels, indices, cuts, feature):
        return data, (labels > 0).astype(np.float32), indices, cuts

    case("duplicate values, thresholds among them", 90, 2, 90, 1, duplicates)
    case("a constant column", 30, 2, 30, 1, constant)
    case("thresholds below and above all", 30, 2, 30, 1, one_sided)
    case("labels of 1e6 and noise", 200, 3, 200, 21, offset)
    case("labels of 1e6 and noise, many rows", 600, 1, 900, 9, offset)
    case("NaN among the values (null here)", 60, 2, 60, 15, nan)
    case("thresholds in any order", 50, 2, 50, 25, unsorted)
    case("labels of 0 and 1", 120, 3, 120, 30, one_hot)
    write("find-split.json", {"tolerance": "1e-5 of node; null is infinity, and NaN in data", "cases": cases})


def forests_file():
    def stats(values):
        return {
            "mean": double(np.mean(values)),
            "deviation": double(np.std(values)),
            "least": double(min(values)),
            "most": double(max(values)),
        }

    cases = []
    for name, trees, depth in (("diabetes", 200, 16), ("iris", 100, 64), ("breast-cancer", 100, 64), ("digits", 60, 64)):
        data, labels, outputs = load(name)
        features = data.shape[1]
        tried = math.ceil(math.sqrt(features))
        rows = np.arange(len(data))
        if outputs == 1:
            train, test = train_test_split(rows, test_size=0.2, random_state=42)
        else:
            train, test = train_test_split(rows, test_size=0.25, random_state=42, stratify=labels)
        kind = RandomForestRegressor if outputs == 1 else RandomForestClassifier
        scores = []
        for state in range(10):
            forest = kind(trees, max_depth=depth, max_features=tried, random_state=state, n_jobs=2)
            found = forest.fit(data[train], labels[train]).predict(data[test])
            scores.append(float(np.mean((found - labels[test]) ** 2) if outputs == 1 else np.mean(found == labels[test])))
        sklearn_scores = stats(scores)
        case = {"data": f"data-{name}.json", "test": test.tolist(), "trees": trees, "max_depth": depth, "max_features": tried}
        if outputs == 1:
            constant = float(np.mean((labels[train].mean() - labels[test]) ** 2))
            # Wide enough for another generator of random numbers, far from a forest whose bagging does nothing.
            case |= {"score": "mse", "constant": double(constant), "accept": [2700, 3050]}
        else:
            least = sklearn_scores["mean"] - max(3 * sklearn_scores["deviation"], 1.5 / len(test))
            case |= {"score": "accuracy", "accept": [double(least), 1]}
        cases.append(case | {"scikit-learn": sklearn_scores})
        print(name, sklearn_scores, case["accept"])
    write("forests.json", {"cases": cases})


def main():
    OUT.mkdir(exist_ok=True)
    for name in LOADERS:
        data_file(name)
        trees_file(name)
    predict_file()
    find_split_file()
    forests_file()


if __name__ == "__main__":
    sys.exit(main())
