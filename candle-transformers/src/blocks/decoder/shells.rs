//! Models of families that add nothing to a decoder: a configuration or a GGUF file says what it is, and Candle's names are aliases of these.

use std::io::{Read, Seek};
use std::marker::PhantomData;

use candle_core::quantized::gguf_file;
use candle_core::{DType, Device, Result, Tensor};

use super::super::weights::{Dense, GgufMetadata, WeightKind};
use super::{CausalLm, DecoderSpec, Head};

/// A family's configuration that describes a decoder.
pub trait DecoderConfig {
    /// The decoder with its output layer.
    ///
    /// # Errors
    /// If the configuration contradicts itself.
    fn decoder_spec(&self) -> Result<DecoderSpec>;

    /// Whether the model keeps keys and values; without, each call is given the whole sequence.
    fn uses_cache(&self) -> bool {
        true
    }
}

/// A language model whose calls say where their tokens are. `W` is the kind of its weights.
#[derive(Debug, Clone)]
pub struct Lm<C, W = Dense> {
    lm: CausalLm,
    of: PhantomData<fn() -> (C, W)>,
}

impl<C: DecoderConfig, W: WeightKind> Lm<C, W> {
    /// The model of `cfg` with the weights of `vb`, in its dtype and on its device; in f32 if they are quantised.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &C, vb: W::Builder<'_>) -> Result<Self> {
        let mut lm = CausalLm::from_builder::<W>(cfg.decoder_spec()?, vb)?;
        lm.set_use_cache(cfg.uses_cache());
        Ok(Self {
            lm,
            of: PhantomData,
        })
    }
}

impl<C, W> Lm<C, W> {
    /// The logits of what follows the last of the token ids, `(b, 1, vocab)` in the model's dtype, for ids `(b, t)` at the positions from
    /// `seqlen_offset` on; at 0 a new sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit below the model's positions.
    pub fn forward(&mut self, input_ids: &Tensor, seqlen_offset: usize) -> Result<Tensor> {
        self.lm.forward(input_ids, seqlen_offset)?.last_logits()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}

/// A language model whose calls continue the sequence where the last one ended. `W` is the kind of its weights.
#[derive(Debug, Clone)]
pub struct NextLm<C, W = Dense> {
    lm: CausalLm,
    of: PhantomData<fn() -> (C, W)>,
}

impl<C: DecoderConfig, W: WeightKind> NextLm<C, W> {
    /// As [`Lm::new`].
    ///
    /// # Errors
    /// As [`Lm::new`].
    pub fn new(cfg: &C, vb: W::Builder<'_>) -> Result<Self> {
        Ok(Self {
            lm: CausalLm::from_builder::<W>(cfg.decoder_spec()?, vb)?,
            of: PhantomData,
        })
    }
}

impl<C, W> NextLm<C, W> {
    /// The logits of what follows the last of the token ids `xs`, `(b, vocab)` in the model's dtype, for ids `(b, t)` that follow those of the
    /// earlier calls.
    ///
    /// # Errors
    /// If there are no ids, or more than fit below the model's positions.
    pub fn forward(&mut self, xs: &Tensor) -> Result<Tensor> {
        self.lm.forward_next(xs)?.last_logits()?.squeeze(1)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }

    /// As [`clear_kv_cache`](Self::clear_kv_cache), by the name that Candle's GLM models have for it.
    pub fn reset_kv_cache(&mut self) {
        self.clear_kv_cache();
    }
}

/// A decoder without its output layer. `W` is the kind of its weights.
#[derive(Debug, Clone)]
pub struct HiddenLm<C, W = Dense> {
    lm: CausalLm,
    of: PhantomData<fn() -> (C, W)>,
}

impl<C: DecoderConfig, W: WeightKind> HiddenLm<C, W> {
    /// As [`Lm::new`].
    ///
    /// # Errors
    /// As [`Lm::new`].
    pub fn new(cfg: &C, vb: W::Builder<'_>) -> Result<Self> {
        let spec = DecoderSpec {
            head: Head::None,
            ..cfg.decoder_spec()?
        };
        Ok(Self {
            lm: CausalLm::from_builder::<W>(spec, vb)?,
            of: PhantomData,
        })
    }
}

impl<C, W> HiddenLm<C, W> {
    /// The stream after the last norm, `(b, t, hidden_size)`, for token ids `(b, t)` at the positions from `offset` on; at 0 a new sequence
    /// begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit below the model's positions.
    pub fn forward(&mut self, input: &Tensor, offset: usize) -> Result<Tensor> {
        self.lm.forward(input, offset)?.normed()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}

/// A family of GGUF files.
pub trait GgufFamily {
    /// The decoder that a file describes.
    ///
    /// # Errors
    /// If a key is missing or does not fit.
    fn spec(file: &GgufMetadata) -> Result<DecoderSpec>;
}

/// The language model of a GGUF file. Activations are f32.
#[derive(Debug, Clone)]
pub struct GgufLm<F> {
    lm: CausalLm,
    of: PhantomData<fn() -> F>,
}

impl<F: GgufFamily> GgufLm<F> {
    /// The model of a GGUF file, on `device`. `reader` is the stream that `ct` was read from.
    ///
    /// # Errors
    /// If metadata or a tensor is missing or does not fit; by name.
    pub fn from_gguf<R: Seek + Read>(
        ct: gguf_file::Content,
        reader: &mut R,
        device: &Device,
    ) -> Result<Self> {
        Ok(Self {
            lm: CausalLm::from_gguf(F::spec, ct, reader, device)?,
            of: PhantomData,
        })
    }
}

impl<F> GgufLm<F> {
    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids `xs`, `(b, t)`, which are at the positions from
    /// `index_pos` on. At position 0 a new sequence begins; elsewhere `xs` continues the one before.
    ///
    /// # Errors
    /// If `xs` holds no ids, or more than fit below the model's positions.
    pub fn forward(&mut self, xs: &Tensor, index_pos: usize) -> Result<Tensor> {
        let logits = self.lm.forward(xs, index_pos)?.last_logits()?;
        logits.squeeze(1)?.to_dtype(DType::F32)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
