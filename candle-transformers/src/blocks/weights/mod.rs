//! From names to layers: what a model needs is stated once, by the loader that asks [`Weights`] for it.

mod cut;
mod gguf;
mod kind;
mod low_rank;
mod merged_linear;
mod names;
mod projection;
mod source;

pub use cut::Cut;
pub(super) use cut::{Cuts, RankSource};
pub use gguf::GgufMetadata;
pub use kind::{Dense, Quantized, WeightKind};
pub use low_rank::LowRank;
pub use merged_linear::MergedLinear;
pub use names::Names;
use projection::place_as;
pub use projection::{place, place_dense, Projection, StoredLinear, TokenEmbedding};
pub use source::{at_once, Blocks, GgufReader, Reading, Stored, Wanted, WeightSource};

use std::sync::Arc;

use candle_core::distributed::Communicator;
use candle_core::quantized::QMatMul;
use candle_core::{bail, Context as _, DType, Device, Result, Shape, Tensor};
use candle_nn::{init, Init};

use super::decoder::{DecoderPart, Offload, Placement};
use super::norm::{Norm, NormSpec};

/// A linear layer to be loaded.
#[derive(Debug, Clone)]
pub struct LinearSpec {
    /// The name without `.weight`.
    pub name: String,
    /// The size of its input.
    pub in_dim: usize,
    /// The size of its output.
    pub out_dim: usize,
    /// Whether it has a bias.
    pub bias: bool,
}

/// Factors of a projection's weight, which is multiplied as it is read: numbers that a family's files leave to the computation.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightFactors {
    /// The projection's name after the layer's prefix.
    pub name: &'static str,
    /// Its outputs in their order: how many have a factor, and which.
    pub outputs: Vec<(usize, f64)>,
}

/// The order of several layers' outputs in one tensor of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// One layer after another.
    Layers,
    /// As [`Layers`](Self::Layers), the last layer first.
    Reversed,
    /// In groups: the layers' first share, their second, and so on. The number of groups divides every layer's outputs.
    Groups(usize),
}

/// Makes layers of a source's tensors. Floats become `dtype`, blocks stay blocks.
///
/// A cursor made by [`Weights::check`] reads nothing: it compares the source's shapes with the requested ones, and the layers that it makes
/// take no memory and cannot be used. So one loader checks, lists and loads.
pub struct Weights<'a> {
    source: &'a mut dyn WeightSource,
    dtype: DType,
    device: Device,
    /// The part of a decoder that is being loaded, and the parts that are not on the device.
    part: DecoderPart,
    offload: Option<Offload>,
    checked: Option<Vec<(DecoderPart, String)>>,
    group: Option<Arc<dyn Communicator>>,
    /// Weights of linear layers are `(inputs, outputs)`.
    transposed: bool,
    factors: Vec<WeightFactors>,
    /// Bytes of the tensors that were read.
    read_bytes: u64,
}

impl<'a> Weights<'a> {
    /// A cursor that loads onto `device`.
    pub fn new(source: &'a mut dyn WeightSource, dtype: DType, device: &Device) -> Self {
        Self {
            source,
            dtype,
            device: device.clone(),
            part: DecoderPart::Embedding,
            offload: None,
            checked: None,
            group: None,
            transposed: false,
            factors: Vec::new(),
            read_bytes: 0,
        }
    }

    /// With parts on another device.
    pub(super) fn offloading(self, offload: Option<Offload>) -> Self {
        Self { offload, ..self }
    }

    /// The parts that are on another device.
    pub(super) fn offload(&self) -> Option<&Offload> {
        self.offload.as_ref()
    }

    /// From now on, the weights of this part of a decoder.
    pub(super) fn enter(&mut self, part: DecoderPart) {
        self.part = part;
    }

    /// From now on, the experts of the layer whose weights were loaded until now. Gives their placement if it is not that of the rest.
    pub(super) fn enter_experts(&mut self) -> Option<Placement> {
        let DecoderPart::Layer(layer) = self.part else {
            return None;
        };
        let with_the_rest = self.has_elsewhere(self.part);
        self.part = DecoderPart::Experts(layer);
        self.elsewhere().filter(|_| !with_the_rest).cloned()
    }

