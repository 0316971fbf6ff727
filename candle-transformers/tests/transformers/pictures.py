"""Writes pictures.json: tiny models that take images, and what Transformers 5.17 and Pillow 12 compute of them, for tests/cases/pictures.rs.

usage: pictures.py, with torch, transformers, safetensors and Pillow 12 installed (13 sometimes scales columns before rows, which rounds otherwise), beside generate.py, whose rule makes the weights.
"""
import json, os, tempfile, types
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
    Gemma3Config, Gemma3ForConditionalGeneration, Idefics3Config, Idefics3ForConditionalGeneration, SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

VOCAB, IMAGE, BEGIN, END = 32, 31, 29, 30
KEEP = ("image_token_index", "boi_token_index", "eoi_token_index", "image_token_id")


def picture(width, height):
    """An image that a test can make: waves that no filter leaves as they are, and noise."""
    noise = numbers("picture", width * height * 3).reshape(height, width, 3)
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    wave = ((x * 7 + y * 5 + c * 40) % 97).astype(np.float32) / np.float32(97)
    values = (wave * np.float32(160) + (noise + np.float32(1)) * np.float32(40)).astype(np.uint8)
    return Image.fromarray(values, "RGB")


def hexed(values, mean=0.5, std=0.5):
    """The bytes that numbers of pixels were."""
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


def case(name, model, processor, sizes, ids, compute, texts=()):
    with tempfile.TemporaryDirectory() as folder:
        model, weights = ruled(model, folder)
        config = written(folder, KEEP)
    images = [picture(*size) for size in sizes]
    pixels = [np.asarray(processor(images=[image], return_tensors="np")["pixel_values"]) for image in images]
    pixels = [one.reshape(-1, *one.shape[-3:]) for one in pixels]
    with torch.no_grad():
        features, logits = compute(model, [torch.tensor(one) for one in pixels], torch.tensor([ids]))
    settings = json.loads(processor.to_json_string())
    settings = {k: v for k, v in settings.items() if k in ("size", "resample", "image_mean", "image_std", "rescale_factor",
                "max_image_size", "do_image_splitting")}
    print(name, [one.shape for one in pixels], tuple(features.shape), tuple(logits.shape))
    return {
        "name": name, "config": config, "processor": settings, "weights": weights, "sizes": [list(size) for size in sizes], "ids": ids,
        "pixels": [hexed(one) for one in pixels], "first": [rounded(torch.tensor(one.flatten()[:6])) for one in pixels],
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


SMOL = (SmolVLMConfig, SmolVLMForConditionalGeneration, SmolVLMImageProcessorPil)
IDEFICS = (Idefics3Config, Idefics3ForConditionalGeneration, Idefics3ImageProcessorPil)
cases = [
    gemma3("gemma3", [(23, 17), (9, 30)]),
    gemma3("gemma3-one", [(16, 16)], resample=3),
    idefics3("smolvlm", [(20, 13)], SMOL),
    idefics3("smolvlm-tall", [(3, 40), (8, 8)], SMOL),
    idefics3("idefics3-whole", [(13, 20)], IDEFICS, splits=False),
]
with open(f"{HERE}/pictures.json", "w") as file:
    lines = [json.dumps(one, separators=(",", ":")) for one in cases]
    file.write('{"resized":' + json.dumps(resized(), separators=(",", ":")) + ',\n"cases":[\n' + ",\n".join(lines) + "\n]}\n")
print("wrote", os.path.getsize(f"{HERE}/pictures.json"), "bytes")
