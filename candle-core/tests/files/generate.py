#!/usr/bin/env python3
"""Makes the files beside it: what NumPy and torch.save write, tiny.

Needs NumPy 2 (`pip install numpy`). PyTorch is not needed: the classes below have the names and the pickled form
of PyTorch's, as its serialization notes describe them: a zip archive with `data.pkl`, whose persistent ids name the
entries `data/N` that hold the storages.

The files are also where the fuzz targets start; a target reads those whose extension is its name.
"""

import collections
import io
import pickle
import struct
import sys
import types
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent

# Every file holds these numbers, in the order of their indices; unsigned types leave the signs away.
VALUES = np.arange(6).reshape(2, 3) - 2
UNSIGNED = np.abs(VALUES)


def arrays():
    found = {}
    for code in ["f2", "f4", "f8", "i2", "i4", "i8"]:
        found[code] = VALUES.astype("<" + code)
        found[code + "_big"] = VALUES.astype(">" + code)
    for code in ["u1", "u4"]:
        found[code] = UNSIGNED.astype("<" + code)
    found["b1"] = UNSIGNED > 1
    found["fortran"] = np.asfortranarray(VALUES.astype("f4"))
    found["fortran_3d"] = np.asfortranarray(np.arange(24, dtype="f4").reshape(2, 3, 4))
    found["scalar"] = np.array(-2, dtype="i8")
    found["empty"] = np.zeros((2, 0, 3), dtype="f4")
    return found


def npy():
    np.savez(HERE / "arrays.npz", **arrays())
    np.savez_compressed(HERE / "arrays_deflated.npz", **arrays())
    for version in [1, 2, 3]:
        with open(HERE / f"version{version}.npy", "wb") as file:
            np.lib.format.write_array(file, VALUES.astype("f4"), version=(version, 0))


def module(name, **members):
    made = types.ModuleType(name)
    for key, value in members.items():
        setattr(made, key, value)
        if callable(value):
            value.__module__ = name
            value.__qualname__ = value.__name__ = key
    sys.modules[name] = made
    return made


def named(*_args):
    """Stands for a function that is only named."""


def functions(*names):
    return {name: types.FunctionType(named.__code__, {}, name) for name in names}


STORAGES = {
    "FloatStorage": "f4",
    "DoubleStorage": "f8",
    "HalfStorage": "f2",
    "BFloat16Storage": "bf16",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "ByteStorage": "u1",
    "BoolStorage": "u1",
    "ComplexFloatStorage": "c8",
    "Float8_e4m3fnStorage": "f8e4m3",
    "UntypedStorage": "u1",
}
torch = module("torch", **{name: type(name, (), {}) for name in STORAGES})
torch.float8_e4m3fn = types.SimpleNamespace()
utils = module(
    "torch._utils", **functions("_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter")
)
subclass = module("torch._tensor", **functions("_rebuild_from_type_v2"), Tensor=type("Tensor", (), {}))