    /// Whether this part goes to another device.
    pub(super) fn has_elsewhere(&self, part: DecoderPart) -> bool {
        self.offload
            .as_ref()
            .is_some_and(|offload| offload.has(part))
    }

    /// The device of the part that is being loaded, if it is not the main one.
    fn elsewhere(&self) -> Option<&Placement> {
        let offload = self.offload.as_ref()?;
        offload.has(self.part).then_some(&offload.to)
    }

    /// From now on, whether the source has the weights of linear layers as `(inputs, outputs)`.
    pub(super) fn set_transposed(&mut self, transposed: bool) {
        self.transposed = transposed;
    }

    /// From now on, what the weights of linear layers are multiplied with.
    pub(super) fn set_factors(&mut self, factors: &[WeightFactors]) {
        self.factors = factors.to_vec();
    }

    /// A weight of `(outputs, inputs)` times its factors.
    fn times_factors(&self, spec: &LinearSpec, weight: Stored) -> Result<Stored> {
        let behind = |factors: &&WeightFactors| {
            let before = spec.name.strip_suffix(factors.name);
            before.is_some_and(|before| before.ends_with('.'))
        };
        let Some(factors) = self.factors.iter().find(behind) else {
            return Ok(weight);
        };
        let (name, outputs) = (&spec.name, &factors.outputs);
        if outputs.iter().map(|(count, _)| count).sum::<usize>() != spec.out_dim || spec.bias {
            bail!(
                "{name:?} has {} outputs; its factors are for outputs without biases: {outputs:?}",
                spec.out_dim
            )
        }
        let Stored::Dense(weight) = weight else {
            bail!("tensor {name:?} has blocks, which cannot be multiplied; expected a dense tensor")
        };
        if self.is_check() {
            return Ok(weight.into());
        }
        let factors = outputs
            .iter()
            .flat_map(|(count, by)| std::iter::repeat_n(*by as f32, *count));
        let factors = Tensor::from_iter(factors, weight.device())?.unsqueeze(1)?;
        let dtype = weight.dtype();
        let scaled = weight.to_dtype(DType::F32)?.broadcast_mul(&factors)?;
        Ok(scaled.to_dtype(dtype)?.into())
    }

    /// The layers are one rank's share, whose results the ranks of `group` add up.
    pub(super) fn of_rank(self, group: Arc<dyn Communicator>) -> Self {
        Self {
            group: Some(group),
            ..self
        }
    }

    /// The group whose ranks share the layers.
    pub(super) fn group(&self) -> Option<&Arc<dyn Communicator>> {
        self.group.as_ref()
    }

    /// A cursor that only checks.
    pub fn check(source: &'a mut dyn WeightSource) -> Self {
        Self {
            source,
            dtype: DType::F32,
            device: Device::Cpu,
            part: DecoderPart::Embedding,
            offload: None,
            checked: Some(Vec::new()),
            group: None,
            transposed: false,
            factors: Vec::new(),
            read_bytes: 0,
        }
    }

    /// The names of the loaded tensors, each with its part of the decoder; of a cursor that only checks.
    pub(super) fn into_parts(self) -> Vec<(DecoderPart, String)> {
        self.checked.unwrap_or_default()
    }

    /// The dtype of activations.
    pub fn dtype(&self) -> DType {
        self.elsewhere().map_or(self.dtype, |to| to.dtype)
    }

    /// The device of the layers.
    pub fn device(&self) -> &Device {
        self.elsewhere().map_or(&self.device, |to| &to.device)
    }

