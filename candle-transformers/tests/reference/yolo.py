"""YOLOv8 by ultralytics and YOLOv3 by pytorchyolo, in float64: where the numbers in tests/cases/detect.rs come from.

Needs torch, ultralytics and, for YOLOv3, pytorchyolo and the authors' yolov3.cfg (pjreddie/darknet).

python3 yolo.py v8|v8-pose [N]       prints what the smallest network gives, or that of size N (n, s, m, l, x)
python3 yolo.py v3 CFG [NARROWER]    prints what a network of NARROWER times fewer channels gives, 8 in the test
    ... --save FOLDER                also writes weights.safetensors, in the names of lmz/candle-yolo-v8 and lmz/candle-yolo-v3, and
                                     both.safetensors: the picture and what comes of it
"""
import math
import os
import re
import sys
import tempfile
import types

import numpy as np
import torch

SIZE = (64, 96)
# ultralytics numbers all layers; those files name parts. Layers between them have no weights.
PARTS = {0: "net.b1.0", 1: "net.b1.1", 2: "net.b2.0", 3: "net.b2.1", 4: "net.b2.2", 5: "net.b3.0", 6: "net.b3.1", 7: "net.b4.0",
         8: "net.b4.1", 9: "net.b5.0", 12: "fpn.n1", 15: "fpn.n2", 16: "fpn.n3", 18: "fpn.n4", 19: "fpn.n5", 21: "fpn.n6", 22: "head"}


def v8_name(name):
    layer, rest = re.fullmatch(r"model\.(\d+)\.(.*)", name).groups()
    return PARTS[int(layer)] + "." + re.sub(r"^m\.", "bottleneck.", rest)


def numbers(seed, shape, scale, centre=0.0):
    """`Numbers` of tests/cases/support.rs."""
    f, u = np.float32, np.uint64
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(count, 6364136223846793005, u))
        sums = np.cumsum(np.concatenate([np.ones(1, u), powers[:-1]]))
        state = powers * u(seed) + sums * u(1442695040888963407)
    unit = (state >> u(40)).astype(f) / f(1 << 24)
    values = (f(2) * unit - f(1)) * f(scale) + f(centre)
    return torch.from_numpy(values.reshape(shape))


def made(name, shape, gain):
    """`Made` of tests/cases/vision.rs."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x0100000001B3 % 2**64
    if len(shape) < 2:
        return numbers(seed, shape, 0.1, 0.0 if name.endswith(("bias", "mean")) else 1.0)
    inputs = np.float32(math.prod(shape[1:]))
    return numbers(seed, shape, np.float32(gain) * np.sqrt(np.float32(3) / inputs))


def fill(model, to_name, gain):
    weights = {}
    for name, value in model.state_dict().items():
        if "num_batches" in name or "anchor" in name:
            continue
        weights[to_name(name)] = weight = made(to_name(name), tuple(value.shape), gain)
        value.copy_(weight)
    model.eval().double()
    return weights


def v8(task, size):
    from ultralytics.nn.tasks import DetectionModel, PoseModel
    kind, file = (PoseModel, f"yolov8{size}-pose.yaml") if task == "v8-pose" else (DetectionModel, f"yolov8{size}.yaml")
    model = kind(file, verbose=False)
    weights = fill(model, v8_name, 1.6)
    return weights, lambda xs: model(xs)[0]


def v3(cfg, narrower):
    # Which it takes for training alone, and which fits no numpy of today.
    sys.modules["imgaug"] = types.ModuleType("imgaug")
    from pytorchyolo.models import Darknet
    thin = lambda m: m[0] if m[1] == "255" else f"filters={int(m[1]) // narrower}"
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
        file.write(re.sub(r"filters\s*=\s*(\d+)", thin, open(cfg).read()))
        file.flush()
        model = Darknet(file.name)
    weights = fill(model, lambda name: name.removeprefix("module_list."), 1.0)

    def forward(xs):
        ys = model(xs).transpose(1, 2)
        # How likely an object is there, times how likely it is of a class.
        return torch.cat([ys[:, :4], ys[:, 4:5] * ys[:, 5:]], 1)
    return weights, forward


def show(ys):
    boxes, scores = ys[0, :4], ys[0, 4:]
    print("boxes", [round(x, 4) for x in boxes.mean(1).tolist()], "scores", round(scores.mean().item(), 6),
          "squares", round((scores * scores).mean().item(), 6))
    count = boxes.shape[1]
    for i in (0, count * 5 // 6, count - 1):
        print(i, [round(x, 4) for x in boxes[:, i].tolist()], [round(x, 6) for x in scores[:, i].tolist()[:4]],
              [round(x, 6) for x in scores[:, i].tolist()[-3:]])


def main(args):
    folder = None
    if "--save" in args:
        at = args.index("--save")
        folder, args = args[at + 1], args[:at] + args[at + 2:]
    if args and args[0] in ("v8", "v8-pose"):
        weights, forward = v8(args[0], args[1] if len(args) > 1 else "n")
    elif len(args) > 1 and args[0] == "v3":
        weights, forward = v3(args[1], int(args[2]) if len(args) > 2 else 8)
    else:
        sys.exit(__doc__)
    picture = numbers(5, (1, 3, *SIZE), 1.0)
    with torch.no_grad():
        result = forward(picture.double())
    show(result)
    if folder:
        from safetensors.torch import save_file
        save_file(weights, os.path.join(folder, "weights.safetensors"))
        save_file({"picture": picture, "result": result.float().contiguous()}, os.path.join(folder, "both.safetensors"))


main(sys.argv[1:])
