//! A Parler-TTS with few channels, for random weights. Its tokens are bytes. DAC has the channels of all checkpoints, which are fixed.

use candle_core::{bail, DType, Device, Error, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::parler_tts::Config;
use serde_json::json;
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::Tokenizer;

pub fn config() -> Result<Config> {
    let config = json!({
        "decoder_start_token_id": 1025, "pad_token_id": 1024, "vocab_size": 256,
        "decoder": {"vocab_size": 1088, "max_position_embeddings": 512, "num_hidden_layers": 2, "ffn_dim": 64,
            "num_attention_heads": 4, "activation_function": "gelu", "hidden_size": 32, "scale_embedding": false,
            "num_codebooks": 9, "pad_token_id": 1024, "bos_token_id": 1025, "eos_token_id": 1024, "tie_word_embeddings": false,
            "rope_embeddings": false, "rope_theta": 10000.0},
        "text_encoder": {"vocab_size": 256, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2,
            "relative_attention_num_buckets": 8, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0,
            "feed_forward_proj": "gated-gelu", "is_encoder_decoder": true, "pad_token_id": 0, "eos_token_id": 1},
        "audio_encoder": {"num_codebooks": 9, "model_bitrate": 8, "codebook_size": 1088, "latent_dim": 16, "frame_rate": 86,
            "sampling_rate": 44100}
    });
    serde_json::from_value(config).map_err(Error::wrap)
}

pub fn tokenizer() -> Result<Tokenizer> {
    let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    bytes.sort_unstable();
    let tokens = bytes.iter().map(char::to_string);
    let vocab: Vocab = tokens.zip(0u32..).collect();
    let model = BPE::builder().vocab_and_merges(vocab, Vec::new());
    let mut tokenizer = Tokenizer::new(model.build().map_err(Error::wrap)?);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, false)));
    Ok(tokenizer)
}

/// Uniform random weights that keep the scale of their inputs.
struct Random;

impl SimpleBackend for Random {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if name.ends_with("alpha") {
            return Tensor::ones(s, dtype, dev);
        }
        // The lengths of DAC's kernels: sums of residual blocks would clip.
        if name.ends_with("weight_g") {
            return Tensor::full(0.5f32, s, dev)?.to_dtype(dtype);
        }
        let inputs: usize = s.dims().iter().skip(1).product();
        let bound = match s.rank() {
            1 if name.ends_with("bias") => 0.1,
            1 => return Tensor::ones(s, dtype, dev),
            _ => (3. / inputs as f32).sqrt(),
        };
        Tensor::rand(-bound, bound, s, dev)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is requested without a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

pub fn weights(device: &Device) -> VarBuilder<'static> {
    VarBuilder::from_backend(Box::new(Random), DType::F32, device.clone())
}
