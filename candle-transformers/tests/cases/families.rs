//! What every family of decoders has to do, whatever its numbers are: one body of checks over tiny configurations, on every device.

use candle_core::{test_device, DType, Device, Result, Shape, Tensor};
use candle_transformers::auto;
use candle_transformers::blocks::{
    Decoder, DecoderState, LayerSpec, MixerSpec, Reading, Stored, Wanted, WeightSource,
};

use super::support::{assert_close, runs_fewer, token_ids, Numbers};

pub const VOCAB: usize = 61;

/// A `config.json` for each family.
pub const CONFIGS: &[(&str, &str)] = &[
    (
        "llama",
        r#"{"model_type": "llama", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 512}"#,
    ),
    (
        "qwen2",
        r#"{"model_type": "qwen2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "use_sliding_window": true,
            "sliding_window": 6, "max_window_layers": 1}"#,
    ),
    (
        "qwen3",
        r#"{"model_type": "qwen3", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}"#,
    ),
    (
        "mixtral",
        r#"{"model_type": "mixtral", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "max_position_embeddings": 512,
            "rope_theta": 10000.0, "sliding_window": 12}"#,
    ),
    (
        "qwen2_moe",
        r#"{"model_type": "qwen2_moe", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "num_experts": 5,
            "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
            "mlp_only_layers": [1]}"#,
    ),
    (
        "qwen3_moe",
        r#"{"model_type": "qwen3_moe", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
            "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": true,
            "decoder_sparse_step": 2}"#,
    ),
    (
        "qwen3_5",
        r#"{"model_type": "qwen3_5_text", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2,
            "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}"#,
    ),
    (
        "qwen3_5_moe",
        r#"{"model_type": "qwen3_5_moe_text", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
            "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 8, "linear_value_head_dim": 12, "num_experts": 5, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}"#,
    ),
    (
        "granitemoehybrid",
        r#"{"model_type": "granitemoehybrid", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "num_local_experts": 4,
            "shared_intermediate_size": 40, "layer_types": ["attention", "attention"], "attention_multiplier": 0.3,
            "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 1.5,
            "position_embedding_type": "rope"}"#,
    ),
    (
        "phi",
        r#"{"model_type": "phi", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": null, "max_position_embeddings": 512, "qk_layernorm": true}"#,
    ),
    (
        "starcoder2",
        r#"{"model_type": "starcoder2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 16}"#,
    ),
    (
        "falcon 7B",
        r#"{"model_type": "falcon", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_kv_heads": 4}"#,
    ),
    (
        "falcon 40B",
        r#"{"model_type": "falcon", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_kv_heads": 2, "new_decoder_architecture": true}"#,
    ),
    (
        "falcon 1B",
        r#"{"model_type": "falcon", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "alibi": true, "bias": true, "multi_query": false, "parallel_attn": false}"#,
    ),
    (
        "mpt",
        r#"{"model_type": "mpt", "vocab_size": 61, "d_model": 48, "n_heads": 6, "n_layers": 2, "max_seq_len": 512,
            "attn_config": {"kv_n_heads": 3, "alibi": true, "clip_qkv": 1.5}}"#,
    ),
    (
        "gpt_bigcode",
        r#"{"model_type": "gpt_bigcode", "vocab_size": 61, "n_embd": 32, "n_inner": null, "n_layer": 2, "n_head": 4,
            "n_positions": 512}"#,
    ),
    (
        "gpt_bigcode, a key head for each",
        r#"{"model_type": "gpt_bigcode", "vocab_size": 61, "n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4,
            "n_positions": 512, "multi_query": false, "activation_function": "gelu"}"#,
    ),
    (
        "chatglm",
        r#"{"model_type": "chatglm", "num_layers": 2, "padded_vocab_size": 61, "hidden_size": 32, "ffn_hidden_size": 48,
            "kv_channels": 16, "num_attention_heads": 4, "seq_length": 512, "layernorm_epsilon": 1e-5, "rmsnorm": true,
            "apply_residual_connection_post_layernorm": false, "post_layer_norm": true, "add_bias_linear": false,
            "add_qkv_bias": true, "bias_dropout_fusion": true, "multi_query_attention": true, "multi_query_group_num": 2,
            "apply_query_key_layer_scaling": true, "attention_softmax_in_fp32": true, "fp32_residual_connection": false,
            "rope_ratio": 500}"#,
    ),
    (
        "mistral",
        r#"{"model_type": "mistral", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16, "sliding_window": 12}"#,
    ),
    (
        "gemma",
        r#"{"model_type": "gemma", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16}"#,
    ),
    (
        "gemma2",
        r#"{"model_type": "gemma2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16,
            "query_pre_attn_scalar": 24, "sliding_window": 6, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}"#,
    ),
    (
        "gemma3",
        r#"{"model_type": "gemma3_text", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16,
            "query_pre_attn_scalar": 24, "sliding_window": 6, "sliding_window_pattern": 3,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}}"#,
    ),
    (
        "phi3",
        r#"{"model_type": "phi3", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "partial_rotary_factor": 0.5,
            "sliding_window": 20, "tie_word_embeddings": true}"#,
    ),
    (
        "helium",
        r#"{"model_type": "helium", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16}"#,
    ),
    (
        "granite",
        r#"{"model_type": "granite", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "embedding_multiplier": 6.0,
            "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 3.0, "tie_word_embeddings": true}"#,
    ),
    (
        "smollm3",
        r#"{"model_type": "smollm3", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 6, "use_sliding_window": true}"#,
    ),
    (
        "olmo",
        r#"{"model_type": "olmo", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "clip_qkv": 0.8}"#,
    ),
    (
        "olmo2",
        r#"{"model_type": "olmo2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": true}"#,
    ),
    (
        "stablelm",
        r#"{"model_type": "stablelm", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "use_qkv_bias": true,
            "use_parallel_residual": true}"#,
    ),
    (
        "deepseek_v2",
        r#"{"model_type": "deepseek_v2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24,
            "num_hidden_layers": 3, "num_attention_heads": 4, "n_shared_experts": 2, "n_routed_experts": 6,
            "routed_scaling_factor": 2.0, "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2,
            "num_experts_per_tok": 3, "first_k_dense_replace": 1, "max_position_embeddings": 512, "q_lora_rank": null,
            "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32,
                "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}}"#,
    ),
    (
        "deepseek_v3",
        r#"{"model_type": "deepseek_v3", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24,
            "num_hidden_layers": 2, "num_attention_heads": 4, "n_shared_experts": 1, "n_routed_experts": 8, "n_group": 4,
            "topk_group": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1, "max_position_embeddings": 512,
            "q_lora_rank": 20, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16}"#,
    ),
    (
        "gpt_oss",
        r#"{"model_type": "gpt_oss", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 5,
            "num_experts_per_tok": 2, "sliding_window": 6, "max_position_embeddings": 512,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0,
                "beta_slow": 1.0, "truncate": false}}"#,
    ),
    (
        "glm4",
        r#"{"model_type": "glm4", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16}"#,
    ),
    (
        "olmo3",
        r#"{"model_type": "olmo3", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 6,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}"#,
    ),
    (
        "glm",
        r#"{"model_type": "glm", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16}"#,
    ),
    (
        "exaone4",
        r#"{"model_type": "exaone4", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 6,
            "sliding_window_pattern": "LG"}"#,
    ),
    (
        "cohere",
        r#"{"model_type": "cohere", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "use_qk_norm": true,
            "logit_scale": 0.5}"#,
    ),
    (
        "cohere2",
        r#"{"model_type": "cohere2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 6, "logit_scale": 0.5}"#,
    ),
    (
        "gpt_neox",
        r#"{"model_type": "gpt_neox", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rotary_pct": 0.5,
            "rotary_emb_base": 5000}"#,
    ),
    (
        "arcee",
        r#"{"model_type": "arcee", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}"#,
    ),
    (
        "seed_oss",
        r#"{"model_type": "seed_oss", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16}"#,
    ),
    (
        "ernie4_5",
        r#"{"model_type": "ernie4_5", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16,
            "use_bias": true}"#,
    ),
    (
        "nemotron",
        r#"{"model_type": "nemotron", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}"#,
    ),
    (
        "apertus",
        r#"{"model_type": "apertus", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}"#,
    ),
    (
        "hunyuan_v1_dense",
        r#"{"model_type": "hunyuan_v1_dense", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
            "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}}"#,
    ),
    (
        "ministral",
        r#"{"model_type": "ministral", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16,
            "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}"#,
    ),
    (
        "ministral3",
        r#"{"model_type": "ministral3", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 8}}"#,
    ),
    (
        "gpt2",
        r#"{"model_type": "gpt2", "vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512,
            "scale_attn_by_inverse_layer_idx": true}"#,
    ),
    (
        "olmoe",
        r#"{"model_type": "olmoe", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "num_experts": 5,
            "num_experts_per_tok": 2}"#,
    ),
    (
        "granitemoe",
        r#"{"model_type": "granitemoe", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "num_local_experts": 5}"#,
    ),
    (
        "granitemoeshared",
        r#"{"model_type": "granitemoeshared", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
            "num_local_experts": 5, "shared_intermediate_size": 24}"#,
    ),
    (
        "phimoe",
        r#"{"model_type": "phimoe", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "num_local_experts": 5,
            "attention_bias": true, "lm_head_bias": true, "router_jitter_noise": 0.3}"#,
    ),
    (
        "glm4_moe",
        r#"{"model_type": "glm4_moe", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16,
            "use_qk_norm": true, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}"#,
    ),
    (
        "lfm2_moe",
        r#"{"model_type": "lfm2_moe", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
            "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1, "num_experts": 5, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "conv_L_cache": 3}"#,
    ),
    (
        "falcon_h1",
        r#"{"model_type": "falcon_h1", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "mamba_d_ssm": 48,
            "mamba_n_heads": 6, "mamba_d_head": "auto", "mamba_d_state": 8, "key_multiplier": 0.5, "ssm_in_multiplier": 0.8,
            "ssm_multipliers": [0.9, 0.8, 0.7, 0.6, 0.5], "mlp_multipliers": [0.8, 0.6]}"#,
    ),
    (
        "qwen3_next",
        r#"{"model_type": "qwen3_next", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 8, "linear_value_head_dim": 12, "num_experts": 5, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}"#,
    ),
    (
        "lfm2",
        r#"{"model_type": "lfm2", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 10000.0, "max_position_embeddings": 512,
            "conv_L_cache": 3, "conv_bias": true, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8}"#,
    ),
    (
        "recurrent_gemma",
        r#"{"model_type": "recurrent_gemma", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "lru_width": null, "attention_window_size": 16,
            "_block_types": ["recurrent", "recurrent", "attention"]}"#,
    ),
];

