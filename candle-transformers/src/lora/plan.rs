//! What adapters change in a model: each of their modules held against the model's tensors.

use std::collections::{HashMap, HashSet};

use candle_core::{bail, Context, Result, Tensor};

use super::adapter::{Adapter, Low};
use super::names::{canonical, in_gguf, is_gguf};
use super::source::Adapted;
use crate::blocks::{Decoder, DecoderSpec, Head, LowRank, WeightSource};

/// Changes of adapters to a model. It reads nothing of the model; [`Plan::over`] gives its weights with the changes.
#[derive(Debug, Default)]
pub struct Plan {
    pub(super) changes: HashMap<String, Change>,
    pub(super) beside: HashMap<String, LowRank>,
    pub(super) apart: Option<Apart>,
}

/// The change of one tensor.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// The tensor that replaces it, before anything is added, and the adapter that has it.
    pub(super) replaced: Option<(String, Tensor)>,
    /// The terms that are added, each with its adapter.
    pub(super) added: Vec<(String, Low)>,
    /// Whether the file has `(inputs, outputs)`.
    pub(super) transposed: bool,
}

/// An output layer that is the table of tokens in the file, and that an adapter makes another one: as in peft, which changes one of two
/// modules then.
#[derive(Debug)]
pub(super) struct Apart {
    /// The weight of the output layer, which the file does not have.
    pub(super) head: String,
    /// The table.
    pub(super) table: String,
}

/// The tensors that a model reads, by canonical names.
struct Model<'a> {
    spec: &'a DecoderSpec,
    /// Those of weights without `.weight`.
    by_name: HashMap<String, String>,
    gguf: bool,
    layers: String,
}

impl Plan {
    /// Holds `adapters` against the decoder of `spec`, whose weights `source` has; none of them is read. Changes of several adapters add
    /// up.
    ///
    /// # Errors
    /// A module that the model does not have, matrices that do not fit a tensor, a tensor that two adapters replace, DoRA with another
    /// change of the same module; for a GGUF file, changes that cannot be added separately: DoRA, token tables, replaced tensors other than
    /// the table and the output layer. The error names the adapter, the module and the tensor. As [`Decoder::check_weights`].
    pub fn new(
        spec: &DecoderSpec,
        source: &mut dyn WeightSource,
        adapters: &[Adapter],
    ) -> Result<Self> {
        if adapters.is_empty() {
            return Ok(Self::default());
        }
        let names = Decoder::check_weights(spec.clone(), source)?;
        let mut model = Model {
            spec,
            by_name: HashMap::new(),
            gguf: is_gguf(spec),
            layers: format!("{}.", canonical(spec.names.layers)),
        };
        for name in &names {
            model
                .by_name
                .insert(canonical(name).to_string(), name.clone());
        }
        let mut plan = Self {
            apart: model.apart(adapters)?,
            ..Self::default()
        };
        if let Some(apart) = &plan.apart {
            let head = canonical(&apart.head).to_string();
            model.by_name.insert(head, apart.head.clone());
        }
        for adapter in adapters {
            let added = plan.add(&model, &*source, adapter);
            added.with_context(|| {
                let base = adapter.base_model();
                let base = base.map_or(String::new(), |base| format!(" (made for {base:?})"));
                format!("adapter {}{base}", adapter.name())
            })?;
        }
        Ok(plan)
    }

    /// The weights of `source` with the changes.
    pub fn over<'a>(&'a self, source: &'a mut dyn WeightSource) -> Adapted<'a> {
        Adapted { plan: self, source }
    }

