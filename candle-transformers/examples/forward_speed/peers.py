"""The models of `forward_speed`, with random weights, in PyTorch and in onnxruntime.

python peers.py torch cuda f16 resnet50:1 resnet50:32 vit-b16:32      # eager; torch and a card
python peers.py onnxruntime cpu f32 resnet50:1 minilm:64              # onnxruntime, onnx and numpy; --threads N
"""

import statistics
import sys
import time

PASSES, WARM_UP = 15, 3
LENS = [4 + (i * 37) % 61 for i in range(10_000)]


def report(name, dtype, batch, seconds):
    median = statistics.median(seconds)
    print(f"{name:9} {dtype:4} batch {batch:3}: {1e3 * median:9.2f} ms, {batch / median:9.1f} in a second", flush=True)


def timed(run, synchronize):
    for _ in range(WARM_UP):
        run()
    synchronize()
    seconds = []
    for _ in range(PASSES):
        start = time.perf_counter()
        run()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


# ---- PyTorch ----


def with_torch(device, dtype, jobs):
    import torch
    from torch import nn
    from torch.nn import functional as F

    kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

    class Bottleneck(nn.Module):
        def __init__(self, inp, mid, stride):
            super().__init__()
            out = 4 * mid
            self.a, self.an = nn.Conv2d(inp, mid, 1, bias=False), nn.BatchNorm2d(mid)
            self.b, self.bn = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid)
            self.c, self.cn = nn.Conv2d(mid, out, 1, bias=False), nn.BatchNorm2d(out)
            self.skip = None
            if stride != 1 or inp != out:
                self.skip = nn.Sequential(nn.Conv2d(inp, out, 1, stride, bias=False), nn.BatchNorm2d(out))

        def forward(self, x):
            y = F.relu(self.an(self.a(x)))
            y = F.relu(self.bn(self.b(y)))
            y = self.cn(self.c(y))
            return F.relu(y + (x if self.skip is None else self.skip(x)))

    def resnet50():
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inp = 64
        for mid, count, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
            for i in range(count):
                layers.append(Bottleneck(inp, mid, stride if i == 0 else 1))
                inp = 4 * mid
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))

    class Block(nn.Module):
        """A layer of ViT and CLIP (the norm before) or of BERT (the norm after)."""

        def __init__(self, dim, heads, inner, first, act):
            super().__init__()
            self.heads, self.first, self.act = heads, first, act
            self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
            self.up, self.down = nn.Linear(dim, inner), nn.Linear(inner, dim)

        def attend(self, x, mask, causal):
            b, t, d = x.shape
            split = lambda y: y.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            y = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)), mask, is_causal=causal)
            return self.o(y.transpose(1, 2).reshape(b, t, d))

        def forward(self, x, mask=None, causal=False):
            if self.first:
                x = x + self.attend(self.n1(x), mask, causal)
                return x + self.down(self.act(self.up(self.n2(x))))
            x = self.n1(x + self.attend(x, mask, causal))
            return self.n2(x + self.down(self.act(self.up(x))))

    class Vision(nn.Module):
        def __init__(self, patch, dim, heads, layers, out, act, before):
            super().__init__()
            self.patch = nn.Conv2d(3, dim, patch, patch)
            tokens = (224 // patch) ** 2 + 1
            self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, dim)), nn.Parameter(torch.zeros(1, tokens, dim))
            self.before = nn.LayerNorm(dim) if before else nn.Identity()
            self.layers = nn.ModuleList(Block(dim, heads, 4 * dim, True, act) for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, out)

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
            x = self.before(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x)[:, 0])

    quick = lambda x: x * torch.sigmoid(1.702 * x)

    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.vision = Vision(32, 768, 12, 12, 512, quick, True)
            self.words, self.pos = nn.Embedding(49408, 512), nn.Parameter(torch.zeros(1, 77, 512))
            self.layers = nn.ModuleList(Block(512, 8, 2048, True, quick) for _ in range(12))
            self.norm, self.head = nn.LayerNorm(512), nn.Linear(512, 512)

        def forward(self, pictures, ids):
            x = self.words(ids) + self.pos
            for layer in self.layers:
                x = layer(x, causal=True)
            x = self.head(self.norm(x)[torch.arange(len(ids)), ids.argmax(-1)])
            y = self.vision(pictures)
            return F.normalize(x) @ F.normalize(y).t()

    class MiniLm(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.pos, self.kind = nn.Embedding(30522, 384), nn.Embedding(512, 384), nn.Embedding(2, 384)
            self.norm = nn.LayerNorm(384)
            self.layers = nn.ModuleList(Block(384, 12, 1536, False, F.gelu) for _ in range(6))

        def forward(self, ids, mask):
            x = self.words(ids) + self.pos.weight[: ids.shape[1]] + self.kind.weight[0]
            x = self.norm(x)
            for layer in self.layers:
                x = layer(x, mask)
            return x

    made = {"resnet50": resnet50, "vit-b16": lambda: Vision(16, 768, 12, 12, 1000, F.gelu, False), "clip-b32": Clip, "minilm": MiniLm}
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else device}")
    with torch.inference_mode():
        for name, batch in jobs:
            kind = kinds[dtype]
            model = made[name]().eval().to(device, kind)
            pictures = torch.randn(batch, 3, 224, 224, device=device, dtype=kind)
            if name == "minilm":
                longest = max(LENS[:batch])
                ids = torch.randint(30522, (batch, longest), device=device)
                seen = torch.arange(longest, device=device) < torch.tensor(LENS[:batch], device=device)[:, None]
                run = lambda: model(ids, seen[:, None, None])
            elif name == "clip-b32":
                ids = torch.randint(49408, (batch, 77), device=device)
                run = lambda: model(pictures, ids)
            else:
                run = lambda: model(pictures)
            report(name, dtype, batch, timed(run, synchronize))


