//! A decoder with the sequence that it has seen: what most of Candle's models are.

use std::io::{Read, Seek};

use candle_core::quantized::gguf_file;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;

use super::super::weights::{GgufMetadata, GgufReader, WeightKind, WeightSource};
use super::{Decoder, DecoderSpec, DecoderState, Hidden};

/// A decoder and the state of one sequence. A clone shares the weights but has independent state.
#[derive(Debug, Clone)]
pub struct CausalLm {
    decoder: Decoder,
    state: DecoderState,
}

impl CausalLm {
    /// A model that has seen nothing.
    pub fn new(decoder: Decoder) -> Self {
        let state = decoder.new_state();
        Self { decoder, state }
    }

    /// The model of `spec` with the weights of `vb`, in its dtype and on its device.
    ///
    /// # Errors
    /// As [`Decoder::load`].
    pub fn from_vb(spec: DecoderSpec, vb: VarBuilder) -> Result<Self> {
        Decoder::from_vb(spec, vb).map(Self::new)
    }

    /// The model of `spec` with the dense or quantised weights of `vb`, on its device.
    ///
    /// # Errors
    /// As [`Decoder::load`].
    pub fn from_builder<W: WeightKind>(spec: DecoderSpec, mut vb: W::Builder<'_>) -> Result<Self> {
        let (dtype, device) = W::placement(&vb);
        Ok(Self::new(Decoder::load(spec, &mut vb, dtype, &device)?))
    }

    /// The model of `spec` with the weights of a GGUF file, on `device`. Activations are f32.
    ///
    /// # Errors
    /// As [`Decoder::load`].
    pub fn load(spec: DecoderSpec, source: &mut dyn WeightSource, device: &Device) -> Result<Self> {
        Ok(Self::new(Decoder::load(spec, source, DType::F32, device)?))
    }

    /// The model of a GGUF file, whose decoder `spec` reads from its metadata. `reader` is the stream that `content` was read from.
    ///
    /// # Errors
    /// Those of `spec`; as [`Decoder::load`].
    pub fn from_gguf<R: Read + Seek>(
        spec: impl FnOnce(&GgufMetadata) -> Result<DecoderSpec>,
        content: gguf_file::Content,
        reader: &mut R,
        device: &Device,
    ) -> Result<Self> {
        Self::from_gguf_in(spec, content, reader, DType::F32, device)
    }

    /// As [`from_gguf`](Self::from_gguf), with activations of `dtype`.
    ///
    /// # Errors
    /// As [`from_gguf`](Self::from_gguf).
    pub fn from_gguf_in<R: Read + Seek>(
        spec: impl FnOnce(&GgufMetadata) -> Result<DecoderSpec>,
        content: gguf_file::Content,
        reader: &mut R,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let mut source = GgufReader { content, reader };
        let spec = spec(&GgufMetadata::new(&source.content.metadata, &source)?)?;
        Ok(Self::new(Decoder::load(spec, &mut source, dtype, device)?))
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Whether keys and values are kept. Without, every call has to be given the whole sequence.
    pub fn set_use_cache(&mut self, use_cache: bool) {
        self.state.use_cache = use_cache;
    }

    /// Runs the layers on token ids, `(b, t)`, at the positions `offset .. offset + t`. At position 0 a new sequence begins; elsewhere
    /// they continue the one before.
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub fn forward(&mut self, ids: &Tensor, offset: usize) -> Result<Hidden<'_>> {
        if offset == 0 {
            self.clear_kv_cache();
        }
        self.decoder.forward(ids, offset, &mut self.state)
    }

    /// As [`forward`](Self::forward), at the position after the last one: what Candle's models do that take no offset.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_next(&mut self, ids: &Tensor) -> Result<Hidden<'_>> {
        let offset = self.state.seen();
        self.decoder.forward(ids, offset, &mut self.state)
    }

    /// As [`forward`](Self::forward), from embeddings `(b, t, hidden_size)` instead of token ids. A mask, if given, replaces causal
    /// visibility.
    ///
    /// # Errors
    /// As [`Decoder::forward_embeds`].
    pub fn forward_embeds(
        &mut self,
        embeds: &Tensor,
        offset: usize,
        mask: Option<&Tensor>,
    ) -> Result<Hidden<'_>> {
        if offset == 0 {
            self.clear_kv_cache();
        }
        self.decoder
            .forward_embeds(embeds, offset, &mut self.state, mask)
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.state.reset();
    }
}