/// Weights that depend on their names alone.
pub struct Made(pub DType, pub Device);

impl Made {
    fn tensor(&self, wanted: Wanted) -> Result<Tensor> {
        let seed = wanted.name.bytes().fold(7u64, |hash, byte| {
            hash.wrapping_mul(0x0100_0000_01b3)
                .wrapping_add(u64::from(byte))
        });
        let mut numbers = Numbers::new(seed);
        let tensor = match wanted.shape {
            [_] if wanted.name.ends_with("weight") => {
                (numbers.tensor(wanted.shape, 0.2, &Device::Cpu)? + 1.)?
            }
            [] | [_] => numbers.tensor(wanted.shape, 0.1, &Device::Cpu)?,
            shape => {
                let inputs = shape[1..].iter().product::<usize>();
                numbers.tensor(shape, (3. / inputs as f32).sqrt(), &Device::Cpu)?
            }
        };
        tensor.to_dtype(self.0)?.to_device(&self.1)
    }
}

impl WeightSource for Made {
    fn contains(&self, name: &str) -> bool {
        name != "rope_freqs.weight"
    }

    fn shape(&self, _name: &str) -> Option<Shape> {
        None
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        Box::pin(std::future::ready(self.tensor(wanted).map(Stored::from)))
    }
}

pub fn decoder(config: &str, dtype: DType, device: &Device) -> Result<Decoder> {
    let mut weights = Made(dtype, device.clone());
    Decoder::load(auto::config_spec(config)?, &mut weights, dtype, device)
}

