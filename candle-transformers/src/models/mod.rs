//! The model families.
//!
//! # Configuration fields
//!
//! A configuration has the fields of a checkpoint's `config.json`. They have the same meaning in every family; a field's documentation adds
//! what is special to the family, such as a default.
//!
//! | field | other names | meaning |
//! | --- | --- | --- |
//! | `vocab_size` | `padded_vocab_size` | rows of the token table, and logits per position |
//! | `hidden_size` | `n_embd`, `d_model` | elements of a token's vector in the residual stream |
//! | `num_hidden_layers` | `n_layer`, `num_layers` | layers |
//! | `num_attention_heads` | `n_head`, `num_heads` | heads of the queries |
//! | `num_key_value_heads` | `n_head_kv`, `multi_query_group_num` | heads of the keys and values; `num_attention_heads / num_key_value_heads` neighbouring query heads share one |
//! | `head_dim` | `head_size`, `kv_channels` | elements of a head; `hidden_size / num_attention_heads` unless given |
//! | `intermediate_size` | `n_inner`, `ffn_hidden_size` | inner size of the feed-forward block |
//! | `hidden_act` | `hidden_activation`, `activation_function` | its activation; in a gated block, of the gate: `down(act(gate(x)) * up(x))` |
//! | `attention_bias` | `bias`, `add_qkv_bias` | whether the projections have biases |
//! | `rms_norm_eps` | `norm_eps`, `layernorm_epsilon` | epsilon of `w * x / sqrt(mean(x^2) + eps)` |
//! | `layer_norm_eps` | `layer_norm_epsilon` | epsilon of `w * (x - mean(x)) / sqrt(var(x) + eps) + b` |
//! | `max_position_embeddings` | `n_positions`, `seq_length`, `max_seq_len` | maximum number of positions of a sequence |
//! | `rope_theta` | `rotary_emb_base` | base of the rotary angles: of `d` rotated elements of a head, pair `i` rotates by `position * rope_theta^(-2 i / d)` |
//! | `partial_rotary_factor` | | fraction of a head's elements that is rotated |
//! | `rope_scaling` | `rope_parameters` | change of the angles for contexts longer than in training: `linear`, `dynamic`, `llama3`, `yarn` or `longrope` |
//! | `sliding_window` | `attention_window_size` | positions that a position sees in layers with a window, itself included |
//! | `layer_types` | | the mixer or the kind of attention of each layer |
//! | `tie_word_embeddings` | `tie_embedding` | whether the output layer uses the token table's weight |
//! | `num_experts_per_tok` | | experts that a token's router chooses |
//! | `bos_token_id`, `eos_token_id`, `pad_token_id` | | the tokens that start a text, end one, and pad a batch |
//! | `image_size`, `patch_size` | | height and width of an image and of a patch, in pixels |
//! | `num_channels` | `in_chans` | channels of an image |
//! | `projection_dim` | | size of the space in which images and texts are compared |
//! | `use_flash_attn` | | no effect: attention is one fused op on every device |
//! | `attention_dropout`, `hidden_dropout_prob`, `initializer_range` | | used in training only |