    /// Whether the source has a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.source.contains(name)
    }

    /// Whether the source makes tensors that it does not have.
    pub(crate) fn makes_tensors(&self) -> bool {
        self.source.makes_tensors()
    }

    /// The shape of a tensor; `None` if there is none of that name, or the source cannot tell before it is read.
    pub fn shape(&self, name: &str) -> Option<Shape> {
        self.source.shape(name)
    }

    /// Whether nothing is read.
    pub(super) fn is_check(&self) -> bool {
        self.checked.is_some()
    }

    /// A tensor as the source has it.
    ///
    /// # Errors
    /// If it is missing, has another shape, or cannot be read; with its name.
    pub async fn stored(&mut self, name: &str, shape: &[usize], init: Init) -> Result<Stored> {
        let found = self.source.shape(name);
        if let Some(found) = &found {
            if found.dims() != shape || found.elem_count() == 0 {
                bail!(
                    "tensor {name:?}{} has shape {:?}, but the model expects {shape:?}",
                    self.source.whereabouts(name),
                    found.dims()
                )
            }
        }
        if let Some(names) = &mut self.checked {
            if found.is_none() && !self.source.contains(name) && !self.source.makes_tensors() {
                bail!(
                    "tensor {name:?}{} is missing; expected shape {shape:?}",
                    self.source.whereabouts(name)
                )
            }
            names.push((self.part, name.to_string()));
            return nothing(shape).map(Stored::Dense);
        }
        let wanted = Wanted { name, shape, init };
        let stored = self.source.read(wanted).await;
        let stored = stored.with_context(|| format!("reading tensor {name:?}"))?;
        self.read_bytes += stored.bytes();
        Ok(stored)
    }

    /// Bytes of the tensors that were read, as the source has them.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// A tensor as numbers.
    ///
    /// # Errors
    /// As [`Weights::stored`], or the device refuses it.
    pub async fn dense(&mut self, name: &str, shape: &[usize], init: Init) -> Result<Tensor> {
        self.dense_as(self.dtype(), name, shape, init).await
    }

    /// As [`dense`](Self::dense), of this dtype, whatever that of activations is.
    ///
    /// # Errors
    /// As [`Weights::dense`].
    pub async fn dense_as(
        &mut self,
        dtype: DType,
        name: &str,
        shape: &[usize],
        init: Init,
    ) -> Result<Tensor> {
        let stored = self.stored(name, shape, init).await?;
        if self.is_check() {
            return nothing(shape)?.to_dtype(dtype);
        }
        place_dense(vec![stored], dtype, self.device())
            .with_context(|| format!("placing tensor {name:?}"))
    }

    /// A tensor of f32 on the host, for what is computed there.
    ///
    /// # Errors
    /// As [`Weights::stored`].
    pub async fn host(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let stored = self.stored(name, &[len], Init::Const(1.)).await?;
        if self.is_check() {
            return Ok(vec![1.; len]);
        }
        place_dense(vec![stored], DType::F32, &Device::Cpu)?.to_vec1()
    }

    /// A norm of vectors of `size`.
    ///
    /// # Errors
    /// As [`Weights::dense`].
    pub async fn norm(&mut self, name: &str, size: usize, spec: NormSpec) -> Result<Norm> {
        self.norm_as(self.dtype(), name, size, spec).await
    }

    /// As [`norm`](Self::norm), of this dtype, whatever that of activations is.
    ///
    /// # Errors
    /// As [`Weights::dense`].
    pub async fn norm_as(
        &mut self,
        dtype: DType,
        name: &str,
        size: usize,
        spec: NormSpec,
    ) -> Result<Norm> {
        let weight = if spec.has_weight() {
            let name = format!("{name}.weight");
            self.dense_as(dtype, &name, &[size], Init::Const(1.))
                .await?
        } else {
            Tensor::ones(size, dtype, self.device())?
        };
        let bias = if spec.has_bias() {
            let name = format!("{name}.bias");
            Some(
                self.dense_as(dtype, &name, &[size], Init::Const(0.))
                    .await?,
            )
        } else {
            None
        };
        if self.is_check() {
            Ok(Norm::Rms(candle_nn::RmsNorm::new(weight, spec.eps)))
        } else {
            spec.with(weight, bias)
        }
    }

    /// The table of `vocab` tokens.
    ///
    /// # Errors
    /// As [`Weights::dense`].
    pub async fn embedding(
        &mut self,
        name: &str,
        vocab: usize,
        hidden: usize,
    ) -> Result<TokenEmbedding> {
        let name = format!("{name}.weight");
        let init = Init::Randn {
            mean: 0.,
            stdev: 1.,
        };
        let table = self.stored(&name, &[vocab, hidden], init).await?;
        Ok(TokenEmbedding::new(
            self.placed(vec![table], &name)?,
            self.dtype(),
        ))
    }

    async fn stored_linear(&mut self, spec: &LinearSpec) -> Result<StoredLinear> {
        let name = format!("{}.weight", spec.name);
        let mut shape = [spec.out_dim, spec.in_dim];
        let kaiming = init::DEFAULT_KAIMING_NORMAL;
        let weight = if self.transposed {
            shape.reverse();
            let weight = self.stored(&name, &shape, kaiming).await?;
            shape.reverse();
            let Stored::Dense(weight) = weight else {
                bail!("tensor {name:?} has blocks over its outputs; expected a dense tensor")
            };
            if self.is_check() {
                weight.into()
            } else {
                weight.t()?.contiguous()?.into()
            }
        } else {
            self.stored(&name, &shape, kaiming).await?
        };
        let weight = self.times_factors(spec, weight)?;
        let bias = if spec.bias {
            let bound = 1. / (spec.in_dim as f64).sqrt();
            let init = Init::Uniform {
                lo: -bound,
                up: bound,
            };
            let name = format!("{}.bias", spec.name);
            Some(self.stored(&name, &shape[..1], init).await?)
        } else {
            None
        };
        let name = format!("{}.weight", spec.name);
        let beside = if self.is_check() {
            None
        } else {
            self.source.beside(&name)?
        };
        if self.transposed && beside.is_some() {
            bail!("tensor {name:?} has inputs by outputs; a LoRA adapter cannot go beside it")
        }
        Ok(StoredLinear {
            weight,
            bias,
            beside,
        })
    }

    /// A linear layer.
    ///
    /// # Errors
    /// As [`Weights::dense`].
    pub async fn linear(&mut self, spec: &LinearSpec) -> Result<Projection> {
        let stored = self.stored_linear(spec).await?;
        self.projection(vec![stored], &spec.name)
    }

    /// Several linear layers over one input, each with a separate tensor. If some of them have a bias, the others get one of zeros, so that all
    /// are one product.
    ///
    /// # Errors
    /// As [`Weights::dense`].
    pub async fn merged<const N: usize>(
        &mut self,
        specs: [LinearSpec; N],
    ) -> Result<MergedLinear<N>> {
        self.merged_with(specs, Ok).await
    }

    /// As [`merged`](Self::merged), where the first layer has twice the usual number of outputs: for each of `heads` heads its outputs,
    /// followed by the same number of gates. The gates of all heads come first in the result.
    ///
    /// # Errors
    /// As [`Weights::dense`]; if the first layer's outputs cannot be split so.
    pub async fn merged_with_gates<const N: usize>(
        &mut self,
        specs: [LinearSpec; N],
        heads: usize,
    ) -> Result<MergedLinear<N>> {
        let outputs = specs.first().map_or(0, |spec| spec.out_dim);
        if heads == 0 || !outputs.is_multiple_of(2 * heads) {
            bail!("{outputs} outputs cannot be split into {heads} heads and their gates")
        }
        let (size, half) = (outputs / heads / 2, outputs / 2);
        let row = |i: usize| {
            let (head, element) = (i % half / size, i % size);
            let gate = if i < half { size } else { 0 };
            (2 * size * head + gate + element) as u32
        };
        self.merged_with(specs, |mut stored: Vec<StoredLinear>| {
            // Only here: a configuration can ask for any number of outputs that no file has.
            let rows: Vec<u32> = (0..outputs).map(row).collect();
            if let Some(first) = stored.first_mut() {
                first.weight = permuted(&first.weight, &rows)?;
                if let Some(bias) = &mut first.bias {
                    *bias = permuted(bias, &rows)?;
                }
                if let Some(beside) = first.beside.take() {
                    let moved = beside
                        .map_outputs(|b| b.index_select(&Tensor::new(&*rows, b.device())?, 0))?;
                    first.beside = Some(moved);
                }
            }
            Ok(stored)
        })
        .await
    }

    async fn merged_with<const N: usize>(
        &mut self,
        specs: [LinearSpec; N],
        change: impl FnOnce(Vec<StoredLinear>) -> Result<Vec<StoredLinear>>,
    ) -> Result<MergedLinear<N>> {
        let some_biases = specs.iter().any(|spec| spec.bias);
        let mut stored = Vec::with_capacity(N);
        for spec in &specs {
            let mut linear = self.stored_linear(spec).await?;
            if some_biases && !spec.bias {
                let zeros = Tensor::zeros(spec.out_dim, self.dtype(), self.device())?;
                linear.bias = Some(zeros.into());
            }
            stored.push(linear);
        }
        if !self.is_check() {
            stored = change(stored)?;
        }
        let Ok(stored) = <[StoredLinear; N]>::try_from(stored) else {
            bail!("expected {N} linear layers")
        };
        if self.is_check() {
            let linear = self.projection(stored.into_iter().take(1).collect(), "")?;
            return Ok(MergedLinear::joined(linear, specs.map(|s| s.out_dim)));
        }
        MergedLinear::from_stored(stored, self.dtype(), self.device()).with_context(|| {
            let names = specs.each_ref().map(|spec| spec.name.as_str());
            format!("placing {}", names.join(", "))
        })
    }

    /// Several linear layers over one input that are one tensor in their file, with the outputs in `order`; `spec` is that of the tensor.
    ///
    /// # Errors
    /// As [`Weights::dense`]; if the outputs do not add up; if blocks are to be in an order other than [`Order::Layers`].
    pub async fn joined<const N: usize>(
        &mut self,
        spec: &LinearSpec,
        out_dims: [usize; N],
        order: Order,
    ) -> Result<MergedLinear<N>> {
        let stored = self.in_layers(spec, out_dims, order).await?;
        let linear = self.projection(vec![stored], &spec.name)?;
        Ok(MergedLinear::joined(linear, out_dims))
    }

    /// The outputs of a joined tensor, one layer after another, before they are placed.
    pub(super) async fn in_layers<const N: usize>(
        &mut self,
        spec: &LinearSpec,
        out_dims: [usize; N],
        order: Order,
    ) -> Result<StoredLinear> {
        if out_dims.iter().sum::<usize>() != spec.out_dim {
            bail!(
                "{:?} has {} outputs, but its layers have {out_dims:?}",
                spec.name,
                spec.out_dim
            )
        }
        let mut stored = self.stored_linear(spec).await?;
        if !self.is_check() && order != Order::Layers {
            let layers = |stored| in_layers(stored, out_dims, order);
            stored = StoredLinear {
                weight: layers(stored.weight).with_context(|| format!("tensor {:?}", spec.name))?,
                bias: stored.bias.map(layers).transpose()?,
                beside: match stored.beside {
                    Some(beside) => Some(beside.map_outputs(|b| match layers(b.into())? {
                        Stored::Dense(b) => Ok(b),
                        Stored::Quantized(b) => b.dequantize(&Device::Cpu),
                    })?),
                    None => None,
                },
            };
        }
        Ok(stored)
    }

    /// Layers of these outputs, which several tensors of [`in_layers`](Self::in_layers) have in sequence.
    pub(super) fn merged_in_layers<const N: usize>(
        &self,
        tensors: Vec<StoredLinear>,
        out_dims: [usize; N],
    ) -> Result<MergedLinear<N>> {
        let linear = self.projection(tensors, "of joined layers")?;
        Ok(MergedLinear::joined(linear, out_dims))
    }

    fn projection(&self, parts: Vec<StoredLinear>, name: &str) -> Result<Projection> {
        if self.is_check() {
            return Ok(Projection::new(QMatMul::Tensor(nothing(&[1, 1])?), None));
        }
        StoredLinear::stack(parts, self.dtype(), self.device())
            .with_context(|| format!("placing tensor {name:?}"))
    }

    /// The weights of `count` experts, `(count, out_dim, in_dim)`: from one tensor named `stacked`, or from one per expert, named `each`
    /// with its number instead of `{}`. Without `each`, they have to be in one tensor; without `stacked`, in several.
    ///
    /// # Errors
    /// As [`Weights::dense`].
    pub async fn experts(
        &mut self,
        stacked: &str,
        each: &str,
        [count, out_dim, in_dim]: [usize; 3],
    ) -> Result<QMatMul> {
        let init = init::DEFAULT_KAIMING_NORMAL;
        if each.is_empty() || !stacked.is_empty() && self.has(stacked) {
            let shape = [count, out_dim, in_dim];
            let stored = self.stored(stacked, &shape, init).await?;
            return self.placed(vec![stored], stacked);
        }
        let mut parts = Vec::with_capacity(count);
        for expert in 0..count {
            let name = format!("{}.weight", each.replace("{}", &expert.to_string()));
            let stored = self.stored(&name, &[out_dim, in_dim], init).await?;
            if !self.is_check() {
                parts.push(stored);
            }
        }
        if self.is_check() {
            return self.placed(parts, each);
        }
        let shape = [count, out_dim, in_dim];
        place_as(parts, self.dtype(), self.device(), Some(&shape))
            .with_context(|| format!("placing tensor {each:?}"))
    }

    /// Concatenates parts on the device.
    fn placed(&self, parts: Vec<Stored>, name: &str) -> Result<QMatMul> {
        if self.is_check() {
            return Ok(QMatMul::Tensor(nothing(&[1, 1])?));
        }
        place(parts, self.dtype(), self.device())
            .with_context(|| format!("placing tensor {name:?}"))
    }
}

