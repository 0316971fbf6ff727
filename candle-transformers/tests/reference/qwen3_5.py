"""What Transformers gives for tiny models with the gated delta rule: where tests/reference/qwen3_5.json comes from.

pip install torch transformers      # 5.24 wrote the file
python3 qwen3_5.py > qwen3_5.json

Weights are a function of their names, which tests/cases/qwen3_5.rs has too.
"""
import json
import math
import sys

import numpy as np
import torch
import transformers

TEXT = dict(
    model_type="qwen3_5_text", vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
    linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=8, linear_value_head_dim=12,
    linear_conv_kernel_dim=4, tie_word_embeddings=False,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25),
)
CASES = {
    "dense": TEXT,
    "dense, other layers": dict(
        TEXT, layer_types=["full_attention", "linear_attention", "linear_attention"], num_hidden_layers=3,
        attention_bias=True, tie_word_embeddings=True, linear_num_value_heads=2, linear_conv_kernel_dim=3, rms_norm_eps=0.01,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, partial_rotary_factor=0.5, factor=4.0,
                             original_max_position_embeddings=128),
    ),
    "experts": dict(
        {name: value for name, value in TEXT.items() if name != "intermediate_size"}, model_type="qwen3_5_moe_text",
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40,
    ),
}
TOKENS = 150
POSITIONS = [0, 3, 63, 64, 127, 128, 149]


def made(name, shape):
    f, state = np.float32, 7
    for byte in name.encode():
        state = (state * 0x100000001B3 + byte) % 2**64
    scale = f(np.sqrt(f(3) / f(shape[-1])))
    if len(shape) == 1:
        scale = f(2) if name.endswith("A_log") else f(0.5)
    values = np.empty(math.prod(shape), f)
    for i in range(len(values)):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        values[i] = (f(2) * f(f(state >> 40) / f(1 << 24)) - f(1)) * scale
    return torch.from_numpy(values.reshape(shape))


def logits(fields):
    config = transformers.AutoConfig.for_model(**fields)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(made(name, tuple(weight.shape)))
        ids = torch.tensor([[(i * 17 + 5) % fields["vocab_size"] for i in range(TOKENS)]])
        rows = model(ids, use_cache=False).logits[0, POSITIONS]
    return [[float(f"{x:.7g}") for x in row] for row in rows.tolist()]


cases = [dict(name=name, config=config, logits=logits(config)) for name, config in CASES.items()]
print(f"transformers {transformers.__version__}, torch {torch.__version__}", file=sys.stderr)
print(json.dumps(dict(tokens=TOKENS, positions=POSITIONS, cases=cases)))