# ---- onnxruntime ----


class Graph:
    """An ONNX graph under construction: `op` adds a node and gives its output's name."""

    def __init__(self):
        import numpy

        self.np, self.rng = numpy, numpy.random.default_rng(0)
        self.nodes, self.weights = [], []

    def constant(self, array):
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def random(self, *shape):
        fan_in = self.np.prod(shape[1:])
        return self.constant((self.rng.standard_normal(shape) / self.np.sqrt(fan_in)).astype("float32"))

    def fill(self, value, n):
        return self.constant(self.np.full(n, value, "float32"))

    def ints(self, *values):
        return self.constant(self.np.array(values, "int64"))

    def op(self, kind, *inputs, **attributes):
        from onnx import helper

        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def session(self, inputs, output, threads):
        import onnxruntime
        from onnx import TensorProto, helper

        kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
        given = [helper.make_tensor_value_info(name, kinds[str(array.dtype)], array.shape) for name, array in inputs.items()]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        model = helper.make_model(
            helper.make_graph(self.nodes, "g", given, [result], self.weights), opset_imports=[helper.make_opsetid("", 20)], ir_version=10
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return lambda: session.run(None, inputs)


def with_onnxruntime(dtype, jobs, threads):
    import numpy as np
    import onnxruntime

    assert dtype == "f32", "onnxruntime is timed in f32"
    print(f"onnxruntime {onnxruntime.__version__}, {threads} threads")
    for name, batch in jobs:
        g = Graph()
        if name == "resnet50":
            inputs = {"x": np.random.randn(batch, 3, 224, 224).astype("float32")}
            out = resnet50_graph(g)
        elif name == "minilm":
            longest = max(LENS[:batch])
            seen = np.arange(longest) < np.array(LENS[:batch])[:, None]
            added = np.where(seen, 0, -1e9).astype("float32")[:, None, None]
            inputs = {"ids": np.random.randint(0, 30522, (batch, longest)), "mask": added}
            out = minilm_graph(g, batch, longest)
        else:
            sys.exit(f"{name} is not built for onnxruntime; resnet50 and minilm are")
        report(name, dtype, batch, timed(g.session(inputs, out, threads), lambda: None))


def resnet50_graph(g):
    def conv(x, inp, out, k, stride=1):
        pad = k // 2
        y = g.op("Conv", x, g.random(out, inp, k, k), kernel_shape=[k, k], strides=[stride] * 2, pads=[pad] * 4)
        return g.op("BatchNormalization", y, g.fill(1, out), g.fill(0, out), g.fill(0, out), g.fill(1, out))

    x = g.op("Relu", conv("x", 3, 64, 7, 2))
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inp = 64
    for mid, count, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(count):
            step, out = (stride if i == 0 else 1), 4 * mid
            y = g.op("Relu", conv(x, inp, mid, 1))
            y = conv(g.op("Relu", conv(y, mid, mid, 3, step)), mid, out, 1)
            skip = x if step == 1 and inp == out else conv(x, inp, out, 1, step)
            x, inp = g.op("Relu", g.op("Add", y, skip)), out
    x = g.op("Flatten", g.op("GlobalAveragePool", x))
    return g.op("Gemm", x, g.random(1000, 2048), g.fill(0, 1000), transB=1)


def minilm_graph(g, b, t, dim=384, heads=12, inner=1536):
    def norm(x):
        return g.op("LayerNormalization", x, g.fill(1, dim), g.fill(0, dim), axis=-1, epsilon=1e-12)

    def linear(x, inp, out):
        return g.op("Add", g.op("MatMul", x, g.random(inp, out)), g.fill(0, out))

    x = g.op("Add", g.op("Gather", g.random(30522, dim), "ids"), g.random(t, dim))
    x = norm(x)
    split = g.ints(b, t, heads, dim // heads)
    scale = g.constant(g.np.array((dim // heads) ** -0.5, "float32"))
    for _ in range(6):
        by_head = lambda perm: g.op("Transpose", g.op("Reshape", linear(x, dim, dim), split), perm=perm)
        q, k, v = by_head([0, 2, 1, 3]), by_head([0, 2, 3, 1]), by_head([0, 2, 1, 3])
        scores = g.op("Add", g.op("Mul", g.op("MatMul", q, k), scale), "mask")
        y = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
        y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), g.ints(b, t, dim))
        x = norm(g.op("Add", x, linear(y, dim, dim)))
        y = g.op("Gelu", linear(x, dim, inner))
        x = norm(g.op("Add", x, linear(y, inner, dim)))
    return x


if __name__ == "__main__":
    threads = 2
    args = sys.argv[1:]
    if "--threads" in args:
        at = args.index("--threads")
        threads = int(args[at + 1])
        del args[at : at + 2]
    if len(args) < 4 or args[0] not in ("torch", "onnxruntime"):
        sys.exit(__doc__)
    wanted = [(job.split(":")[0], int(job.split(":")[1])) for job in args[3:]]
    if args[0] == "torch":
        with_torch(args[1], args[2], wanted)
    else:
        with_onnxruntime(args[2], wanted, threads)