/// The last position's logits after feeding `ids` in pieces of these lengths.
pub fn in_pieces(
    model: &Decoder,
    ids: &Tensor,
    pieces: &[usize],
    state: &mut DecoderState,
) -> Result<Tensor> {
    let mut offset = 0;
    let mut logits = None;
    for &piece in pieces {
        let input = ids.narrow(1, offset, piece)?;
        logits = Some(model.next_logits(&input, offset, state)?);
        offset += piece;
    }
    assert_eq!(offset, ids.dim(1)?, "the pieces have to cover the ids");
    Ok(logits.expect("at least one piece"))
}

/// Runs a check on each family; an error names it. On a software adapter, where each family compiles kernels for seconds, every sixth runs by
/// day, from the one at `first`: the families share the layers. `CANDLE_EVERY_CASE=1` runs all of them.
fn each(device: &Device, first: usize, check: impl Fn(&str) -> Result<()>) -> Result<()> {
    let all = !runs_fewer(device);
    for (i, (name, config)) in CONFIGS.iter().enumerate() {
        if !all && i % 6 != first % 6 {
            continue;
        }
        println!("{name}");
        check(config).map_err(|err| err.context(*name))?;
    }
    Ok(())
}

/// A prompt at once, token by token and in two pieces; and a second sequence after a reset, and without a cache.
fn pieces_and_reset(device: &Device) -> Result<()> {
    each(device, 0, |config| {
        let model = decoder(config, DType::F32, device)?;
        let ids = token_ids(1, 21, VOCAB, device)?;
        let mut state = model.new_state();
        let whole = in_pieces(&model, &ids, &[21], &mut state)?;
        assert_eq!(whole.dims(), [1, VOCAB]);
        for pieces in [vec![1; 21], vec![13, 8], vec![20, 1]] {
            state.reset();
            assert_close(&in_pieces(&model, &ids, &pieces, &mut state)?, &whole, 1e-4);
        }
        let mut uncached = model.new_state();
        uncached.use_cache = false;
        assert_close(
            &in_pieces(&model, &ids, &[21], &mut uncached)?,
            &whole,
            1e-4,
        );
        // Order matters: the two tokens before the last are swapped.
        let part = |start, len| ids.narrow(1, start, len);
        let other = [part(0, 17)?, part(18, 1)?, part(17, 1)?, part(19, 2)?];
        let other = in_pieces(
            &model,
            &Tensor::cat(&other, 1)?,
            &[21],
            &mut model.new_state(),
        )?;
        let difference = (other - &whole)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(difference > 1e-3, "{difference}");
        Ok(())
    })
}
test_device!(pieces_and_reset);

