"""Writes cases.json: tiny models, what Transformers 5.17 writes of them, and what it computes, for tests/cases/transformers.rs.

usage: generate.py [part of a name[,part...]], with torch, transformers and safetensors installed, timm for networks of pictures, and peft for LoRA. Cases that are
not asked for stay as they are.

Weights come from a rule that the test repeats, so that only names and shapes are stored.
"""
import json, os, sys, tempfile
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


CASES, FAILED = [], []
PARTS = sys.argv[1].split(",") if len(sys.argv) > 1 else None


def wanted(name):
    return PARTS is None or any(part in name for part in PARTS)


def case(name, kind, model, compute, config=None, keep=()):
    """`model` makes it. A case that fails does not hold up the others; the script ends with an error then."""
    if not wanted(name): return
    try:
        with tempfile.TemporaryDirectory() as folder:
            model, weights = ruled(model(), folder)
            with torch.no_grad():
                values = compute(model)
            CASES.append(dict(name=name, kind=kind, config=config or written(folder, keep), weights=weights,
                              expected={k: rounded(v) for k, v in values.items()}))
            print(name, len(weights))
    except Exception as err:
        FAILED.append(name)
        print("failed:", name, type(err).__name__, str(err)[:300])


IDS = [(7 * i + 3) % VOCAB for i in range(T)]


def causal(name, model_type, edit=None, keep=(), **kw):
    fields = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                  num_key_value_heads=1, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    fields.update(kw)
    nulls = ("sliding_window", "q_lora_rank", "position_embedding_type")
    config = CONFIG_MAPPING[model_type](**{k: v for k, v in fields.items() if v is not None or k in nulls})
    ids = torch.tensor([IDS])
    case(name, "causal", lambda: AutoModelForCausalLM.from_config(config, attn_implementation="eager"),
         lambda m: {"logits": m(input_ids=ids, use_cache=False).logits[0, [5, T - 1]]}, keep=keep)


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
        case(f"{family}-{'tied' if tied else 'untied'}", family, lambda: AutoModelForCausalLM.from_config(config),
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
    case(name, "t5", lambda: cls(CONFIG_MAPPING[family](**SEQ, **more)), both, keep=("pad_token_id", "eos_token_id"))


def pixels(*shape):
    return torch.from_numpy(numbers("pixels", int(np.prod(shape))).reshape(shape).copy())


SEG = dict(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2],
           num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16)
case("segformer", "segformer", lambda: transformers.SegformerForSemanticSegmentation(CONFIG_MAPPING["segformer"](**SEG, id2label={i: str(i) for i in range(3)})),
     lambda m: {"logits": m(pixel_values=pixels(1, 3, 32, 48)).logits})
WH = dict(vocab_size=VOCAB, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
          decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=6, max_target_positions=8,
          pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, suppress_tokens=[])
def hear(m):
    out = m(input_features=pixels(1, 8, 12), decoder_input_ids=torch.tensor([[3, 5, 9]]))
    return {"encoded": out.encoder_last_hidden_state, "logits": out.logits[0, -1]}
case("whisper", "whisper", lambda: transformers.WhisperForConditionalGeneration(CONFIG_MAPPING["whisper"](**WH)), hear)
# Samples of the sound are the pixels. `steps` are the logits of all tokens, `greedy` what generate() makes of the sound.
MS = dict(vocab_size=VOCAB, intermediate_size=24, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2, encoder_num_attention_heads=2,
          decoder_num_attention_heads=2, max_position_embeddings=24, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
def listen(m):
    sound = pixels(1, 3000)
    out = m(input_values=sound, decoder_input_ids=torch.tensor([[1, 5, 9, 30, 7]]))
    text = m.generate(input_values=sound, max_new_tokens=8, do_sample=False)
    return {"encoded": out.encoder_last_hidden_state, "steps": out.logits, "greedy": text.float()}
# Of 12 elements of a head 10 are rotated, of 8 four, and all 8 with angles for 7.
for name, more in (("moonshine", dict(hidden_size=24, pad_head_dim_to_multiple_of=8)),
                   ("moonshine-part", dict(hidden_size=16, partial_rotary_factor=0.62, encoder_hidden_act="relu")),
                   ("moonshine-odd", dict(hidden_size=16))):
    case(name, "moonshine", lambda: transformers.MoonshineForConditionalGeneration(CONFIG_MAPPING["moonshine"](**MS, **more)), listen,
         keep=("eos_token_id",))
# From the sound on, as its processor makes the features, whose last frame is padding. The filters come from Transformers' own function in
# place of librosa's, which need not be installed.
def mel_bands(bands):
    from transformers.audio_utils import mel_filter_bank
    from transformers.models.parakeet.feature_extraction_parakeet import ParakeetFeatureExtractor
    made = ParakeetFeatureExtractor.__new__(ParakeetFeatureExtractor)
    transformers.SequenceFeatureExtractor.__init__(made, feature_size=bands, sampling_rate=16000, padding_value=0.0)
    made.hop_length, made.n_fft, made.win_length, made.preemphasis, made.return_attention_mask = 160, 512, 400, 0.97, True
    filters = mel_filter_bank(257, bands, 0.0, 8000.0, 16000, norm="slaney", mel_scale="slaney")
    made.mel_filters = torch.from_numpy(filters.T.copy()).float()
    return made
def spell(m):
    sound = pixels(6500).numpy()
    given = mel_bands(16)(sound, sampling_rate=16000, return_tensors="pt")
    # Without the mask: eager attention makes NaN of a vector that is padding.
    features = given["input_features"][:, :int(given["attention_mask"].sum())]
    return {"features": features[0, [0, 21, 39]], "logits": m(input_features=features).logits}
PK = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, conv_kernel_size=5, subsampling_conv_channels=4,
          num_mel_bins=16)
