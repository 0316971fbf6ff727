"""Writes cases.json: tiny models, what Transformers 5.17 writes of them, and what it computes, for tests/cases/transformers.rs.

usage: generate.py, with torch, transformers and safetensors installed.

Weights come from a rule that the test repeats, so that only names and shapes are stored.
"""
import json, os, tempfile
import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, CONFIG_MAPPING
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
T, VOCAB = 12, 32


def numbers(name, count):
    """Numbers in -1..1 from FNV-1a of the name and the finaliser of MurmurHash3."""
    seed = np.uint32(2166136261)
    with np.errstate(over="ignore"):
        for byte in name.encode():
            seed = (seed ^ np.uint32(byte)) * np.uint32(16777619)
        h = seed ^ (np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9))
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x85EBCA6B)
        h ^= h >> np.uint32(13)
        h *= np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
    return (h >> np.uint32(8)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)


def weight(name, shape):
    u = numbers(name, int(np.prod(shape)) if shape else 1).reshape(shape)
    if name.endswith("running_var"):
        return np.float32(0.75) + np.float32(0.25) * u
    if name.endswith("bias") or name.endswith("running_mean"):
        return np.float32(0.2) * u
    if len(shape) <= 1:
        return np.float32(1) + np.float32(0.25) * u
    return np.float32(0.5) * u


def ruled(model, folder):
    """The model with the rule's weights, by the names that a file has, and their shapes."""
    model.save_pretrained(folder)
    path = f"{folder}/model.safetensors"
    found = load_file(path)
    # Whisper's sinusoids are computed there and here.
    made = lambda k, v: v.dtype == np.float32 and not k.endswith("encoder.embed_positions.weight")
    weights = {k: np.asarray(weight(k, v.shape)) if made(k, v) else v for k, v in found.items()}
    save_file(weights, path, metadata={"format": "pt"})
    model = type(model).from_pretrained(folder, attn_implementation="eager").float().eval()
    return model, {k: list(v.shape) for k, v in sorted(weights.items()) if v.dtype == np.float32}


DULL = ("architectures", "dtype", "transformers_version", "use_cache", "initializer_range", "bos_token_id", "eos_token_id",
        "pad_token_id", "attention_dropout", "id2label", "label2id", "output_router_logits", "router_aux_loss_coef", "hidden_dropout",
        "embd_pdrop", "resid_pdrop", "classifier_dropout", "router_jitter_noise", "rescale_prenorm_residual")


def written(folder, keep=()):
    config = json.load(open(f"{folder}/config.json"))
    return {k: v for k, v in config.items() if v is not None and (k in keep or k not in DULL)}


def rounded(x):
    return [float(f"{v:.6g}") for v in x.detach().flatten().tolist()]


CASES = []


def case(name, kind, model, compute, config=None, keep=()):
    with tempfile.TemporaryDirectory() as folder:
        model, weights = ruled(model, folder)
        with torch.no_grad():
            values = compute(model)
        CASES.append(dict(name=name, kind=kind, config=config or written(folder, keep), weights=weights,
                          expected={k: rounded(v) for k, v in values.items()}))
        print(name, len(weights))


IDS = [(7 * i + 3) % VOCAB for i in range(T)]


def causal(name, model_type, edit=None, **kw):
    fields = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                  num_key_value_heads=1, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    fields.update(kw)
    config = CONFIG_MAPPING[model_type](**{k: v for k, v in fields.items() if v is not None or k == "sliding_window"})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    ids = torch.tensor([IDS])
    case(name, "causal", model, lambda m: {"logits": m(input_ids=ids, use_cache=False).logits[0, [5, T - 1]]})


