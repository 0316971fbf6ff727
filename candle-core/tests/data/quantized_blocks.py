"""Writes quantized_blocks.bin: random blocks and their elements as the `gguf` package (pure numpy) decodes them.

    pip install gguf && python quantized_blocks.py

For each format, in the order below: one block's bytes, then its elements as little-endian f32.
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

# Where the f16 scales of a block are, in bytes.
SCALES = {
    T.Q4_0: [0],
    T.Q4_1: [0, 2],
    T.Q5_0: [0],
    T.Q5_1: [0, 2],
    T.Q8_0: [0],
    T.Q2_K: [80, 82],
    T.Q3_K: [108],
    T.Q4_K: [0, 2],
    T.Q5_K: [0, 2],
    T.Q6_K: [208],
}

random = np.random.default_rng(2024)
out = b""
for dtype, scales in SCALES.items():
    _, size = GGML_QUANT_SIZES[dtype]
    block = random.integers(0, 256, size, dtype=np.uint8)
    for at in scales:
        scale = np.float16(random.uniform(0.01, 2) * random.choice([-1, 1]))
        block[at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    out += block.tobytes() + dequantize(block, dtype).astype("<f4").tobytes()
Path(__file__).with_suffix(".bin").write_bytes(out)