for name, more in (("parakeet", {}), ("parakeet-bare", dict(attention_bias=False, convolution_bias=False, scale_input=False))):
    case(name, "parakeet", lambda: transformers.ParakeetForCTC(CONFIG_MAPPING["parakeet_ctc"](vocab_size=VOCAB, pad_token_id=31,
         encoder_config=dict(PK, **more))), spell, keep=("pad_token_id",))
TV = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, projection_dim=8)
for act in ("quick_gelu", "gelu"):
    config = CONFIG_MAPPING["clip"](projection_dim=8, text_config=dict(TV, vocab_size=VOCAB, max_position_embeddings=T, hidden_act=act, bos_token_id=1, eos_token_id=31, pad_token_id=0),
                                    vision_config=dict(TV, image_size=16, patch_size=8, hidden_act=act))
    ids = torch.tensor([IDS[:-1] + [31]])
    case(f"clip-{act}", "clip", lambda: transformers.CLIPModel(config), lambda m: {"logits": m(input_ids=ids, pixel_values=pixels(2, 3, 16, 16)).logits_per_text})

# Every other family of decoders, as `auto` reads them.
NO = None
MOE2 = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8)
LINEAR = dict(num_hidden_layers=2, head_dim=8, linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=1,
              linear_num_value_heads=2, layer_types=["linear_attention", "full_attention"],
              rope_parameters=ROPE("default", partial_rotary_factor=0.5, mrope_section=[1, 1, 0], mrope_interleaved=True))
LATENT = dict(num_key_value_heads=2, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, moe_intermediate_size=8,
              n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=1)
GROUPS = dict(n_group=2, topk_group=1, routed_scaling_factor=2.5, norm_topk_prob=True)
FULL3 = ["sliding_attention", "sliding_attention", "full_attention"]
TWO_ROPES = dict(full_attention=ROPE("linear", factor=8.0), sliding_attention=ROPE("default"))
MAMBA = dict(num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=24, mamba_n_heads=8, mamba_d_head=4, mamba_d_state=4,
             mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=4)
