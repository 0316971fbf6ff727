//! Long prompts of a decoder whose first layers are elsewhere: those layers' weights are copied to the decoder's device, one layer after
//! another, and what the layers keep goes back. A step of few tokens takes less time where the weights are.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use candle_core::quantized::SpareMemory;
use candle_core::{Result, Tensor};

use super::{Decoder, DecoderSpec, Layer, LayerSpec, LayerState, MixerSpec, Placement, Step};
use crate::blocks::weights::{at_once, WeightSource, Weights};
use crate::blocks::{Residual, Rows};

/// Reads a decoder's weights again.
pub trait Reread: fmt::Debug + Send + Sync {
    /// Calls `load` with a source of the tensors that the decoder was loaded from.
    ///
    /// # Errors
    /// Those of `load`.
    fn reread(&self, load: &mut dyn FnMut(&mut dyn WeightSource) -> Result<()>) -> Result<()>;
}

impl DecoderSpec {
    /// Whether a long prompt can run on another device than these first layers: all of them are attention, whose keys and values can be
    /// added to those of earlier calls.
    pub fn can_stream(&self, layers: usize) -> bool {
        let keeps_keys = |layer: &LayerSpec| {
            matches!(layer.mixer, MixerSpec::Attention(_) | MixerSpec::Latent(_))
        };
        self.layers.iter().take(layers).all(keeps_keys)
    }
}

impl Decoder {
    /// Minimum number of tokens of a call for which weights are copied. A copy takes the time of some hundred tokens on the CPU.
    pub const STREAMED_FROM: usize = 128;

    /// The decoder, which copies the weights of [offloaded](Self::load_offloaded) layers to its device for calls of
    /// [`STREAMED_FROM`](Self::STREAMED_FROM) tokens or more, in slots for as many of each; and those of layers whose experts are
    /// offloaded. Two layers' weights are on the device at a time, and the keys and values of one. Slots in pages, and first layers of which
    /// one is not attention, run where their weights are.
    pub fn with_streamed_layers(mut self, weights: Arc<dyn Reread>) -> Self {
        self.streamed = Some(weights);
        self
    }

    /// Whether prompts run on the decoder's device in [offloaded](Self::load_offloaded) layers and experts too.
    pub fn streams_prompts(&self) -> bool {
        let elsewhere = self.elsewhere();
        let experts = self.offload.as_ref().is_some_and(|offload| offload.experts);
        self.streamed.is_some() && (elsewhere > 0 || experts) && self.spec.can_stream(elsewhere)
    }

    /// The copies of a call that is long enough for them, `xs` being `(b, t, hidden_size)`.
    pub(super) fn copies(&self, xs: &Tensor, step: &Step) -> Result<Option<Copies<'_>>> {
        let (b, t, _) = xs.dims3()?;
        let is_long = match step.rows {
            // A step of many texts has many keys and few tokens.
            Some(rows) => t >= Self::STREAMED_FROM && rows.pages.is_none(),
            None => b * t >= Self::STREAMED_FROM,
        };
        let copies = self.streamed.is_some() && is_long;
        Ok(copies.then(|| Copies::new(self)))
    }

    /// Runs the first layers, one for each of `states`, on the decoder's device. The arguments are there; the states stay elsewhere,
    /// where `rows` are those of the step.
    pub(super) fn run_streamed(
        &self,
        copies: &mut Copies,
        xs: Tensor,
        step: &Step,
        rows: Option<&Rows>,
        (deep, states): (&[Tensor], &mut [LayerState]),
        use_cache: bool,
    ) -> Result<Tensor> {
        let here = self.placement();
        let t = xs.dim(1)?;
        // A copy has the sequences of this call alone.
        let alone = step.rows.map(|rows| Rows {
            part: None,
            ..rows.clone()
        });
        let step = &Step {
            rotations: step.rotations.clone(),
            mask: step.mask,
            windows: step.windows,
            rows: alone.as_ref(),
            growth: step.growth.clone(),
        };
        let mut xs = Residual::new(xs);
        let mut next = Some(copies.layer(0)?);
        for (i, state) in states.iter_mut().enumerate() {
            let Some(layer) = next.take() else { break };
            let mut ran = match use_cache {
                true => Some(state.copied_to(&here, self.kv_dtype(), t, rows)?),
                false => None,
            };
            xs = layer.forward(xs, step, ran.as_mut())?;
            if let Some(deep) = deep.get(i) {
                xs = xs.plus_moved(deep)?;
            }
            // Copied while the device runs this one.
            if i + 1 < self.elsewhere() {
                next = Some(copies.layer(i + 1)?);
            }
            if let (Some(ran), Some(to)) = (ran, self.input()) {
                state.take_last(&ran, t, to, rows)?;
            }
        }
        Ok(xs.normed(None)?.1)
    }

    /// A copy of a layer on the decoder's device, and the stored size of its weights in bytes.
    fn layer_here(&self, index: usize) -> Result<(Layer, u64)> {
        let (Some(weights), Some(layer)) = (&self.streamed, self.spec.layers.get(index)) else {
            candle_core::bail!("{}: layer {index} cannot be copied", self.spec.family)
        };
        let mut loaded = None;
        weights.reread(&mut |source| {
            let mut weights = Weights::new(source, self.dtype, &self.device);
            weights.set_transposed(self.spec.transposed);
            weights.set_factors(&self.spec.factors);
            let (hidden, names) = (self.spec.hidden, &self.spec.names);
            let prefix = names.layer(index);
            let layer = at_once(Layer::load(layer, hidden, &mut weights, names, &prefix))?;
            loaded = Some((layer, weights.read_bytes()));
            Ok(())
        })?;
        match loaded {
            Some(loaded) => Ok(loaded),
            None => candle_core::bail!("{}: layer {index} was not read", self.spec.family),
        }
    }

    /// Where the decoder's own layers are.
    pub(super) fn placement(&self) -> Placement {
        Placement {
            device: self.device.clone(),
            dtype: self.dtype,
        }
    }

    /// Number of layers elsewhere.
    pub(super) fn elsewhere(&self) -> usize {
        self.offload.as_ref().map_or(0, |offload| offload.layers)
    }
}

/// The layers whose weights are copied in a call. Their memory is that of two layers: one is copied while the device runs the other. So
/// that it is free, a layer is dropped before the next one is queued.
pub(super) struct Copies<'a> {
    decoder: &'a Decoder,
    _memory: SpareMemory,
    layers: usize,
    bytes: u64,
    time: Duration,
}

impl<'a> Copies<'a> {
    fn new(decoder: &'a Decoder) -> Self {
        Self {
            decoder,
            _memory: SpareMemory::keep(&decoder.device),
            layers: 0,
            bytes: 0,
            time: Duration::ZERO,
        }
    }

    /// A copy of a layer on the decoder's device.
    pub(super) fn layer(&mut self, index: usize) -> Result<Layer> {
        // A browser does not have this clock.
        #[cfg(not(target_family = "wasm"))]
        let begun = std::time::Instant::now();
        let (layer, bytes) = self.decoder.layer_here(index)?;
        #[cfg(not(target_family = "wasm"))]
        {
            self.time += begun.elapsed();
        }
        self.layers += 1;
        self.bytes += bytes;
        Ok(layer)
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        let seconds = self.time.as_secs_f64();
        if self.layers > 0 && seconds > 0. {
            let (layers, bytes) = (self.layers, self.bytes);
            let rate = bytes as f64 / 1e9 / seconds;
            tracing::debug!(
                layers,
                bytes,
                seconds,
                "copied weights for a prompt at {rate:.2} GB/s"
            );
        }
    }
}