class Dtype:
    """A dtype, which PyTorch pickles as a global."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name


class Storage:
    def __init__(self, name, values):
        self.name = name
        self.values = np.asarray(values).reshape(-1)

    def bytes(self, order):
        kind = STORAGES[self.name]
        if kind == "bf16":
            high = self.values.astype("<f4").view("<u4") >> 16
            return high.astype(order + "u2").tobytes()
        if kind == "f8e4m3" or self.name == "UntypedStorage":
            table = {-2: 0xC0, -1: 0xB8, 0: 0, 1: 0x38, 2: 0x40, 3: 0x44}
            return bytes(table[int(value)] for value in self.values)
        return self.values.astype(order + kind).tobytes()


class Tensor:
    def __init__(self, storage, offset, size, stride, wrap=None):
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride
        self.wrap = wrap

    def __reduce_ex__(self, _protocol):
        hooks = collections.OrderedDict()
        args = (self.storage, self.offset, self.size, self.stride, False, hooks)
        if self.storage.name == "UntypedStorage":
            return utils._rebuild_tensor_v3, (*args, Dtype("float8_e4m3fn"), None)
        if self.wrap == "parameter":
            data = Tensor(self.storage, self.offset, self.size, self.stride)
            return utils._rebuild_parameter, (data, True, hooks)
        if self.wrap == "subclass":
            return subclass._rebuild_from_type_v2, (utils._rebuild_tensor_v2, subclass.Tensor, args, {})
        return utils._rebuild_tensor_v2, args


class Pickler(pickle._Pickler):
    """In Python, because the one in C does not let `save_global` be told what a dtype's module is."""

    def __init__(self, file, protocol=2, legacy=False):
        super().__init__(file, protocol=protocol)
        self.storages = {}
        self.legacy = legacy

    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        key, _ = self.storages.setdefault(id(value), (str(len(self.storages)), value))
        found = "storage", getattr(torch, value.name), key, "cpu", len(value.values)
        return (*found, None) if self.legacy else found

    def save_global(self, obj, name=None):
        if isinstance(obj, Dtype):
            self.write(pickle.GLOBAL + b"torch\n" + obj.name.encode() + b"\n")
            self.memoize(obj)
        else:
            super().save_global(obj, name)


def save(name, value, order="<", byte_order="little", compression=zipfile.ZIP_STORED, protocol=2):
    file = io.BytesIO()
    pickler = Pickler(file, protocol)
    pickler.dump(value)
    folder = Path(name).stem
    with zipfile.ZipFile(HERE / name, "w", compression) as archive:

        def entry(path, content):
            archive.writestr(zipfile.ZipInfo(f"{folder}/{path}"), content, compress_type=compression)

        entry("data.pkl", file.getvalue())
        if byte_order:
            entry("byteorder", byte_order)
        for key, storage in pickler.storages.values():
            entry(f"data/{key}", storage.bytes(order))
        entry("version", "3\n")


def save_legacy(name, value, protocol=2):
    """As PyTorch before 1.6: pickles in a row, then the storages."""
    file = io.BytesIO()
    pickle.dump(0x1950A86A20F9469CFC6C, file, protocol)
    pickle.dump(1001, file, protocol)
    sizes = {"short": 2, "int": 4, "long": 4}
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": sizes}
    pickle.dump(system, file, protocol)
    pickler = Pickler(file, protocol, legacy=True)
    pickler.dump(value)
    pickle.dump(sorted(key for key, _ in pickler.storages.values()), file, protocol)
    for _, storage in sorted(pickler.storages.values(), key=lambda item: item[0]):
        file.write(struct.pack("<q", len(storage.values)) + storage.bytes("<"))
    (HERE / name).write_bytes(file.getvalue())


def contiguous(storage, wrap=None):
    return Tensor(Storage(storage, UNSIGNED if "Byte" in storage or "Bool" in storage else VALUES), 0, (2, 3), (3, 1), wrap)


def state_dict():
    """What `module.state_dict()` returns: an ordered dictionary with an attribute."""
    tensors = [(name, contiguous(name)) for name in STORAGES if name != "BoolStorage"]
    tensors.append(("BoolStorage", Tensor(Storage("BoolStorage", UNSIGNED > 1), 0, (2, 3), (3, 1))))
    found = collections.OrderedDict(tensors)
    found._metadata = collections.OrderedDict([("", {"version": 1})])
    return found