for name, family, more in (
        ("mistral-window", "mistral", dict(sliding_window=4, head_dim=12)),
        ("mistral-yarn", "mistral", dict(sliding_window=NO, rope_parameters=ROPE("yarn", factor=4.0, original_max_position_embeddings=8))),
        ("qwen2-yarn", "qwen2", dict(rope_parameters=ROPE("yarn", factor=4.0, original_max_position_embeddings=8))),
        ("qwen3-bias", "qwen3", dict(head_dim=12, attention_bias=True)),
        ("qwen3_5_text", "qwen3_5_text", LINEAR),
        ("qwen3_5_moe_text", "qwen3_5_moe_text", dict(LINEAR, shared_expert_intermediate_size=8, **MOE2)),
        ("deepseek_v2-greedy", "deepseek_v2", dict(LATENT, q_lora_rank=NO, topk_method="greedy", n_group=1, topk_group=1)),
        ("deepseek_v2-groups", "deepseek_v2", dict(LATENT, q_lora_rank=12, topk_method="group_limited_greedy", n_group=2, topk_group=1,
                                                   routed_scaling_factor=4.0)),
        ("deepseek_v3", "deepseek_v3", dict(LATENT, q_lora_rank=12, **GROUPS)),
        ("gpt_oss", "gpt_oss", dict(num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=4,
                                    rope_parameters=ROPE("yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                                         original_max_position_embeddings=16))),
        ("granite-scales", "granite", dict(embedding_multiplier=6.0, attention_multiplier=0.1, residual_multiplier=0.3, logits_scaling=4.0)),
        ("granitemoehybrid-mamba", "granitemoehybrid", dict(MAMBA, layer_types=["mamba", "attention"], mamba_n_groups=1,
                                                            position_embedding_type=NO, residual_multiplier=0.5)),
        ("granitemoehybrid-mamba-experts", "granitemoehybrid", {**MAMBA, **dict(
            layer_types=["attention", "mamba"], mamba_n_groups=2, num_local_experts=4, num_experts_per_tok=2,
            position_embedding_type="rope", tie_word_embeddings=True)}),
        ("lfm2-adjusted", "lfm2", dict(layer_types=["full_attention", "conv"], block_auto_adjust_ff_dim=True, block_multiple_of=8,
                                       block_ffn_dim_multiplier=1.0, conv_L_cache=4, conv_bias=True)),
        ("phi-qk_layernorm", "phi", dict(qk_layernorm=True, num_key_value_heads=2, rope_parameters=ROPE("default", partial_rotary_factor=0.5))),
        ("phi3-window", "phi3", dict(sliding_window=4, tie_word_embeddings=True)),
        ("starcoder2-window", "starcoder2", dict(sliding_window=4, use_bias=False)),
        ("falcon-new", "falcon", dict(new_decoder_architecture=True, num_kv_heads=1, bias=False, alibi=False, num_key_value_heads=NO,
                                      intermediate_size=NO)),
        ("falcon-sequential", "falcon", dict(new_decoder_architecture=False, multi_query=True, parallel_attn=False, bias=True, alibi=False,
                                             num_key_value_heads=NO, intermediate_size=NO)),
        ("mpt", "mpt", dict(d_model=16, n_heads=2, n_layers=2, expansion_ratio=4, max_seq_len=64, hidden_size=NO, num_hidden_layers=NO,
                            num_attention_heads=NO, num_key_value_heads=NO, intermediate_size=NO, max_position_embeddings=NO)),
        ("gpt_bigcode", "gpt_bigcode", dict(multi_query=True, n_positions=64, n_embd=16, n_layer=2, n_head=2, hidden_size=NO,
                                            num_hidden_layers=NO, num_attention_heads=NO, num_key_value_heads=NO, intermediate_size=NO,
                                            max_position_embeddings=NO)),
        ("gpt_bigcode-heads", "gpt_bigcode", dict(multi_query=False, activation_function="gelu", n_inner=24, n_positions=64, n_embd=16,
                                                  n_layer=2, n_head=2, hidden_size=NO, num_hidden_layers=NO, num_attention_heads=NO,
                                                  num_key_value_heads=NO, intermediate_size=NO, max_position_embeddings=NO)),
        ("recurrent_gemma", "recurrent_gemma", dict(block_types=["recurrent", "attention"], attention_window_size=4, lru_width=24,
                                                    logits_soft_cap=30.0)),
        ("gemma2-caps", "gemma2", dict(head_dim=8, sliding_window=4, query_pre_attn_scalar=32, attn_logit_softcapping=2.0,
                                       final_logit_softcapping=3.0, attention_bias=True)),
        ("gemma3_text", "gemma3_text", dict(head_dim=8, sliding_window=4, query_pre_attn_scalar=32, num_hidden_layers=3, layer_types=FULL3,
                                            rope_parameters=TWO_ROPES)),
        ("helium", "helium", dict(head_dim=8, attention_bias=True, mlp_bias=True)),
        ("smollm3", "smollm3", dict(num_hidden_layers=3, no_rope_layers=[1, 0, 1])),
        ("smollm3-window", "smollm3", dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=4, no_rope_layers=[1, 0, 1])),
        ("olmo-clip_qkv", "olmo", dict(num_key_value_heads=2, clip_qkv=0.8)),
        ("olmo2", "olmo2", dict(attention_bias=True)),
        ("glm4", "glm4", dict(head_dim=8, attention_bias=True, rope_parameters=ROPE("default", partial_rotary_factor=0.5))),
        ("stablelm-parallel", "stablelm", dict(use_parallel_residual=True, use_qkv_bias=True,
                                               rope_parameters=ROPE("default", partial_rotary_factor=0.5)))):
    causal(name, family, **more)

# Families that Candle lacks.
GPT2 = dict(n_positions=64, n_embd=16, n_layer=2, n_head=2, hidden_size=NO, num_hidden_layers=NO, num_attention_heads=NO,
            num_key_value_heads=NO, intermediate_size=NO, max_position_embeddings=NO)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2)
SOME = dict(num_local_experts=4, num_experts_per_tok=2)
for name, family, more in (
        ("olmo3", "olmo3", dict(num_hidden_layers=4, sliding_window=4, rope_parameters=dict(
            full_attention=ROPE("yarn", factor=4.0, original_max_position_embeddings=8), sliding_attention=ROPE("default")))),
        ("glm", "glm", dict(head_dim=8)),
        ("exaone4", "exaone4", dict(sliding_window=4, num_hidden_layers=4)),
        ("exaone4-no-window", "exaone4", dict(sliding_window=NO, layer_types=["full_attention"] * 2, tie_word_embeddings=True)),
        ("cohere", "cohere", dict(logit_scale=0.3)),
        ("cohere-qk_norm", "cohere", dict(use_qk_norm=True, attention_bias=True, tie_word_embeddings=False)),
        ("cohere2", "cohere2", dict(logit_scale=0.25, sliding_window=4, num_hidden_layers=4)),
        ("gpt_neox", "gpt_neox", dict(num_key_value_heads=NO)),
        ("gpt_neox-sequential", "gpt_neox", dict(num_key_value_heads=NO, use_parallel_residual=False, hidden_act="gelu_fast",
                                                 rope_parameters=ROPE("default", partial_rotary_factor=0.5))),
        ("arcee", "arcee", dict(mlp_bias=True)),
        ("seed_oss", "seed_oss", dict(head_dim=12)),
        ("ernie4_5", "ernie4_5", dict(head_dim=8, use_bias=True)),
        ("nemotron", "nemotron", dict(mlp_bias=True, rope_parameters=ROPE("default", partial_rotary_factor=0.5))),
        ("apertus", "apertus", dict(rope_parameters=ROPE("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                         original_max_position_embeddings=16), dtype="float32")),
        ("hunyuan_v1_dense", "hunyuan_v1_dense", dict(head_dim=8, rope_parameters=ROPE("dynamic", alpha=50.0, factor=1.0))),
        ("ministral", "ministral", dict(head_dim=12, sliding_window=4, layer_types=["sliding_attention", "full_attention"])),
        ("ministral3", "ministral3", dict(head_dim=8, rope_parameters=ROPE("yarn", type="yarn", factor=4.0, llama_4_scaling_beta=0.5,
                                                                           original_max_position_embeddings=4))),
        ("gpt2", "gpt2", GPT2),
        ("gpt2-by-layer", "gpt2", dict(GPT2, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False)),
        ("olmoe", "olmoe", EXPERTS),
        ("granitemoe", "granitemoe", dict(SOME, attention_multiplier=0.1, residual_multiplier=0.3, logits_scaling=4.0)),
        ("granitemoeshared", "granitemoeshared", dict(SOME, shared_intermediate_size=12, embedding_multiplier=6.0)),
        ("phimoe", "phimoe", dict(SOME, sliding_window=NO, lm_head_bias=True, attention_bias=True, router_jitter_noise=0.3,
                                 keep=("router_jitter_noise",))),
        ("glm4_moe", "glm4_moe", dict(GROUPS, head_dim=8, use_qk_norm=True, attention_bias=True, moe_intermediate_size=8,
                                      n_routed_experts=4, num_experts_per_tok=1, first_k_dense_replace=1)),
        ("lfm2_moe", "lfm2_moe", dict(EXPERTS, moe_intermediate_size=8, num_dense_layers=1, conv_L_cache=3, layer_types=["conv", "full_attention"])),
        ("falcon_h1", "falcon_h1", dict(mamba_d_ssm=24, mamba_n_heads=6, mamba_d_head=4, mamba_d_state=4, mamba_n_groups=2, mamba_d_conv=4,
                                        mamba_chunk_size=4, embedding_multiplier=3.0, lm_head_multiplier=0.3, mlp_multipliers=[0.8, 0.6],
                                        key_multiplier=0.4, attention_out_multiplier=0.7, attention_in_multiplier=1.3,
                                        ssm_multipliers=[0.35, 0.25, 0.18, 0.5, 0.31], ssm_in_multiplier=1.25, ssm_out_multiplier=0.24)),
        ("qwen3_next", "qwen3_next", dict(LINEAR, shared_expert_intermediate_size=8, **MOE2,
                                          rope_parameters=ROPE("default", partial_rotary_factor=0.5))),
        ("qwen3_next-dense", "qwen3_next", dict(LINEAR, shared_expert_intermediate_size=8, mlp_only_layers=[0], norm_topk_prob=False, **MOE2,
                                                rope_parameters=ROPE("default", partial_rotary_factor=0.5)))):
    causal(name, family, **more)

# Encoders of text, as `embed` reads them. The mask hides the last two tokens.
def embed(name, family, **kw):
    fields = dict(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                  max_position_embeddings=32, pad_token_id=0)
    fields.update(kw)
    config = CONFIG_MAPPING[family](**{k: v for k, v in fields.items() if v is not None})
    ids, mask = torch.tensor([IDS]), torch.ones(1, T, dtype=torch.long)
    mask[0, T - 2:] = 0
    case(name, "embed", lambda: transformers.AutoModel.from_config(config, attn_implementation="eager"),
         lambda m: {"hidden": m(input_ids=ids, attention_mask=mask).last_hidden_state[0, [0, 5, T - 3]]},
         keep=("pad_token_id",))

HEADS = dict(num_key_value_heads=1, bos_token_id=1, eos_token_id=2)
APART = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4, norm_rel_ebd="layer_norm", share_att_key=True,
             position_biased_input=False, max_relative_positions=-1)
for name, family, more in (
        ("embed-bert", "bert", dict(hidden_act="relu")),
        ("embed-bert-tanh", "bert", dict(hidden_act="gelu_new")),
        ("embed-distilbert", "distilbert", dict(dim=16, n_layers=2, n_heads=2, hidden_dim=24, activation="relu", hidden_size=NO,
                                                num_hidden_layers=NO, num_attention_heads=NO, intermediate_size=NO)),
        ("embed-roberta", "roberta", dict(type_vocab_size=1, pad_token_id=1)),
        ("embed-xlm-roberta", "xlm-roberta", dict(type_vocab_size=1, pad_token_id=1, hidden_act="relu")),
        ("embed-modernbert", "modernbert", dict(local_attention=4, num_hidden_layers=4, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)),
        ("embed-modernbert-silu", "modernbert", dict(local_attention=4, hidden_activation="silu", cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)),
        ("embed-deberta-v2", "deberta-v2", APART),
        ("embed-deberta-v2-conv", "deberta-v2", dict(APART, conv_kernel_size=3, conv_act="gelu", hidden_act="relu")),
        ("embed-nomic_bert", "nomic_bert", {}),
        ("embed-qwen2", "qwen2", HEADS),
        ("embed-qwen3", "qwen3", dict(HEADS, head_dim=8)),
        ("embed-mistral", "mistral", dict(HEADS, sliding_window=4)),
        ("embed-gemma3_text", "gemma3_text", dict(HEADS, use_bidirectional_attention=True, sliding_window=4, head_dim=8,
                                                  layer_types=["sliding_attention", "full_attention"]))):
    embed(name, family, **more)

EURO = dict(HEADS, num_key_value_heads=1, num_attention_heads=4, rope_parameters=ROPE("default"))
embed("embed-eurobert", "eurobert", **EURO)
embed("embed-eurobert-biases", "eurobert", **dict(EURO, attention_bias=True, mlp_bias=True, hidden_act="gelu"))
embed("embed-jina_embeddings_v3", "jina_embeddings_v3", type_vocab_size=1, pad_token_id=1, rope_parameters=ROPE("default"))

# Rerankers: two pairs in a batch, of which the second is filled up. Its document begins earlier.
def rerank(name, family, segments=False, **kw):
    fields = dict(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                  max_position_embeddings=32, pad_token_id=0, num_labels=1)
    fields.update(kw)
    config = CONFIG_MAPPING[family](**{k: v for k, v in fields.items() if v is not None})
    short = [9, 4, 30, 6, 11, 17, 8]
    ids = torch.tensor([IDS, short + [config.pad_token_id] * (T - len(short))])
    given = dict(input_ids=ids, attention_mask=torch.tensor([[1] * T, [1] * len(short) + [0] * (T - len(short))]))
    if segments:
        given["token_type_ids"] = torch.tensor([[0] * 5 + [1] * 7, [0] * 2 + [1] * 5 + [0] * 5])
    case(name, "rerank", lambda: transformers.AutoModelForSequenceClassification.from_config(config, attn_implementation="eager"),
         lambda m: {"logits": m(**given).logits[:, 0]}, keep=("architectures", "pad_token_id", "id2label"))

MODERN = dict(local_attention=4, num_hidden_layers=4, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)
for name, family, more in (
        ("rerank-bert", "bert", dict(segments=True)),
        ("rerank-distilbert", "distilbert", dict(dim=16, n_layers=2, n_heads=2, hidden_dim=24, hidden_size=NO, num_hidden_layers=NO,
                                                 num_attention_heads=NO, intermediate_size=NO)),
        ("rerank-roberta", "roberta", dict(type_vocab_size=1, pad_token_id=1)),
        ("rerank-xlm-roberta", "xlm-roberta", dict(type_vocab_size=1, pad_token_id=1)),
        ("rerank-modernbert", "modernbert", dict(MODERN, classifier_pooling="cls")),
        ("rerank-modernbert-mean", "modernbert", dict(MODERN, classifier_pooling="mean", classifier_bias=True, classifier_activation="silu",
                                                      norm_eps=1e-3)),
        ("rerank-deberta-v2", "deberta-v2", dict(APART, segments=True, type_vocab_size=2)),
        ("rerank-eurobert", "eurobert", dict(EURO, classifier_pooling="late")),
        ("rerank-eurobert-mean", "eurobert", dict(EURO, classifier_pooling="mean")),
        ("rerank-eurobert-bos", "eurobert", dict(EURO, classifier_pooling="bos"))):
    rerank(name, family, **more)
# A language model that answers whether a document meets the query: what the token 7 (yes) is ahead of the token 11 (no) at the end.
for name, tied in (("rerank-qwen3", True), ("rerank-qwen3-untied", False)):
    config = CONFIG_MAPPING["qwen3"](vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                                     head_dim=8, intermediate_size=24, max_position_embeddings=32, tie_word_embeddings=tied)
    def answer(m):
        ends = [m(input_ids=torch.tensor([ids])).logits[0, -1] for ids in (IDS, [9, 4, 30, 6, 11, 17, 8])]
        return {"logits": torch.stack([end[7] - end[11] for end in ends])}
    case(name, "rerank", lambda: AutoModelForCausalLM.from_config(config, attn_implementation="eager"), answer, keep=("architectures",))

# Models of two parts.
MARIAN = dict(vocab_size=VOCAB, d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=1,
              encoder_ffn_dim=24, decoder_ffn_dim=20, max_position_embeddings=16, pad_token_id=0, eos_token_id=2, decoder_start_token_id=0,
              forced_eos_token_id=2)
for act, more in (("swish", {}), ("relu", dict(share_encoder_decoder_embeddings=False, decoder_vocab_size=VOCAB, tie_word_embeddings=False))):
    def both(m):
        out = m(input_ids=torch.tensor([IDS]), decoder_input_ids=torch.tensor([[0, 5, 9]]))
        return {"encoded": out.encoder_last_hidden_state[0, [0, T - 1]], "logits": out.logits[0, -1]}
    config = CONFIG_MAPPING["marian"](**MARIAN, scale_embedding=act == "swish", activation_function=act, **more)
    case(f"marian-{act}", "marian", lambda: transformers.MarianMTModel(config), both,
         keep=("pad_token_id", "eos_token_id", "forced_eos_token_id", "decoder_start_token_id", "use_cache"))

EYE = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=16, patch_size=8)
TEXT = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=VOCAB)
KEPT = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id", "image_token_id", "id2label")
config = CONFIG_MAPPING["chinese_clip"](projection_dim=8, text_config=dict(TEXT, max_position_embeddings=16, hidden_act="gelu", pad_token_id=0),
                                        vision_config=dict(EYE, projection_dim=8, hidden_act="quick_gelu"))
case("chinese_clip", "chinese_clip", lambda: transformers.ChineseCLIPModel(config), lambda m: {
    "logits": m(input_ids=torch.tensor([IDS]), attention_mask=torch.ones(1, T, dtype=torch.long), pixel_values=pixels(2, 3, 16, 16)).logits_per_text})
config = CONFIG_MAPPING["siglip"](text_config=dict(TEXT, max_position_embeddings=T, projection_size=16, pad_token_id=1, bos_token_id=2, eos_token_id=3),
                                  vision_config=EYE)
case("siglip", "siglip", lambda: transformers.SiglipModel(config), lambda m: {
    "logits": m(input_ids=torch.tensor([IDS]), pixel_values=pixels(2, 3, 16, 16)).logits_per_text}, keep=KEPT)
for name, more in (("vit", {}), ("vit-no-bias", dict(qkv_bias=False, hidden_act="gelu_new"))):
    config = CONFIG_MAPPING["vit"](**EYE, id2label={i: str(i) for i in range(3)}, **more)
    case(name, "vit", lambda: transformers.ViTForImageClassification(config), lambda m: {"logits": m(pixel_values=pixels(1, 3, 16, 16)).logits})
case("segformer-classes", "segformer_class", lambda: transformers.SegformerForImageClassification(CONFIG_MAPPING["segformer"](**SEG, id2label={i: str(i) for i in range(3)})),
     lambda m: {"logits": m(pixel_values=pixels(1, 3, 32, 48)).logits})
# Not with sinusoids, of which Transformers saves what it cannot load.
for name, more in (("trocr", {}), ("trocr-scaled", dict(scale_embedding=True, layernorm_embedding=True, activation_function="relu"))):
    eye = transformers.ViTConfig(**EYE, qkv_bias=False)
    reader = transformers.TrOCRConfig(**{**dict(vocab_size=VOCAB, d_model=20, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=24,
                                                max_position_embeddings=16, cross_attention_hidden_size=16, is_decoder=True,
                                                add_cross_attention=True, pad_token_id=1, bos_token_id=0, eos_token_id=2,
                                                decoder_start_token_id=2), **more})
    def read(m):
        out = m(pixel_values=pixels(1, 3, 16, 16), decoder_input_ids=torch.tensor([[2, 5, 9]]))
        return {"encoded": out.encoder_last_hidden_state, "logits": out.logits[0, -1]}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(eye, reader)
    case(name, "trocr", lambda: transformers.VisionEncoderDecoderModel(config), read, keep=KEPT)
config = CONFIG_MAPPING["blip"](projection_dim=8, image_text_hidden_size=8, vision_config=dict(EYE, projection_dim=8), text_config=dict(
    TEXT, max_position_embeddings=16, encoder_hidden_size=16, projection_dim=8, is_decoder=True, bos_token_id=1, eos_token_id=2, pad_token_id=0, sep_token_id=2))
def describe(m):
    out = m(pixel_values=pixels(1, 3, 16, 16), input_ids=torch.tensor([IDS]))
    return {"encoded": out.last_hidden_state, "logits": out.logits[0, -1]}
case("blip", "blip", lambda: transformers.BlipForConditionalGeneration(config), describe, keep=KEPT)
DECODER = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, head_dim=8, max_position_embeddings=64,
               pad_token_id=0, bos_token_id=1, eos_token_id=2)