#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod based;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod beit;
pub mod bert;
pub mod bigcode;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod blip;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod blip_text;
pub mod chatglm;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod chinese_clip;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod clip;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod codegeex4_9b;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod colpali;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod convmixer;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod convnext;
#[cfg(any(feature = "sound", not(feature = "subset")))]
pub mod csm;
#[cfg(any(feature = "sound", not(feature = "subset")))]
pub mod dac;
pub mod debertav2;
pub mod deepseek2;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod depth_anything_v2;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod dinov2;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod dinov2reg4;
pub mod distilbert;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod efficientnet;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod efficientvit;
pub mod embedding_gemma;
#[cfg(any(feature = "sound", not(feature = "subset")))]
pub mod encodec;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod eva2;
pub mod falcon;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod fastvit;
#[cfg(any(feature = "diffusion", not(feature = "subset")))]
pub mod flux;
pub mod gemma;
pub mod gemma2;
pub mod gemma3;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod gemma4;
pub mod glm4;
pub mod glm4_new;
pub mod gpt_oss;
pub mod granite;
pub mod granitemoehybrid;
pub mod helium;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod hiera;
pub mod jina_bert;
pub mod jina_embeddings_v3;
pub mod lfm2;
pub mod llama;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod llama2_c;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod llama2_c_weights;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod llava;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod mamba;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod mamba2;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod marian;
#[cfg(any(feature = "sound", not(feature = "subset")))]
pub mod metavoice;
#[cfg(any(feature = "sound", not(feature = "subset")))]
pub mod mimi;
pub mod mistral;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod mixformer;
pub mod mixtral;
#[cfg(any(feature = "diffusion", not(feature = "subset")))]
pub mod mmdit;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod mobileclip;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod mobilenetv4;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod mobileone;
pub mod modernbert;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod moondream;
#[cfg(any(feature = "whisper", not(feature = "subset")))]
pub mod moonshine;
pub mod mpt;
pub mod nomic_bert;
pub mod nvembed_v2;
pub mod olmo;
pub mod olmo2;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod openclip;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod paddleocr_vl;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod paligemma;
#[cfg(any(feature = "whisper", not(feature = "subset")))]
pub mod parakeet;
#[cfg(any(feature = "sound", not(feature = "subset")))]
pub mod parler_tts;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod persimmon;
pub mod phi;
pub mod phi3;
pub mod pixtral;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod quantized_blip;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod quantized_blip_text;
pub mod quantized_gemma3;
pub mod quantized_glm4;
pub mod quantized_lfm2;
pub mod quantized_llama;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod quantized_llama2_c;
#[cfg(any(feature = "sound", not(feature = "subset")))]
pub mod quantized_metavoice;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod quantized_mistral;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod quantized_mixformer;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod quantized_moondream;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod quantized_mpt;
pub mod quantized_phi;
pub mod quantized_phi3;
pub mod quantized_qwen2;
pub mod quantized_qwen3;
pub mod quantized_qwen3_5;
pub mod quantized_qwen3_moe;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod quantized_recurrent_gemma;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod quantized_rwkv_v5;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod quantized_rwkv_v6;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod quantized_stable_lm;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod quantized_t5;
pub mod qwen2;
pub mod qwen2_moe;
pub mod qwen3;
pub mod qwen3_5;
pub mod qwen3_5_moe;
pub mod qwen3_moe;
pub mod qwen3_vl;
#[cfg(any(feature = "whisper", not(feature = "subset")))]
mod reading;
pub mod recurrent_gemma;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod repvgg;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod resnet;
#[cfg(any(feature = "language", not(feature = "subset")))]
mod rwkv;
#[cfg(any(feature = "language", not(feature = "subset")))]
mod rwkv_tokenizer;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod rwkv_v5;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod rwkv_v6;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod rwkv_v7;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod segformer;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod segment_anything;
pub mod siglip;
#[cfg(any(feature = "whisper", not(feature = "subset")))]
pub mod silero_vad;
pub mod smol;
#[cfg(any(feature = "sound", not(feature = "subset")))]
pub mod snac;
pub(crate) mod spelling;
#[cfg(any(feature = "diffusion", not(feature = "subset")))]
pub mod stable_diffusion;
pub mod stable_lm;
pub mod starcoder2;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod stella_en_v5;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod t5;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod trocr;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod vgg;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod vit;
#[cfg(any(feature = "sound", not(feature = "subset")))]
pub mod voxtral;
#[cfg(any(feature = "whisper", not(feature = "subset")))]
pub mod whisper;
#[cfg(any(feature = "diffusion", not(feature = "subset")))]
pub mod wuerstchen;
pub mod xlm_roberta;
#[cfg(any(feature = "language", not(feature = "subset")))]
pub mod yi;
#[cfg(any(feature = "vision", not(feature = "subset")))]
pub mod yolo;
#[cfg(any(feature = "diffusion", not(feature = "subset")))]
pub mod z_image;

// Upstream's path.
pub use crate::compat::with_tracing;
