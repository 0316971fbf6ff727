"""Writes src/quantized/k_quants/grids.rs from the tables of the `gguf` package.

    pip install gguf && python ggml_grids.py ../../src/quantized/k_quants/grids.rs
"""

import sys

import gguf.quants as q

HEAD = """//! The points of the grids of the IQ formats: what eight or four neighbouring magnitudes can be, in ggml's order.
//! `tests/data/ggml_grids.py` writes this file.

"""


def table(name, cls, bits, doc):
    """A grid as words: each element's place in the list of magnitudes, from the low bits up."""
    cls.init_grid()
    places = {float(value): i for i, value in enumerate(cls.grid_map)}
    rows = cls.grid.reshape(cls.grid_shape)
    words = [sum(places[float(v)] << (bits * i) for i, v in enumerate(row)) for row in rows]
    lines = [words[i : i + 16] for i in range(0, len(words), 16)]
    text = "\n".join("    " + " ".join(f"0x{word:04x}," for word in line) for line in lines)
    return f"/// {doc}\n#[rustfmt::skip]\npub(super) static {name}: [u16; {len(words)}] = [\n{text}\n];\n"


TABLES = [
    table("IQ1", q.IQ1_S, 2, "Eight of -1, 0 and 1, one more in two bits each."),
    table("IQ2_XXS", q.IQ2_XXS, 2, "Eight of three magnitudes, by their index in two bits."),
    table("IQ2_XS", q.IQ2_XS, 2, "As [`IQ2_XXS`], twice as many."),
    table("IQ2_S", q.IQ2_S, 2, "As [`IQ2_XXS`], four times as many."),
    table("IQ3_XXS", q.IQ3_XXS, 3, "Four of eight magnitudes, by their index in three bits."),
    table("IQ3_S", q.IQ3_S, 3, "As [`IQ3_XXS`], twice as many."),
]
with open(sys.argv[1], "w") as file:
    file.write(HEAD + "\n".join(TABLES))
