//! The files of [llama2.c](https://github.com/karpathy/llama2.c): seven sizes as i32, then all weights as f32, both with the lowest byte
//! first.

use std::collections::HashMap;
use std::io::Read;

use candle_core::{bail, Context, DType, Device, IndexOp, Result, Shape, Tensor};
use candle_nn::VarBuilder;

use super::llama2_c::Config;

impl Config {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// If it is too short, or a size is not positive.
    pub fn from_reader<R: Read>(r: &mut R) -> Result<Self> {
        let mut size = |name: &str| -> Result<usize> {
            let mut bytes = [0; 4];
            r.read_exact(&mut bytes)
                .map_err(candle_core::Error::from)
                .with_context(|| format!("llama2.c header: {name}"))?;
            match i32::from_le_bytes(bytes) {
                size if size > 0 => Ok(size as usize),
                size if name == "vocab_size" && size < 0 => bail!(
                    "llama2.c header: vocab_size is {size}: untied output layers are not supported"
                ),
                size => bail!("llama2.c header: {name} is {size}; it must be at least 1"),
            }
        };
        Ok(Self {
            dim: size("dim")?,
            hidden_dim: size("hidden_dim")?,
            n_layers: size("n_layers")?,
            n_heads: size("n_heads")?,
            n_kv_heads: size("n_kv_heads")?,
            vocab_size: size("vocab_size")?,
            seq_len: size("seq_len")?,
            norm_eps: 1e-5,
        })
    }
}

/// The weights of a file, each with its layers as the first dimension.
pub struct TransformerWeights {
    token_embedding: Tensor,
    /// The weights of each layer, with their names after the layer's.
    layers: Vec<(&'static str, Tensor)>,
    final_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
}

impl TransformerWeights {
    /// Reads what comes after the header.
    ///
    /// # Errors
    /// If the file is too short, or the device refuses a tensor.
    pub fn from_reader<R: Read>(r: &mut R, c: &Config, dev: &Device) -> Result<Self> {
        let (n, dim, inner) = (c.n_layers, c.dim, c.hidden_dim);
        let kv_dim = c.n_kv_heads * c.head_size();
        let mut read = |name: &str, dims: &[usize]| {
            tensor(r, dims, dev).with_context(|| format!("llama2.c file: {name} of shape {dims:?}"))
        };
        let token_embedding = read("the table of tokens", &[c.vocab_size, dim])?;
        let parts: [(&'static str, &[usize]); 9] = [
            ("input_layernorm", &[n, dim]),
            ("self_attn.q_proj", &[n, dim, dim]),
            ("self_attn.k_proj", &[n, kv_dim, dim]),
            ("self_attn.v_proj", &[n, kv_dim, dim]),
            ("self_attn.o_proj", &[n, dim, dim]),
            ("post_attention_layernorm", &[n, dim]),
            ("mlp.gate_proj", &[n, inner, dim]),
            ("mlp.down_proj", &[n, dim, inner]),
            ("mlp.up_proj", &[n, inner, dim]),
        ];
        let layers = parts
            .into_iter()
            .map(|(name, dims)| Ok((name, read(name, dims)?)));
        let layers = layers.collect::<Result<_>>()?;
        let angles = [c.seq_len, c.head_size() / 2];
        Ok(Self {
            token_embedding,
            layers,
            final_norm: read("the last norm", &[dim])?,
            cos: read("the cosines", &angles)?,
            sin: read("the sines", &angles)?,
        })
    }

    /// The weights with the names of Hugging Face's checkpoints, on `device`; the angles of the positions are `rot.freq_cis_real` and
    /// `rot.freq_cis_imag`.
    ///
    /// # Errors
    /// If the configuration has more layers than the file.
    pub fn var_builder(&self, cfg: &Config, device: &Device) -> Result<VarBuilder<'static>> {
        let mut tensors = HashMap::new();
        let mut insert = |name: &str, tensor: &Tensor| {
            tensors.insert(name.to_string(), tensor.clone());
        };
        insert("rot.freq_cis_real", &self.cos);
        insert("rot.freq_cis_imag", &self.sin);
        insert("model.embed_tokens.weight", &self.token_embedding);
        insert("lm_head.weight", &self.token_embedding);
        insert("model.norm.weight", &self.final_norm);
        for layer in 0..cfg.n_layers {
            for (name, all) in &self.layers {
                let name = format!("model.layers.{layer}.{name}.weight");
                insert(&name, &all.i(layer)?);
            }
        }
        Ok(VarBuilder::from_tensors(tensors, DType::F32, device))
    }
}

/// The next tensor. Memory is taken as the file is read: its header may ask for any size.
fn tensor(r: &mut impl Read, dims: &[usize], device: &Device) -> Result<Tensor> {
    let sizes = dims.iter().map(|size| *size as u64);
    let bytes = sizes.fold(4u64, u64::saturating_mul);
    let mut data = Vec::new();
    r.take(bytes).read_to_end(&mut data)?;
    if data.len() as u64 != bytes {
        bail!("expected {bytes} bytes, but only {} are left", data.len())
    }
    Tensor::from_raw_buffer(&data, DType::F32, &Shape::from(dims).into_dims(), device)
}