    /// Whether it is without changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.beside.is_empty()
    }

    fn add(&mut self, model: &Model, source: &dyn WeightSource, adapter: &Adapter) -> Result<()> {
        for (name, tensor) in &adapter.replaced {
            let weight = model.tensor(name)?;
            self.replace(source, adapter, name, &weight, tensor)?;
            if let (Some(apart), true) = (&self.apart, adapter.shared.contains(name)) {
                let other = match weight {
                    _ if weight == apart.head => apart.table.clone(),
                    _ if weight == apart.table => apart.head.clone(),
                    _ => continue,
                };
                self.replace(source, adapter, name, &other, tensor)?;
            }
        }
        for (module, low) in &adapter.layers {
            self.add_low(model, source, adapter, module, low)?;
        }
        Ok(())
    }

    fn replace(
        &mut self,
        source: &dyn WeightSource,
        adapter: &Adapter,
        name: &str,
        weight: &str,
        tensor: &Tensor,
    ) -> Result<()> {
        let change = self.changes.entry(weight.to_string()).or_default();
        if let Some((other, _)) = &change.replaced {
            bail!("it replaces tensor {weight:?}, which adapter {other} replaces too")
        }
        let shape = self.shape(source, weight);
        if let Some(shape) = shape.filter(|shape| shape != tensor.dims()) {
            bail!(
                "tensor {name:?} has shape {:?}, but the model's {weight:?} has {shape:?}{}",
                tensor.dims(),
                resized(tensor.dims(), &shape)
            )
        }
        let change = self.changes.entry(weight.to_string()).or_default();
        change.replaced = Some((adapter.name.clone(), tensor.clone()));
        Ok(())
    }

    fn add_low(
        &mut self,
        model: &Model,
        source: &dyn WeightSource,
        adapter: &Adapter,
        module: &str,
        low: &Low,
    ) -> Result<()> {
        let (weight, permuted) = model.weight(module)?;
        if low.table != model.is_table(&weight, &self.apart) {
            bail!(if low.table {
                format!("module {module:?} has lora_embedding_A and lora_embedding_B, but {weight:?} is not a token table")
            } else {
                format!("module {module:?} has lora_A and lora_B, but {weight:?} is a table; expected lora_embedding_A and lora_embedding_B")
            })
        }
        let transposed = model.spec.transposed && canonical(&weight).starts_with(&model.layers);
        if let Some(shape) = self.shape(source, &weight) {
            low.fits(module, &weight, &shape, transposed)?;
        }
        if model.gguf {
            if low.table {
                bail!("module {module:?}: a change of the table of tokens {weight:?} cannot go beside a GGUF file; use the model's safetensors")
            }
            if low.magnitude.is_some() {
                bail!("module {module:?}: DoRA cannot go beside a GGUF file; use the model's safetensors, or an adapter without use_dora")
            }
            let b = match permuted {
                Some((heads, head_dim)) => permute(&low.b, heads, head_dim)
                    .with_context(|| format!("module {module:?} and tensor {weight:?}"))?,
                None => low.b.clone(),
            };
            let beside = LowRank::new(low.a.clone(), b)?;
            let beside = match self.beside.get(&weight) {
                Some(other) => other.and(&beside)?,
                None => beside,
            };
            self.beside.insert(weight, beside);
            return Ok(());
        }
        let change = self.changes.entry(weight.clone()).or_default();
        change.transposed = transposed;
        if let Some((other, first)) = change.added.first() {
            if first.magnitude.is_some() || low.magnitude.is_some() {
                bail!("module {module:?}: DoRA beside adapter {other} over the same tensor {weight:?}; merge one of them first")
            }
        }
        change.added.push((adapter.name.clone(), low.clone()));
        Ok(())
    }

    /// The shape of a tensor, if the source can tell.
    pub(super) fn shape(&self, source: &dyn WeightSource, name: &str) -> Option<Vec<usize>> {
        let stored = self.stored_name(name);
        source.shape(stored).map(|shape| shape.dims().to_vec())
    }

    /// The tensor in the file.
    pub(super) fn stored_name<'a>(&'a self, name: &'a str) -> &'a str {
        match &self.apart {
            Some(apart) if apart.head == name => &apart.table,
            _ => name,
        }
    }
}

/// A hint for tables of another number of tokens.
fn resized(found: &[usize], expected: &[usize]) -> &'static str {
    match (found, expected) {
        ([_, found], [_, expected]) if found == expected => {
            ": its makers added tokens; use a model with as many"
        }
        _ => "",
    }
}

impl Low {
    /// # Errors
    /// The product has not the shape of the weight.
    pub(super) fn fits(
        &self,
        module: &str,
        weight: &str,
        shape: &[usize],
        transposed: bool,
    ) -> Result<()> {
        let mut product = [self.b.dim(0)?, self.a.dim(1)?];
        if transposed {
            product.reverse();
        }
        if product[..] != *shape {
            bail!(
                "module {module:?}: the product of its matrices {:?} and {:?} has shape {product:?}, but the model's {weight:?} has {shape:?}",
                self.b.dims(),
                self.a.dims()
            )
        }
        Ok(())
    }
}