/// A tensor of this shape that takes no memory.
fn nothing(shape: &[usize]) -> Result<Tensor> {
    Tensor::zeros((), DType::F32, &Device::Cpu)?.broadcast_as(shape)
}

/// The rows of a weight, or the elements of a bias, in another order.
fn permuted(stored: &Stored, rows: &[u32]) -> Result<Stored> {
    let tensor = match stored {
        Stored::Dense(tensor) => {
            let rows = Tensor::new(rows, tensor.device())?;
            return Ok(tensor.index_select(&rows, 0)?.into());
        }
        Stored::Quantized(tensor) => tensor,
    };
    let data = tensor.data()?;
    let len = data.len() / rows.len().max(1);
    let mut moved = Vec::with_capacity(data.len());
    for &row in rows {
        let start = row as usize * len;
        let Some(row) = data.get(start..start + len) else {
            bail!("row {row} of a tensor of shape {:?}", tensor.shape())
        };
        moved.extend_from_slice(row);
    }
    let moved = tensor.like(moved.into(), &Device::Cpu, tensor.shape().clone())?;
    Ok(Stored::Quantized(moved))
}

/// The rows of a joined weight or bias, one layer after another.
fn in_layers<const N: usize>(stored: Stored, out_dims: [usize; N], order: Order) -> Result<Stored> {
    let Stored::Dense(tensor) = stored else {
        bail!("layers joined in the order {order:?} are supported only for dense tensors")
    };
    let rows = match order {
        Order::Layers => return Ok(tensor.into()),
        Order::Reversed => {
            let mut start = 0;
            let mut parts = Vec::with_capacity(N);
            for &len in out_dims.iter().rev() {
                parts.push(tensor.narrow(0, start, len)?);
                start += len;
            }
            parts.reverse();
            Tensor::cat(&parts, 0)?
        }
        Order::Groups(groups) => {
            let mut dims = tensor.dims().to_vec();
            let in_group = dims[0] / groups.max(1);
            dims.splice(0..1, [groups, in_group]);
            let grouped = tensor.reshape(dims)?;
            let mut start = 0;
            let mut parts = Vec::with_capacity(N);
            for len in out_dims.map(|dim| dim / groups.max(1)) {
                parts.push(grouped.narrow(1, start, len)?.flatten(0, 1)?);
                start += len;
            }
            Tensor::cat(&parts, 0)?
        }
    };
    Ok(rows.into())
}
