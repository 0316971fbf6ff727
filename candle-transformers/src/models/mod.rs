//! The model families.

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
#[cfg(any(feature = "vision", not(feature = "subset")))]
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
#[cfg(any(feature = "vision", not(feature = "subset")))]
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