config = CONFIG_MAPPING["paligemma"](projection_dim=16, image_token_id=VOCAB, hidden_size=16,
                                     text_config=dict(DECODER, model_type="gemma", vocab_size=VOCAB + 1, num_key_value_heads=1),
                                     vision_config=dict(EYE, model_type="siglip_vision_model", vision_use_head=False))
SEEN = torch.cat([torch.full((1, 4), VOCAB), torch.tensor([IDS])], 1)
case("paligemma", "paligemma", lambda: transformers.PaliGemmaForConditionalGeneration(config), lambda m: {
    "logits": m(input_ids=SEEN, pixel_values=pixels(1, 3, 16, 16), token_type_ids=torch.zeros_like(SEEN)).logits[0, -1]}, keep=KEPT)

# Networks of pictures by timm, under the names of its models. Layers follow each other without norms that would scale their inputs, so
# weights are as large as their number of inputs allows.
def network(name, size, make, compute):
    if not wanted(name): return
    try:
        model = make().eval()
        made = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
        for k, v in made.items():
            w = weight(k, tuple(v.shape))
            if v.dim() > 1:
                w = w * np.float32(2 * (6 / v[0].numel()) ** 0.5)
            v.copy_(torch.from_numpy(np.asarray(w)))
        with torch.no_grad():
            values = compute(model, pixels(1, 3, size, size))
        CASES.append(dict(name=name, kind="network", config=dict(size=size), weights={k: list(v.shape) for k, v in sorted(made.items())},
                          expected=dict(values=rounded(values))))
        print(name, len(made))
    except Exception as err:
        FAILED.append(name)
        print("failed:", name, type(err).__name__, str(err)[:300])