/// Rows of a batch are what they are alone.
fn rows_of_a_batch(device: &Device) -> Result<()> {
    each(device, 1, |config| {
        let model = decoder(config, DType::F32, device)?;
        let first = token_ids(1, 12, VOCAB, device)?;
        let second = ((first.to_dtype(DType::F32)? * -1.)? + (VOCAB - 1) as f64)?;
        let second = second.to_dtype(DType::U32)?;
        let both = Tensor::cat(&[&first, &second], 0)?;
        let pieces = [9, 1, 2];
        let together = in_pieces(&model, &both, &pieces, &mut model.new_state())?;
        for (i, ids) in [first, second].iter().enumerate() {
            let alone = in_pieces(&model, ids, &pieces, &mut model.new_state())?;
            assert_close(&together.narrow(0, i, 1)?, &alone, 1e-4);
        }
        Ok(())
    })
}
test_device!(rows_of_a_batch);

/// In 16 bits, beyond the position where bf16 cannot distinguish positions: near the numbers of f32, and no NaN.
fn in_16_bits(device: &Device) -> Result<()> {
    each(device, 2, |config| {
        let ids = token_ids(1, 300, VOCAB, device)?;
        let pieces = [290, 9, 1];
        let exact = decoder(config, DType::F32, device)?;
        let exact = in_pieces(&exact, &ids, &pieces, &mut exact.new_state())?;
        let size = exact.sqr()?.mean_all()?.to_scalar::<f32>()?.sqrt();
        for (dtype, tolerance) in [(DType::F16, 0.03), (DType::BF16, 0.15)] {
            let model = decoder(config, dtype, device)?;
            let logits = in_pieces(&model, &ids, &pieces, &mut model.new_state())?;
            let error = (logits - &exact)?
                .sqr()?
                .mean_all()?
                .to_scalar::<f32>()?
                .sqrt();
            // Not `error > ..`, which is false for NaN.
            assert!(error <= tolerance * size, "{dtype:?}: {error} of {size}");
        }
        Ok(())
    })
}
test_device!(in_16_bits);

