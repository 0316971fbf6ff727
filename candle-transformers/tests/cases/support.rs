//! A tiny Llama with fixed pseudo-random weights, and comparisons.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama};

/// Numbers in `-scale .. scale`, the same on every device and in every release of every crate.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self, scale: f32) -> f32 {
        // Knuth's MMIX constants; the upper bits are the random ones.
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let unit = (self.0 >> 40) as f32 / (1u64 << 24) as f32;
        (2. * unit - 1.) * scale
    }

    pub fn tensor(&mut self, shape: &[usize], scale: f32, device: &Device) -> Result<Tensor> {
        let len = shape.iter().product();
        let values: Vec<f32> = (0..len).map(|_| self.next(scale)).collect();
        Tensor::from_vec(values, shape, device)
    }
}

pub fn tiny_config() -> Config {
    Config {
        hidden_size: 32,
        intermediate_size: 48,
        vocab_size: 61,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        use_flash_attn: false,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: 40,
        tie_word_embeddings: false,
    }
}

/// The weights by name, f32, on the CPU.
pub fn tiny_weights(cfg: &Config) -> Result<HashMap<String, Tensor>> {
    let head_dim = cfg.hidden_size / cfg.num_attention_heads;
    let (hidden, inner) = (cfg.hidden_size, cfg.intermediate_size);
    let kv = cfg.num_key_value_heads * head_dim;
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        (
            "model.embed_tokens.weight".into(),
            vec![cfg.vocab_size, hidden],
        ),
        ("model.norm.weight".into(), vec![hidden]),
    ];
    if !cfg.tie_word_embeddings {
        shapes.push(("lm_head.weight".into(), vec![cfg.vocab_size, hidden]));
    }
    for layer in 0..cfg.num_hidden_layers {
        let mut add = |name: &str, shape: &[usize]| {
            shapes.push((
                format!("model.layers.{layer}.{name}.weight"),
                shape.to_vec(),
            ));
        };
        add("input_layernorm", &[hidden]);
        add("self_attn.q_proj", &[hidden, hidden]);
        add("self_attn.k_proj", &[kv, hidden]);
        add("self_attn.v_proj", &[kv, hidden]);
        add("self_attn.o_proj", &[hidden, hidden]);
        add("post_attention_layernorm", &[hidden]);
        add("mlp.gate_proj", &[inner, hidden]);
        add("mlp.up_proj", &[inner, hidden]);
        add("mlp.down_proj", &[hidden, inner]);
    }
    let mut numbers = Numbers::new(7);
    shapes
        .into_iter()
        .map(|(name, shape)| {
            let scale = if shape.len() == 1 { 1. } else { 0.4 };
            Ok((name, numbers.tensor(&shape, scale, &Device::Cpu)?))
        })
        .collect()
}

pub fn tiny_llama(cfg: &Config, dtype: DType, device: &Device) -> Result<Llama> {
    Llama::load(
        VarBuilder::from_tensors(tiny_weights(cfg)?, dtype, device),
        cfg,
    )
}

/// The same model over variables, as training would make it.
pub fn tiny_llama_of_vars(cfg: &Config, device: &Device) -> Result<Llama> {
    let vars = tiny_weights(cfg)?
        .into_iter()
        .map(|(name, weight)| {
            let var = Var::from_tensor(&weight.to_device(device)?)?;
            Ok((name, var.as_tensor().clone()))
        })
        .collect::<Result<HashMap<_, _>>>()?;
    Llama::load(VarBuilder::from_tensors(vars, DType::F32, device), cfg)
}

/// Whether a device runs fewer cases of a test than there are: a software adapter, where each compiles kernels for seconds, unless
/// `CANDLE_EVERY_CASE=1` is set, as in nightly runs.
pub fn runs_fewer(device: &Device) -> bool {
    device.is_software_gpu() && std::env::var_os("CANDLE_EVERY_CASE").is_none()
}

/// `(b, t)` token ids.
pub fn token_ids(b: usize, t: usize, vocab: usize, device: &Device) -> Result<Tensor> {
    let ids: Vec<u32> = (0..b * t).map(|i| ((i * 17 + 5) % vocab) as u32).collect();
    Tensor::from_vec(ids, (b, t), device)
}

/// The last position's logits after feeding `ids` in the given pieces.
pub fn logits_in_pieces(
    model: &Llama,
    ids: &Tensor,
    pieces: &[usize],
    cache: &mut Cache,
) -> Result<Tensor> {
    let mut index_pos = 0;
    let mut logits = None;
    for &piece in pieces {
        let input = ids.narrow(1, index_pos, piece)?;
        logits = Some(model.forward(&input, index_pos, cache)?);
        index_pos += piece;
    }
    assert_eq!(index_pos, ids.dim(1)?, "the pieces have to cover the ids");
    Ok(logits.expect("at least one piece"))
}

/// Fails unless shapes agree and all elements are within `tolerance`, relative to the largest element expected.
#[track_caller]
pub fn assert_close(actual: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!(actual.dims(), expected.dims(), "shapes differ");
    let host = |tensor: &Tensor| -> Vec<f32> {
        let read = || tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>();
        read().expect("a tensor that can be read")
    };
    let (actual, expected) = (host(actual), host(expected));
    let scale = expected.iter().fold(1f32, |max, x| max.max(x.abs()));
    for (i, (a, e)) in actual.iter().zip(&expected).enumerate() {
        assert!(
            (a - e).abs() <= tolerance * scale,
            "element {i}: {a}, expected {e} (within {tolerance} of {scale})"
        );
    }
}