for name, size in (("resnet18", 64), ("resnet50", 64), ("convnext_atto", 64), ("convnextv2_atto", 64), ("mobilenetv4_conv_small", 64),
                   ("mobilenetv4_hybrid_medium", 64), ("fastvit_t8", 64), ("efficientvit_m0", 224), ("repvgg_a0", 64), ("mobileone_s0", 64),
                   ("hiera_tiny_224", 224)):
    network(name, size, lambda: __import__("timm").create_model(name, num_classes=10), lambda m, x: m(x))
# The same, and DINOv2, under Transformers' names. DINOv2's class token and the mean of its patches, of a picture of another size.
TEN = dict(id2label={i: str(i) for i in range(10)})
network("resnet18-transformers", 64, lambda: transformers.ResNetForImageClassification(CONFIG_MAPPING["resnet"](
    layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], **TEN)), lambda m, x: m(x).logits)
network("resnet50-transformers", 64, lambda: transformers.ResNetForImageClassification(CONFIG_MAPPING["resnet"](**TEN)), lambda m, x: m(x).logits)
network("convnext_atto-transformers", 64, lambda: transformers.ConvNextForImageClassification(CONFIG_MAPPING["convnext"](
    hidden_sizes=[40, 80, 160, 320], depths=[2, 2, 6, 2], **TEN)), lambda m, x: m(x).logits)