/// Sequences of different lengths in one batch have the same results as alone, while each continues.
fn rows_of_different_lengths(device: &Device) -> Result<()> {
    each(device, 3, |config| {
        let model = decoder(config, DType::F32, device)?;
        let long = token_ids(1, 14, VOCAB, device)?;
        let short = long.narrow(1, 3, 9)?;
        let mut state = model.new_state();
        let (mut read, mut logits) = ([0, 0], None);
        // The second row has fewer tokens in the prompt, more in the next step, and then as many.
        for counts in [[9usize, 4], [2, 3], [1, 1], [1, 1]] {
            let t = *counts.iter().max().unwrap();
            let row = |ids: &Tensor, from: usize, count: usize| {
                ids.narrow(1, from, count)?.pad_with_zeros(1, 0, t - count)
            };
            let ids = Tensor::cat(
                &[
                    row(&long, read[0], counts[0])?,
                    row(&short, read[1], counts[1])?,
                ],
                0,
            )?;
            logits = Some(model.next_logits_of_rows(&ids, &counts, &mut state)?);
            read = [read[0] + counts[0], read[1] + counts[1]];
            for (i, ids) in [&long, &short].into_iter().enumerate() {
                let ids = ids.narrow(1, 0, read[i])?;
                let alone = in_pieces(&model, &ids, &[read[i]], &mut model.new_state())?;
                let together = logits.as_ref().unwrap().narrow(0, i, 1)?;
                assert_close(&together, &alone, 1e-4);
            }
        }
        assert_eq!(read, [13, 9]);
        assert_eq!(logits.unwrap().dims(), [2, VOCAB]);
        Ok(())
    })
}
test_device!(rows_of_different_lengths);

/// Keys and values in f16 with activations in f32: the same logits up to rounding, for one text and for several.
fn keys_and_values_in_f16(device: &Device) -> Result<()> {
    each(device, 4, |config| {
        let model = decoder(config, DType::F32, device)?;
        assert_eq!(model.kv_dtype(), DType::F32);
        let rounding = model.clone().with_kv_dtype(DType::F16)?;
        assert_eq!(rounding.kv_dtype(), DType::F16);
        let ids = token_ids(1, 23, VOCAB, device)?;
        let close = |got: &Tensor, expected: &Tensor| -> Result<()> {
            let size = expected.sqr()?.mean_all()?.to_scalar::<f32>()?.sqrt();
            let error = (got - expected)?.sqr()?.mean_all()?.to_scalar::<f32>()?;
            // Not `error > ..`, which is false for NaN.
            assert!(error.sqrt() <= 0.02 * size, "{error} of {size}");
            Ok(())
        };
        let expected = in_pieces(&model, &ids, &[20, 1, 2], &mut model.new_state())?;
        let mut state = rounding.new_state();
        let got = in_pieces(&rounding, &ids, &[20, 1, 2], &mut state)?;
        close(&got, &expected)?;
        // A reset state keeps them alike.
        state.reset();
        let again = in_pieces(&rounding, &ids, &[20, 1, 2], &mut state)?;
        assert_close(&again, &got, 0.);
        let is_attention = |layer: &LayerSpec| matches!(layer.mixer, MixerSpec::Attention(_));
        if model.spec().layers.iter().all(is_attention) {
            let both = Tensor::cat(&[&ids, &ids], 0)?;
            let together = |model: &Decoder| {
                let mut state = model.new_state();
                model.next_logits_of_rows(&both.narrow(1, 0, 20)?, &[20, 9], &mut state)?;
                model.next_logits_of_rows(&both.narrow(1, 20, 1)?, &[1, 1], &mut state)
            };
            close(&together(&rounding)?, &together(&model)?)?;
        }
        Ok(())
    })
}
test_device!(keys_and_values_in_f16);

