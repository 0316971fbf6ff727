"""Writes table_formats.bin: the elements of blocks in ggml's formats with tables as the `gguf` package (pure numpy) decodes them, and blocks
as it encodes them.

    pip install gguf && python table_formats.py

The bytes of blocks are those of `bytes_of`, which tests/quantized_tables.rs has too, so only elements are written: for each format, in the
order below, two blocks' as little-endian f32. Then, for each that gguf encodes: a block of the elements of `elements`.
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

# Where the f16 scale of a block is, in bytes; -1 for none, -2 for IQ1_M's, which is in the upper nibbles of its last four words.
SCALES = {
    T.IQ1_S: 0,
    T.IQ1_M: -2,
    T.IQ2_XXS: 0,
    T.IQ2_XS: 0,
    T.IQ2_S: 0,
    T.IQ3_XXS: 0,
    T.IQ3_S: 0,
    T.IQ4_NL: 0,
    T.IQ4_XS: 0,
    T.MXFP4: -1,
    T.TQ1_0: 52,
    T.TQ2_0: 64,
}


def bytes_of(seed, count):
    """The upper bytes of a linear congruential sequence."""
    state, out = seed, bytearray()
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        out.append(state >> 24)
    return out


def block(dtype, at, seed):
    """Any bits, with a finite scale: of its f16, the uppermost bit of the exponent is cleared."""
    _, size = GGML_QUANT_SIZES[dtype]
    out = bytes_of(seed, size)
    if at >= 0:
        out[at + 1] &= 0xBF
    elif at == -2:
        out[size - 1] &= 0xBF
    return np.frombuffer(bytes(out), np.uint8)


def elements(seed, count):
    """Steps of 1/64 between -2 and 2."""
    return (np.frombuffer(bytes(bytes_of(seed, count)), np.uint8).astype(np.float32) - 128) / 64


out = b""
for dtype, at in SCALES.items():
    for seed in (int(dtype), 1000 + int(dtype)):
        out += dequantize(block(dtype, at, seed), dtype).astype("<f4").tobytes()
for dtype in (T.MXFP4, T.TQ1_0, T.TQ2_0):
    out += quantize(elements(int(dtype), 256), dtype).tobytes()
Path(__file__).with_suffix(".bin").write_bytes(out)