network("convnextv2_atto-transformers", 64, lambda: transformers.ConvNextV2ForImageClassification(CONFIG_MAPPING["convnextv2"](
    hidden_sizes=[40, 80, 160, 320], depths=[2, 2, 6, 2], **TEN)), lambda m, x: m(x).logits)
def features(m, x):
    seen = m(x).last_hidden_state
    return torch.cat([seen[:, 0], seen[:, 1:].mean(1)], 1)
network("dinov2-transformers", 70, lambda: transformers.Dinov2Model(CONFIG_MAPPING["dinov2"](
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=518, patch_size=14)), features)

# Adapters of peft, whose tensors follow the rule too. They are read again from their folder, as they are there.
def lora(name, model_type, more=None, **adapter):
    name = "lora-" + name
    if not wanted(name): return
    import peft
    fields = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                  num_key_value_heads=1, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0, **(more or {}))
    config = CONFIG_MAPPING[model_type](**fields)
    try:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside:
            model, weights = ruled(AutoModelForCausalLM.from_config(config, attn_implementation="eager"), folder)
            described = written(folder)
            peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **adapter)).save_pretrained(beside)
            path = f"{beside}/adapter_model.safetensors"
            tensors = {k: np.asarray(weight(k, v.shape)) for k, v in load_file(path).items()}
            save_file(tensors, path, metadata={"format": "pt"})
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").float()
            model = peft.PeftModel.from_pretrained(model, beside).eval()
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0, [5, T - 1]]
                base = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").float().eval()
                plain = base(input_ids=torch.tensor([IDS]), use_cache=False).logits[0, [5, T - 1]]
            assert (logits - plain).abs().max() > 0.1, "the adapter changes nothing"
            said = {k: v for k, v in json.load(open(f"{beside}/adapter_config.json")).items() if v is not None and k != "base_model_name_or_path"}
            CASES.append(dict(name=name, kind="lora", config=described, weights=weights, expected=dict(logits=rounded(logits)),
                              adapter=dict(config=said, weights={k: list(v.shape) for k, v in sorted(tensors.items())})))
            print(name, len(weights), len(tensors))
    except Exception as err:
        FAILED.append(name)
        print("failed:", name, type(err).__name__, str(err)[:300])