ROPE = lambda kind, **kw: dict(rope_type=kind, rope_theta=10000.0, **kw)
LONG = ROPE("longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.5, 2.0, 3.0, 4.0])
# Heads.
for family, more in dict(llama={}, gemma=dict(head_dim=8), gemma2=dict(head_dim=8), mixtral=dict(num_local_experts=2, sliding_window=None),
                         phi=dict(num_key_value_heads=2), falcon=dict(num_key_value_heads=None, intermediate_size=None),
                         lfm2=dict(layer_types=["conv", "full_attention"]), starcoder2={},
                         granite={}).items():
    causal(f"{family}-tied", family, tie_word_embeddings=True, **more)
    causal(f"{family}-untied", family, tie_word_embeddings=False, **more)
# Windows.
W = dict(use_sliding_window=True, sliding_window=4, num_hidden_layers=3)
MOE = dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8)
causal("qwen2-layer_types", "qwen2", layer_types=["sliding_attention", "full_attention", "sliding_attention"], **W)
causal("qwen2-max_window_layers", "qwen2", max_window_layers=1, **W)
causal("qwen2_moe-window", "qwen2_moe", max_window_layers=2, shared_expert_intermediate_size=8, **MOE, **W)
causal("qwen3_moe-window", "qwen3_moe", max_window_layers=2, head_dim=8, **MOE, **W)
# Rotations, sizes, biases, activations of Llama.
causal("llama-linear", "llama", rope_parameters=ROPE("linear", factor=2.5))
causal("llama-dynamic", "llama", rope_parameters=ROPE("dynamic", factor=2.0))
causal("llama-dynamic-past", "llama", max_position_embeddings=8, rope_parameters=ROPE("dynamic", factor=2.0))
causal("llama-yarn", "llama", rope_parameters=ROPE("yarn", factor=4.0, original_max_position_embeddings=16))
causal("llama-longrope", "llama", rope_parameters={**LONG, "original_max_position_embeddings": 32})
causal("llama-longrope-past", "llama", rope_parameters={**LONG, "original_max_position_embeddings": 8})
causal("llama-head_dim", "llama", head_dim=12)
causal("llama-biases", "llama", attention_bias=True, mlp_bias=True, hidden_act="gelu")
causal("granite-biases", "granite", attention_bias=True, mlp_bias=True)
causal("stablelm-qk_layernorm", "stablelm", qk_layernorm=True)
causal("phi3-longrope-past", "phi3", sliding_window=None, rope_parameters=LONG, original_max_position_embeddings=8)
# What Transformers 5 writes.
causal("granitemoehybrid-layer_types", "granitemoehybrid", layer_types=["attention", "attention"], num_local_experts=0,
       num_experts_per_tok=0, shared_intermediate_size=24, position_embedding_type="rope", mamba_n_heads=8, mamba_d_head=4,
       mamba_d_state=4, mamba_n_groups=1)
for tied in (True, False):
    for family, more in dict(mamba={}, mamba2=dict(num_heads=4, head_dim=8, state_size=8, n_groups=1, expand=2)).items():
        config = CONFIG_MAPPING[family](vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, tie_word_embeddings=tied, **more)
        ids = torch.tensor([IDS])
        case(f"{family}-{'tied' if tied else 'untied'}", family, AutoModelForCausalLM.from_config(config),
             lambda m: {"logits": m(input_ids=ids, use_cache=False).logits[0, [5, T - 1]]})

SEQ = dict(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2,
           relative_attention_num_buckets=8, relative_attention_max_distance=16, decoder_start_token_id=0)
for name, cls, family, more in (("t5", transformers.T5ForConditionalGeneration, "t5", {}),
                                ("t5-untied", transformers.T5ForConditionalGeneration, "t5", dict(tie_word_embeddings=False, feed_forward_proj="gated-gelu")),
                                ("mt5", transformers.MT5ForConditionalGeneration, "mt5", {}),
                                ("umt5", transformers.UMT5ForConditionalGeneration, "umt5", {})):
    ids, dec = torch.tensor([IDS]), torch.tensor([[0, 5, 9]])
    def both(m):
        out = m(input_ids=ids, decoder_input_ids=dec)
        return {"encoded": out.encoder_last_hidden_state[0, [0, T - 1]], "logits": out.logits[0, -1]}
    case(name, "t5", cls(CONFIG_MAPPING[family](**SEQ, **more)), both, keep=("pad_token_id", "eos_token_id"))


def pixels(*shape):
    return torch.from_numpy(numbers("pixels", int(np.prod(shape))).reshape(shape).copy())


SEG = dict(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2],
           num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16)
case("segformer", "segformer", transformers.SegformerForSemanticSegmentation(CONFIG_MAPPING["segformer"](**SEG, id2label={i: str(i) for i in range(3)})),
     lambda m: {"logits": m(pixel_values=pixels(1, 3, 32, 48)).logits})
WH = dict(vocab_size=VOCAB, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
          decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=6, max_target_positions=8,
          pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, suppress_tokens=[])
def hear(m):
    out = m(input_features=pixels(1, 8, 12), decoder_input_ids=torch.tensor([[3, 5, 9]]))
    return {"encoded": out.encoder_last_hidden_state, "logits": out.logits[0, -1]}
case("whisper", "whisper", transformers.WhisperForConditionalGeneration(CONFIG_MAPPING["whisper"](**WH)), hear)
TV = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, projection_dim=8)
for act in ("quick_gelu", "gelu"):
    config = CONFIG_MAPPING["clip"](projection_dim=8, text_config=dict(TV, vocab_size=VOCAB, max_position_embeddings=T, hidden_act=act, bos_token_id=1, eos_token_id=31, pad_token_id=0),
                                    vision_config=dict(TV, image_size=16, patch_size=8, hidden_act=act))
    ids = torch.tensor([IDS[:-1] + [31]])
    case(f"clip-{act}", "clip", transformers.CLIPModel(config), lambda m: {"logits": m(input_ids=ids, pixel_values=pixels(2, 3, 16, 16)).logits_per_text})

with open(f"{HERE}/cases.json", "w") as f:
    f.write(json.dumps(dict(transformers=transformers.__version__, ids=IDS)) + "\n")
    for c in CASES: f.write(json.dumps(c, separators=(",", ":")) + "\n")