def views():
    shared = Storage("FloatStorage", np.arange(24))
    tensors = {
        "whole": Tensor(shared, 0, (2, 3, 4), (12, 4, 1)),
        "transposed": Tensor(shared, 0, (6, 4), (1, 6)),
        "permuted": Tensor(shared, 0, (4, 2, 3), (1, 12, 4)),
        "rows": Tensor(shared, 8, (2, 4), (4, 1)),
        "columns": Tensor(shared, 2, (3, 2), (8, 1)),
        "last": Tensor(shared, 23, (), ()),
        "expanded": Tensor(shared, 5, (3, 2), (0, 1)),
        "none": Tensor(shared, 24, (0, 4), (4, 1)),
        "parameter": contiguous("FloatStorage", "parameter"),
        "subclass": contiguous("FloatStorage", "subclass"),
    }
    settings = [0.1, None, True, 1 << 40, 1 << 70, "text", (1, 2), {"nested": {}}, {1, 2}, complex(1, 2)]
    again = {"settings": settings}
    return {"epoch": 3, "model": tensors, "optimizer": {"state": [again, again], "lr": 1e-3}}


def pth():
    save("dtypes.pth", state_dict())
    save("big_endian.pth", {"w": contiguous("FloatStorage"), "h": contiguous("BFloat16Storage")}, ">", "big")
    save("views.pth", views())
    save("old_deflated.pth", {"w": contiguous("FloatStorage")}, byte_order=None, compression=zipfile.ZIP_DEFLATED)


def protocols():
    """Values for which protocols 4 and 5 have separate instructions."""
    odd = [b"ab", bytearray(b"cd"), frozenset({7}), {1, 2}, "\u00e9" * 200, b"x" * 300, 1 << 70, -5]
    for protocol in [3, 4, 5]:
        save(f"protocol{protocol}.pth", {"odd": odd, "model": views()["model"]}, protocol=protocol)
    save_legacy("legacy.pth", {"odd": odd, "model": views()["model"]})
    save_legacy("legacy4.pth", {"model": views()["model"], "all": state_dict()}, protocol=4)


def seeds():
    """Where the fuzzer starts for the formats that have no other file here."""
    file = io.BytesIO()
    Pickler(file).dump(views())
    (HERE / "views.pickle").write_bytes(file.getvalue())
    file = io.BytesIO()
    Pickler(file).dump(contiguous("FloatStorage"))
    (HERE / "tensor.pickle").write_bytes(file.getvalue())

    floats = VALUES.astype("<f4").tobytes()
    header = (
        b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},'
        b'"b":{"dtype":"BOOL","shape":[3],"data_offsets":[24,27]}}'
    )
    tensors = struct.pack("<Q", len(header)) + header + floats + b"\0\1\1"
    (HERE / "tiny.safetensors").write_bytes(tensors)

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    # Types of values: 4 u32, 8 text, 9 array. Types of tensors: 0 f32, 8 q8_0 with 34 bytes for 32 numbers.
    gguf = b"GGUF" + struct.pack("<IQQ", 3, 2, 3)
    gguf += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    gguf += text("general.alignment") + struct.pack("<II", 4, 32)
    gguf += text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    gguf += text("a") + struct.pack("<IQQIQ", 2, 3, 2, 0, 0)
    gguf += text("b") + struct.pack("<IQIQ", 1, 32, 8, 32)
    gguf += bytes(-len(gguf) % 32) + floats + bytes(8)
    gguf += np.float16(0.5).tobytes() + bytes(range(32))
    (HERE / "tiny.gguf").write_bytes(gguf)

    # Sizes of the vocabulary, of embeddings and so on; then tokens with scores, then tensors at multiples of 32.
    ggml = struct.pack("<I", 0x67676A74) + struct.pack("<8I", 3, 2, 3, 1, 1, 1, 1, 0)
    ggml += struct.pack("<I1sf", 1, b"a", 0.5) + struct.pack("<I1sf", 1, b"b", 1)
    ggml += struct.pack("<5I", 2, 1, 0, 3, 2) + b"w"
    ggml += bytes(-len(ggml) % 32) + floats
    (HERE / "tiny.ggml").write_bytes(ggml)

    imatrix = struct.pack("<ii1sii", 1, 1, b"w", 2, 6) + floats + struct.pack("<ii4s", 2, 4, b"text")
    (HERE / "tiny.imatrix").write_bytes(imatrix)


npy()
pth()
protocols()
seeds()
