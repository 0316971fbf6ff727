#!/usr/bin/env python3
"""Makes digits.npz beside it: 1,797 handwritten digits, for examples/digits.rs.

    pip download --no-deps scikit-learn
    python3 digits.py scikit_learn-*.whl

The images are scikit-learn's copy of the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak (1998),
UCI Machine Learning Repository, https://doi.org/10.24432/C50P49 (CC BY 4.0; scikit-learn: BSD-3-Clause). Changed: the order, which is
random here, so that any part of the file is a fair sample.

The file has `images`, u8 (1797, 64), rows of 8 by 8 pixels from 0 (white) to 16 (black), and `labels`, u8 (1797).
"""

import gzip
import random
import struct
import sys
import zipfile
from pathlib import Path


def npy(values, shape):
    """Bytes as a NumPy file of u8."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    # The header is padded so that the array is aligned to 64 bytes.
    header = header.ljust(-(10 + len(header) + 1) % 64 + len(header)) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(values)


wheel = zipfile.ZipFile(sys.argv[1])
table = gzip.decompress(wheel.read("sklearn/datasets/data/digits.csv.gz")).decode()
rows = [[int(float(cell)) for cell in line.split(",")] for line in table.split()]
random.Random(0).shuffle(rows)
arrays = {
    "images": npy([pixel for row in rows for pixel in row[:64]], (len(rows), 64)),
    "labels": npy([row[64] for row in rows], (len(rows),)),
}
with zipfile.ZipFile(Path(__file__).with_name("digits.npz"), "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
    for name, content in arrays.items():
        # A fixed date: the same input makes the same file.
        info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
        file.writestr(info, content, zipfile.ZIP_DEFLATED, 9)