impl Model<'_> {
    fn missing<T>(&self, module: &str) -> Result<T> {
        bail!(
            "module {module:?} is not in the model, a {} of {} layers that read {} tensors: is the adapter for another model?",
            self.spec.family,
            self.spec.layers.len(),
            self.by_name.len()
        )
    }

    /// The tensor that one of an adapter replaces, by its whole name.
    fn tensor(&self, name: &str) -> Result<String> {
        let found = canonical(name);
        if !self.gguf {
            return match self.by_name.get(found) {
                Some(name) => Ok(name.clone()),
                None => self.missing(name),
            };
        }
        match found {
            "embed_tokens.weight" | "wte.weight" | "lm_head.weight" => {
                self.weight(name.trim_end_matches(".weight")).map(|(weight, _)| weight)
            }
            _ => bail!(
                "tensor {name:?} cannot be replaced in a GGUF file, whose converter may change such tensors; use the model's safetensors"
            ),
        }
    }

    /// The weight of a module, and the heads that a converter permutes.
    fn weight(&self, module: &str) -> Result<(String, Option<(usize, usize)>)> {
        let mut permuted = None;
        let name = if self.gguf {
            let place = in_gguf(self.spec, canonical(module))?;
            permuted = place.permuted;
            place.name
        } else {
            canonical(module).to_string()
        };
        match self.by_name.get(&format!("{name}.weight")) {
            Some(name) => Ok((name.clone(), permuted)),
            None => self.missing(module),
        }
    }

    fn names(&self) -> [String; 2] {
        let names = &self.spec.names;
        let head = names.after(self.spec.layers.len(), names.head);
        [
            format!("{}.weight", canonical(names.embedding)),
            format!("{}.weight", canonical(&head)),
        ]
    }

    /// Whether a weight is that of a table, in which tokens are looked up.
    fn is_table(&self, weight: &str, apart: &Option<Apart>) -> bool {
        let [table, _] = self.names();
        let positions = format!("{}.weight", canonical(self.spec.names.positions));
        let found = canonical(weight);
        let head = apart.as_ref().is_some_and(|apart| apart.head == weight);
        !head && (found == table || found == positions && self.spec.learned_positions.is_some())
    }

    /// The output layer, if it is the table of tokens and an adapter changes one of them.
    fn apart(&self, adapters: &[Adapter]) -> Result<Option<Apart>> {
        let [table, head] = self.names();
        let (stored, own) = (self.by_name.get(&table), self.by_name.get(&head));
        if stored.is_some() && own.is_some() || matches!(self.spec.head, Head::None) {
            return Ok(None);
        }
        let ends: HashSet<String> = [
            &table,
            &head,
            "embed_tokens.weight",
            "wte.weight",
            "lm_head.weight",
        ]
        .map(|name: &str| name.to_string())
        .into();
        let touches = |adapter: &Adapter| {
            let layers = adapter.layers.keys().map(|name| format!("{name}.weight"));
            let mut all = layers.chain(adapter.replaced.keys().cloned());
            all.any(|name| ends.contains(canonical(&name)))
        };
        let Some(adapter) = adapters.iter().find(|adapter| touches(adapter)) else {
            return Ok(None);
        };
        let Some(stored) = stored else {
            bail!(
                "adapter {}: it changes the table of tokens or the output layer, and the file has one tensor for both, {own:?}; save the model \
                 with Transformers' `save_pretrained`",
                adapter.name()
            )
        };
        // A file with encoders may have other names.
        let mut all = std::iter::once(&self.spec.names).chain(&self.spec.other_names);
        let names = all.find(|names| format!("{}.weight", names.embedding) == *stored);
        let names = names.unwrap_or(&self.spec.names);
        let head = names.after(self.spec.layers.len(), names.head);
        Ok(Some(Apart {
            head: format!("{head}.weight"),
            table: stored.clone(),
        }))
    }
}

/// Rows in the order of llama.cpp's converter: the two halves of a head interleaved.
fn permute(b: &Tensor, heads: usize, head_dim: usize) -> Result<Tensor> {
    let (rows, rank) = b.dims2()?;
    if !head_dim.is_multiple_of(2) || heads * head_dim != rows {
        bail!("{rows} rows are not {heads} heads of an even size {head_dim}")
    }
    b.reshape((heads, 2, head_dim / 2, rank))?
        .transpose(1, 2)?
        .contiguous()?
        .reshape((rows, rank))
}