#[test]
fn keys_and_values_that_attention_does_not_take() -> Result<()> {
    let (_, config) = CONFIGS[0];
    let model = decoder(config, DType::F16, &Device::Cpu)?;
    for dtype in [DType::F32, DType::BF16, DType::U8] {
        let error = model.clone().with_kv_dtype(dtype).unwrap_err().to_string();
        assert!(
            error.contains(dtype.as_str()) && error.contains("f16"),
            "{error}"
        );
    }
    Ok(())
}

candle_core::with_webgpu! {
    /// Kernels that a layer takes for a token, which a step of generation is bound by.
    #[test]
    fn kernels_of_a_layer_webgpu() -> Result<()> {
        // A separate device: tests that run in parallel count on others.
        let device = Device::new_webgpu(0)?;
        let step = |config: &str, kv: DType| -> Result<u64> {
            let model = decoder(config, DType::F32, &device)?.with_kv_dtype(kv)?;
            let mut state = model.new_state();
            let ids = token_ids(1, 3, VOCAB, &device)?;
            model.next_logits(&ids.narrow(1, 0, 2)?, 0, &mut state)?;
            let before = device.as_webgpu_device()?.stats().dispatches;
            model.next_logits(&ids.narrow(1, 2, 1)?, 2, &mut state)?;
            Ok(device.as_webgpu_device()?.stats().dispatches - before)
        };
        for (i, (name, config)) in CONFIGS.iter().enumerate() {
            // Layers can be of several kinds; every family's kinds are the same again after twelve.
            let layers = |count: usize| {
                config.replace(r#""num_hidden_layers": 2"#, &format!(r#""num_hidden_layers": {count}"#))
            };
            // A list of layers is of one length.
            if layers(3) == *config || config.contains("layer_types") {
                continue;
            }
            let of_twelve = |kv| Ok::<_, candle_core::Error>(step(&layers(14), kv)? - step(&layers(2), kv)?);
            let found = of_twelve(DType::F32)?;
            // Rounding keys and values takes none.
            if !runs_fewer(&device) || i % 4 == 0 {
                assert_eq!(of_twelve(DType::F16)?, found, "{name}");
            }
            println!("{name}: {:.1}", found as f64 / 12.);
            let most = match *name {
                "llama" | "qwen2" | "qwen3" | "mistral" => 6,
                name if name.starts_with("gemma") => 10,
                // xIELU is made of tensor ops, and so are SparseMixer's choice, that by a bias, and a state space.
                "apertus" => 18,
                "phimoe" | "glm4_moe" => 41,
                "falcon_h1" => 51,
                // Dense experts are products of tensor ops.
                name if name.contains("moe") || ["mixtral", "gpt_oss"].contains(&name) => 30,
                // And so is the choice of their groups.
                name if name.starts_with("deepseek") => 70,
                _ => 16,
            };
            assert!(found <= 12 * most, "{name}: {found} in 12 layers");
        }
        Ok(())
    }
}
