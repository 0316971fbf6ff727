"""Writes pictures.json: tiny models that take images, and what Transformers 5.17 and Pillow 12 compute of them, for tests/cases/pictures.rs.

usage: pictures.py, with torch, transformers, safetensors and Pillow 12 installed (13 sometimes scales columns before rows, which rounds otherwise), beside generate.py, whose rule makes the weights.
"""
import json, os, re, tempfile, types
import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def from_generate(*names):
    """The functions of generate.py, without its cases."""
    source = open(f"{HERE}/generate.py").read()
    source = source[: source.index("CASES, FAILED")]
    space = {"__file__": f"{HERE}/generate.py"}
    exec(compile(source, "generate.py", "exec"), space)
    return [space[name] for name in names]


numbers, ruled, written, rounded = from_generate("numbers", "ruled", "written", "rounded")

from PIL import Image
from transformers import (
    Gemma3Config, Gemma3ForConditionalGeneration, Idefics3Config, Idefics3ForConditionalGeneration, Mistral3Config,
    Mistral3ForConditionalGeneration, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2VLConfig,
    Qwen2VLForConditionalGeneration, Qwen3VLConfig, Qwen3VLForConditionalGeneration, SmolVLMConfig, SmolVLMForConditionalGeneration,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.pixtral.processing_pixtral import PixtralProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

VOCAB, IMAGE, BEGIN, END = 32, 31, 29, 30
KEEP = ("image_token_index", "boi_token_index", "eoi_token_index", "image_token_id", "vision_start_token_id", "vision_end_token_id")
SETTINGS = ("size", "resample", "image_mean", "image_std", "rescale_factor", "max_image_size", "do_image_splitting", "patch_size", "merge_size",
            "temporal_patch_size")


def picture(width, height):
    """An image that a test can make: waves that no filter leaves as they are, and noise."""
    noise = numbers("picture", width * height * 3).reshape(height, width, 3)
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    wave = ((x * 7 + y * 5 + c * 40) % 97).astype(np.float32) / np.float32(97)
    values = (wave * np.float32(160) + (noise + np.float32(1)) * np.float32(40)).astype(np.uint8)
    return Image.fromarray(values, "RGB")


def striped(seed, width, height):
    """The images of the engine's tests."""
    noise, seed = numbers(seed, 3 * width * height), sum(seed.encode()) % 16
    values = np.zeros(3 * width * height, dtype=np.uint8)
    for i in range(len(values)):
        x, y, c = i // 3 % width, i // 3 // width, i % 3
        stripe = (x * (1 + seed % 3) + y * (seed % 5)) // 3 % 2
        values[i] = 120 * stripe + 40 * ((seed + c) % 3) + int((noise[i] + np.float32(1)) * np.float32(10))
    return Image.fromarray(values.reshape(height, width, 3), "RGB")


def greedy(model, processor, written, given):
    """The 8 most likely tokens after the begin token, an image and two words, of the images `a` and `c`; those of images are left out."""
    all = []
    for seed in ("a", "c"):
        found = processor(images=[striped(seed, 20, 13)], return_tensors="pt")
        ids, made = [1] + written(found) + [2, 5], []
        for _ in range(8):
            tokens = torch.tensor([ids + made])
            with torch.no_grad():
                logits = model(input_ids=tokens, **given(found, tokens)).logits[0, -1]
            logits[[7, 9, BEGIN, END, IMAGE]] = -torch.inf
            made.append(int(logits.argmax()))
        all.append(made)
    return all


def hexed(values, processor):
    """The bytes that numbers of pixels, (parts, 3, height, width), were."""
    mean, std = [np.array(numbers, dtype=np.float64).reshape(1, 3, 1, 1) for numbers in (processor.image_mean, processor.image_std)]
    exact = (np.asarray(values, dtype=np.float64) * std + mean) * 255
    whole = np.rint(exact)
    assert np.abs(exact - whole).max() < 1e-3
    return whole.astype(np.uint8).tobytes().hex()


def resized():
    """Pillow's own sizes: filters by their numbers, up and down, and one side alone."""
    cases = []
    for filter in (1, 2, 3):
        for (width, height), to in [((23, 17), (9, 12)), ((5, 4), (16, 11)), ((30, 9), (30, 4)), ((41, 3), (2, 3)), ((1, 1), (3, 2))]:
            image = picture(width, height).resize(to, resample=filter)
            cases.append({"filter": filter, "from": [width, height], "to": list(to), "bytes": np.asarray(image).tobytes().hex()})
    return cases


def whole(patches, grid, processor):
    """The image, (1, 3, height, width), whose patches these are: in squares, each as often as there are frames."""
    (_, rows, columns), patch, merge = grid, processor.patch_size, processor.merge_size
    shape = (rows // merge, columns // merge, merge, merge, 3, processor.temporal_patch_size, patch, patch)
    frames = np.asarray(patches).reshape(shape)
    assert (frames == frames[:, :, :, :, :, :1]).all()
    return frames[:, :, :, :, :, 0].transpose(4, 0, 2, 5, 1, 3, 6).reshape(1, 3, rows * patch, columns * patch)


def case(name, model, processor, sizes, ids, compute, texts=(), prompt=None):
    with tempfile.TemporaryDirectory() as folder:
        model, weights = ruled(model, folder)
        config = written(folder, KEEP)
    images = [picture(*size) for size in sizes]
    found = [processor(images=[image], return_tensors="np") for image in images]
    pixels = [np.asarray(one["pixel_values"]) for one in found]
    grids = [one["image_grid_thw"][0] for one in found if "image_grid_thw" in one]
    given = [torch.tensor(one if grids else one.reshape(-1, *one.shape[-3:])) for one in pixels]
    if grids:
        pixels = [whole(one, grid, processor) for one, grid in zip(pixels, grids)]
        given = (given, torch.tensor(np.array(grids)))
    pixels = [one.reshape(-1, *one.shape[-3:]) for one in pixels]
    with torch.no_grad():
        features, logits = compute(model, given, torch.tensor([ids]))
    settings = json.loads(processor.to_json_string())
    settings = {k: v for k, v in settings.items() if k in SETTINGS}
    print(name, [one.shape for one in pixels], tuple(features.shape), tuple(logits.shape))
    more = {"greedy": greedy(model, processor, *prompt)} if prompt else {}
    return {
        **more, "name": name, "config": config, "processor": settings, "weights": weights, "sizes": [list(size) for size in sizes], "ids": ids,
        "pixels": [hexed(one, processor) for one in pixels], "first": [rounded(torch.tensor(one.flatten()[:6])) for one in pixels],
        "features": rounded(features), "logits": rounded(logits), "texts": list(texts),
    }


def gemma3(name, sizes, resample=2):
    config = Gemma3Config(
        mm_tokens_per_image=4, image_token_index=IMAGE, boi_token_index=BEGIN, eoi_token_index=END,
        text_config=dict(
            vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
            head_dim=8, sliding_window=6, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            max_position_embeddings=64, query_pre_attn_scalar=8, pad_token_id=0,
        ),
        vision_config=dict(
            hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=4,
            vision_use_head=False,
        ),
    )
    processor = Gemma3ImageProcessorPil(size={"height": 16, "width": 16}, resample=resample)
    block = [BEGIN] + [IMAGE] * 4 + [END]
    ids = [2, 5, 9] + block + [7] + (block if len(sizes) > 1 else []) + [3, 8, 11, 4, 20, 6]

    def compute(model, pixels, ids):
        values = torch.cat(pixels)
        features = model.model.get_image_features(values).pooler_output
        types = (ids == IMAGE).long()
        return features.reshape(-1, 16), model(input_ids=ids, pixel_values=values, token_type_ids=types).logits[0]

    return case(name, Gemma3ForConditionalGeneration(config), processor, sizes, ids, compute)


def idefics3(name, sizes, kinds, splits=True):
    kind, network, processing = kinds
    config = kind(
        image_token_id=IMAGE, scale_factor=2, pad_token_id=0, tie_word_embeddings=False,
        text_config=dict(
            model_type="llama", vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=128, pad_token_id=0, rms_norm_eps=1e-5,
        ),
        vision_config=dict(
            hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=2,
        ),
    )
    processor = processing(size={"longest_edge": 24}, max_image_size={"longest_edge": 8}, do_image_splitting=splits)
    texts, ids = [], [1, 5]
    for size in sizes:
        found = processor(images=[picture(*size)], return_tensors="np", return_row_col_info=True)
        names = types.SimpleNamespace(fake_image_token="<fake_token_around_image>", global_image_tag="<global-img>",
                                      image_token="<image>", image_seq_len=4)
        text = Idefics3Processor.replace_image_token(names, {"rows": found["rows"], "cols": found["cols"]}, 0)
        texts.append(text)
        # One token for what is no image.
        ids += [7] + [IMAGE] * text.count("<image>") + [9]
    ids += [3, 8]

    def compute(model, pixels, ids):
        values = torch.cat(pixels)[None]
        features = model.model.get_image_features(values).pooler_output
        return features.reshape(-1, 16), model(input_ids=ids, pixel_values=values).logits[0]

    return case(name, network(config), processor, sizes, ids, compute, texts)


def qwen(name, kinds, sizes, text=(), vision=(), **processing):
    kind, network = kinds
    rope = dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 1, 1])
    config = kind(
        image_token_id=IMAGE, video_token_id=28, vision_start_token_id=BEGIN, vision_end_token_id=END, tie_word_embeddings=False,
        text_config=dict(
            vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
            max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=END, rope_parameters=rope, **dict(text),
        ),
        vision_config=dict(depth=3, num_heads=2, in_channels=3, patch_size=4, spatial_merge_size=2, temporal_patch_size=2, **dict(vision)),
    )
    processor = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, **processing)
    ids = [2, 5, 9]
    for size in sizes:
        grid = processor(images=[picture(*size)], return_tensors="np")["image_grid_thw"][0]
        ids += [BEGIN] + [IMAGE] * (int(grid.prod()) // 4) + [END, 7]
    ids += [3, 8, 11, 4, 20, 6]

    def compute(model, given, ids):
        patches, grids = given
        values = dict(pixel_values=torch.cat(patches), image_grid_thw=grids)
        found = model.model.get_image_features(**values)
        levels = [torch.cat(list(found.pooler_output), 0)] + list(getattr(found, "deepstack_features", None) or [])
        types = (ids == IMAGE).int()
        return torch.cat(levels, 1), model(input_ids=ids, mm_token_type_ids=types, **values).logits[0]

    written = lambda found: [BEGIN] + [IMAGE] * (int(found["image_grid_thw"].prod()) // 4) + [END]
    given = lambda found, tokens: dict(found, mm_token_type_ids=(tokens == IMAGE).int())
    return case(name, network(config), processor, sizes, ids, compute, prompt=(written, given))


def qwen2(name, sizes, **more):
    vision = dict(embed_dim=16, hidden_size=16, mlp_ratio=2)
    return qwen(name, (Qwen2VLConfig, Qwen2VLForConditionalGeneration), sizes, vision=vision, **more)


def qwen2_5(name, sizes, text=(), **more):
    vision = dict(hidden_size=16, intermediate_size=20, out_hidden_size=16, window_size=16, fullatt_block_indexes=[1])
    return qwen(name, (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration), sizes, text=text, vision=vision, **more)


def qwen3(name, sizes, deep=(0, 2), **more):
    vision = dict(hidden_size=16, intermediate_size=20, out_hidden_size=16, num_position_embeddings=16, deepstack_visual_indexes=list(deep))
    even = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return qwen(name, (Qwen3VLConfig, Qwen3VLForConditionalGeneration), sizes, text=dict(head_dim=8), vision=vision, **even, **more)


def mistral3(name, sizes, text=(), **more):
    config = Mistral3Config(
        image_token_index=IMAGE, spatial_merge_size=2, tie_word_embeddings=False, **more,
        text_config=dict(
            model_type="mistral", vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=128, pad_token_id=0, eos_token_id=END, sliding_window=None, **dict(text),
        ),
        vision_config=dict(
            model_type="pixtral", hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, image_size=48,
            patch_size=4, hidden_act="silu",
        ),
    )
    # The processor multiplies the size of a patch with those that are merged.
    processor = PixtralImageProcessorPil(size={"longest_edge": 48}, patch_size={"height": 8, "width": 8})
    texts, ids = [], [1, 5]

    def text(found):
        names = types.SimpleNamespace(patch_size=4, spatial_merge_size=2, image_token="<image>", image_break_token="[IMG_BREAK]",
                                      image_end_token="[IMG_END]")
        return PixtralProcessor.replace_image_token(names, found, 0)

    def written(found):
        known = {"<image>": IMAGE, "[IMG_BREAK]": BEGIN, "[IMG_END]": END}
        return [known[part] for part in re.findall(r"<image>|\[IMG_\w+\]", text(found))]

    for size in sizes:
        found = processor(images=[picture(*size)], return_tensors="np")
        texts.append(text(found))
        ids += written(found) + [9]
    ids += [3, 8]

    def compute(model, pixels, ids):
        sizes = torch.tensor([one.shape[-2:] for one in pixels])
        most = sizes.max(0).values
        padded = [torch.nn.functional.pad(one, (0, most[1] - one.shape[-1], 0, most[0] - one.shape[-2])) for one in pixels]
        values = dict(pixel_values=torch.cat(padded), image_sizes=sizes)
        features = torch.cat(list(model.model.get_image_features(**values).pooler_output), 0)
        return features, model(input_ids=ids, **values).logits[0]

    given = lambda found, tokens: dict(found)
    return case(name, Mistral3ForConditionalGeneration(config), processor, sizes, ids, compute, texts, prompt=(written, given))


SMOL = (SmolVLMConfig, SmolVLMForConditionalGeneration, SmolVLMImageProcessorPil)
IDEFICS = (Idefics3Config, Idefics3ForConditionalGeneration, Idefics3ImageProcessorPil)
cases = [
    gemma3("gemma3", [(23, 17), (9, 30)]),
    gemma3("gemma3-one", [(16, 16)], resample=3),
    idefics3("smolvlm", [(20, 13)], SMOL),
    idefics3("smolvlm-tall", [(3, 40), (8, 8)], SMOL),
    idefics3("idefics3-whole", [(13, 20)], IDEFICS, splits=False),
    # Tokens of 8 x 8 pixels: 5 x 3 and 3 x 4 of them, then too small and too large an image.
    qwen2_5("qwen2_5_vl", [(41, 23), (20, 35)], min_pixels=64, max_pixels=1024),
    qwen2_5("qwen2_5_vl-one", [(9, 5)], min_pixels=256, max_pixels=1024),
    qwen2("qwen2_vl", [(100, 13), (16, 16)], min_pixels=64, max_pixels=1024),
    qwen3("qwen3_vl", [(41, 23), (20, 35)], min_pixels=64, max_pixels=1024),
    qwen3("qwen3_vl-one", [(30, 30)], deep=[1], min_pixels=64, max_pixels=512),
    mistral3("mistral3", [(61, 25), (11, 20)]),
    mistral3("mistral3-biases", [(7, 9)], multimodal_projector_bias=True),
]
with open(f"{HERE}/pictures.json", "w") as file:
    lines = [json.dumps(one, separators=(",", ":")) for one in cases]
    file.write('{"resized":' + json.dumps(resized(), separators=(",", ":")) + ',\n"cases":[\n' + ",\n".join(lines) + "\n]}\n")
print("wrote", os.path.getsize(f"{HERE}/pictures.json"), "bytes")
