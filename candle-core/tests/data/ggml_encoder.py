"""Writes ggml_encoder.bin: rows of floats, a weight for each column, and the blocks that ggml's own encoder makes of them.

    pip install numpy && python ggml_encoder.py path/to/libggml-base.so

The file in the repository is that of ggml 0.26.0, as crates.io's llama-cpp-sys-2 0.1.161 carries it, built by GCC 12 for x86-64 with
`-O2 -ffp-contract=off`: with fused multiplications, which `-march=native` allows, a few codes come out differently.

All numbers are little endian: 14 rows of 512 f32, 512 f32 of weights, then for each format, in the order below, the blocks of all rows,
and where the format takes weights, those with weights.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np

ROW = 512
# Elements and bytes of a block, and whether there is an encoder with weights.
FORMATS = {
    "q4_0": (32, 18, True),
    "q4_1": (32, 20, True),
    "q5_0": (32, 22, True),
    "q5_1": (32, 24, True),
    "q8_0": (32, 34, False),
    "q8_1": (32, 36, False),
    "q2_K": (256, 84, True),
    "q3_K": (256, 110, True),
    "q4_K": (256, 144, True),
    "q5_K": (256, 176, True),
    "q6_K": (256, 210, True),
    "q8_K": (256, 292, False),
}
ggml = ctypes.CDLL(sys.argv[1])
random = np.random.default_rng(2026)


def rows():
    """Rows of different kinds; what is special has ordinary numbers around it."""
    normal = lambda: random.standard_normal(ROW)
    yield 0.05 * normal()
    yield random.uniform(-1, 1, ROW)
    yield random.standard_cauchy(ROW)
    yield random.uniform(5, 6, ROW)
    yield -random.uniform(1, 2, ROW)
    # Some of all, or nothing at all.
    yield normal() * (random.random(ROW) < 0.05)
    yield np.concatenate([np.zeros(ROW // 2), np.full(ROW // 2, -0.75)])
    outliers = 0.01 * normal()
    outliers[::37] *= 1e4
    yield outliers
    # A magnitude for each 16 elements, past those that scales can have at either end.
    yield normal() * (10.0 ** random.integers(-9, 4, ROW // 16)).repeat(16)
    yield 1e-16 * normal()
    yield 1e6 * normal()
    # Ties: between codes, between the largest elements, and of zeros with either sign.
    yield random.integers(-8, 8, ROW) / 8
    yield random.choice([-1.0, 1.0], ROW)
    yield np.where(random.random(ROW) < 0.5, random.choice([0.0, -0.0], ROW), random.random(ROW))


def encode(name, xs, weights):
    """The blocks of all rows, as bytes."""
    elements, size, _ = FORMATS[name]
    out = np.zeros(xs.size // elements * size, np.uint8)
    source, target = ctypes.c_void_p(xs.ctypes.data), ctypes.c_void_p(out.ctypes.data)
    if name in ("q8_1", "q8_K"):
        getattr(ggml, f"quantize_row_{name}_ref")(source, target, ctypes.c_int64(xs.size))
    else:
        importance = ctypes.c_void_p(None if weights is None else weights.ctypes.data)
        sizes = ctypes.c_int64(xs.size // ROW), ctypes.c_int64(ROW)
        getattr(ggml, f"quantize_{name}")(source, target, *sizes, importance)
    return out.tobytes()


xs = np.concatenate(list(rows())).astype("<f4")
weights = (random.exponential(1, ROW) * (random.random(ROW) < 0.9)).astype("<f4")
out = xs.tobytes() + weights.tobytes()
for name, (_, _, weighted) in FORMATS.items():
    out += encode(name, xs, None)
    if weighted:
        out += encode(name, xs, weights)
Path(__file__).with_suffix(".bin").write_bytes(out)