UNTIED, TIED = dict(tie_word_embeddings=False), dict(tie_word_embeddings=True)
EACH = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
lora("llama", "llama", UNTIED, r=4, lora_alpha=8, target_modules=EACH, rank_pattern={"k_proj": 2, "1.mlp.up_proj": 3}, alpha_pattern={"down_proj": 3})
lora("qwen2", "qwen2", UNTIED, r=4, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "v_proj"], bias="lora_only", modules_to_save=["lm_head"])
lora("gpt2", "gpt2", r=3, lora_alpha=3, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
lora("phi3", "phi3", UNTIED, r=2, lora_alpha=4, target_modules=["qkv_proj", "gate_up_proj", "o_proj", "lm_head"])
lora("tied-head", "llama", TIED, r=2, lora_alpha=2, target_modules=["lm_head"])
lora("tied-table", "qwen3", dict(TIED, head_dim=8), r=2, lora_alpha=2, target_modules=["embed_tokens", "q_proj"])
lora("saved", "llama", UNTIED, r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["embed_tokens", "norm", "input_layernorm"])
lora("tied-saved", "llama", TIED, r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"])
lora("dora", "llama", UNTIED, r=2, lora_alpha=4, target_modules=EACH, use_dora=True)
lora("gpt2-dora", "gpt2", r=2, lora_alpha=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, use_dora=True)

if PARTS is not None:
    made = {c["name"]: c for c in CASES}
    kept = [json.loads(line) for line in open(f"{HERE}/cases.json")][1:]
    CASES = [made.pop(c["name"], c) for c in kept] + list(made.values())
with open(f"{HERE}/cases.json", "w") as f:
    f.write(json.dumps(dict(transformers=transformers.__version__, ids=IDS)) + "\n")
    for c in CASES: f.write(json.dumps(c, separators=(",", ":")) + "\n")
if FAILED:
    raise SystemExit(f"{len(FAILED)} cases failed: {FAILED}")
