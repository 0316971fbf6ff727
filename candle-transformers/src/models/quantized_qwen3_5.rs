//! Qwen3.5 with quantised weights, from GGUF files of the architectures `qwen35` and `qwen35moe`. The models are those of
//! [`super::qwen3_5`] and [`super::qwen3_5_moe`].

use std::io::{Read, Seek};

use candle_core::quantized::gguf_file;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::GatedActivation;
use candle_nn::Activation;

use crate::blocks::{
    layers, AttentionSpec, CausalLm, DecoderSpec, DeltaForm, DeltaSpec, GgufMetadata, LayerSpec,
    MixerSpec, Names, QkNorm, RotaryPairs, Routing,
};

/// The decoder that a file describes.
///
/// # Errors
/// Which key is missing, or has a value that does not fit.
pub fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
    file.expect(&["qwen35", "qwen35moe"])?;
    // The converter adds the 1 to all norms that lack it.
    let norm = file.rms_norm()?;
    let attention = AttentionSpec {
        qk_norm: Some(QkNorm::Head(norm)),
        gate: true,
        // The joined tensor of that name is the gated delta rule's.
        joined: None,
        ..file.attention()?
    };
    let rotary = file.rotary(RotaryPairs::Halves, attention.head_dim)?;
    let value_heads = file.required_size("ssm.time_step_rank")?;
    let values = file.required_size("ssm.inner_size")?;
    if !values.is_multiple_of(value_heads) {
        let problem = format!("{values} is not a multiple of ssm.time_step_rank, {value_heads}");
        return file.refuse("ssm.inner_size", problem);
    }
    let delta = DeltaSpec {
        key_heads: file.required_size("ssm.group_count")?,
        value_heads,
        key_dim: file.required_size("ssm.state_size")?,
        value_dim: values / value_heads,
        kernel: file.required_size("ssm.conv_kernel")?,
        activation: Activation::Silu,
        norm_eps: norm.eps,
        form: DeltaForm::Gguf,
    };
    let activation = GatedActivation::Silu;
    let (family, feed_forward) = match file.architecture() {
        "qwen35moe" => {
            let experts = file.experts(activation, Routing::softmax(0, true))?;
            ("qwen3_5_moe", file.required("expert_count", experts)?)
        }
        _ => ("qwen3_5", file.gated_mlp(activation)?),
    };
    // The last layers can be those of a model that guesses further tokens.
    let (all, further) = (file.layers()?, file.count("nextn_predict_layers")?);
    let Some(count) = all.checked_sub(further.unwrap_or(0)) else {
        return file.refuse(
            "nextn_predict_layers",
            format!("exceeds block_count, {all}"),
        );
    };
    let layers = layers(count, |i| {
        let mixer: MixerSpec = match file.shape(&format!("blk.{i}.{}", Names::GGUF.delta_rate)) {
            Some(_) => delta.clone().into(),
            None => attention.clone().into(),
        };
        Ok(LayerSpec::pre_norm(mixer, feed_forward.clone(), norm))
    })?;
    let spec = file.decoder(family, vec![rotary], layers, norm)?;
    Ok(DecoderSpec {
        names: Names {
            mlp_norm: Names::GGUF.attn_post_norm,
            ..Names::GGUF
        },
        ..spec
    })
}

/// A quantised Qwen3.5 and the sequence that it has seen. Activations are f32.
pub struct ModelWeights(CausalLm);

impl ModelWeights {
    /// The model of a GGUF file. `reader` is the stream that `ct` was read from.
    ///
    /// # Errors
    /// If metadata or a tensor is missing or does not fit; by name.
    pub fn from_gguf<R: Seek + Read>(
        ct: gguf_file::Content,
        reader: &mut R,
        device: &Device,
    ) -> Result<Self> {
        CausalLm::from_gguf(spec, ct, reader, device).map(Self)
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids `x`, `(b, t)`, which are at the positions from
    /// `index_pos` on. At position 0 a new sequence begins; elsewhere `x` continues the one before.
    ///
    /// # Errors
    /// If there are no ids, or more than fit below the model's positions.
    pub fn forward(&mut self, x: &Tensor, index_pos: usize) -> Result<Tensor> {
        let logits = self.0.forward(x, index_pos)?.last_logits()?;
        logits.squeeze(1)?.to_dtype(DType::F32)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.0.clear_kv_cache();
    }
}
