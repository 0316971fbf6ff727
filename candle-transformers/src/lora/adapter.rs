//! An adapter's folder, and which part each of its tensors has.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use candle_core::{bail, Context, DType, Device, Result, Tensor};

use super::config::Config;

/// The prefix of all names that peft writes.
const PREFIX: &str = "base_model.model.";

/// A LoRA adapter of peft, on the CPU in f32.
#[derive(Debug, Clone)]
pub struct Adapter {
    pub(super) name: String,
    base: Option<String>,
    scale: f64,
    pub(super) layers: BTreeMap<String, Low>,
    /// Whole tensors that replace the model's.
    pub(super) replaced: BTreeMap<String, Tensor>,
    /// Those among them that peft writes over the model's own, so that a module that shares the model's has it too.
    pub(super) shared: BTreeSet<String>,
}

/// The term that is added to the weight of a module: `b a`, `b` with its factor.
#[derive(Debug, Clone)]
pub(super) struct Low {
    /// `(rank, inputs)`; of a table of tokens `(rank, elements)`.
    pub(super) a: Tensor,
    /// `(outputs, rank)`; of a table of tokens `(tokens, rank)`.
    pub(super) b: Tensor,
    /// DoRA's length of each row of the sum, `(outputs)`.
    pub(super) magnitude: Option<Tensor>,
    /// Whether it is that of a table.
    pub(super) table: bool,
}

/// The tensors of a module as they are found.
#[derive(Default)]
struct Found {
    a: Option<Tensor>,
    b: Option<Tensor>,
    table_a: Option<Tensor>,
    table_b: Option<Tensor>,
    magnitude: Option<Tensor>,
}

impl Adapter {
    /// Reads `adapter_config.json` and `adapter_model.safetensors` of a folder.
    ///
    /// # Errors
    /// A file that is missing or damaged; as [`Adapter::new`]. The error says which folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let config = folder.join("adapter_config.json");
        let weights = folder.join("adapter_model.safetensors");
        let name = folder.display().to_string();
        let at = |problem: String| format!("{}: {problem}", folder.display());
        if !config.is_file() {
            bail!(at(
                "no adapter_config.json; expected the folder of a LoRA adapter of peft".into()
            ))
        }
        if !weights.is_file() {
            let hint = if folder.join("adapter_model.bin").exists() {
                "only adapter_model.bin, a PyTorch file; save the adapter with peft's `save_pretrained`"
            } else {
                "is the download complete?"
            };
            bail!(at(format!("no adapter_model.safetensors: {hint}")))
        }
        let text = std::fs::read_to_string(&config)
            .map_err(candle_core::Error::wrap)
            .with_context(|| config.display().to_string())?;
        let tensors = candle_core::safetensors::load(&weights, &Device::Cpu)
            .with_context(|| weights.display().to_string())?;
        Self::new(&name, &text, tensors)
    }

    /// An adapter from the text of its `adapter_config.json` and its tensors by peft's names; `name` is for messages.
    ///
    /// The tensors are `MODULE.lora_A.weight` of `(rank, inputs)` and `MODULE.lora_B.weight` of `(outputs, rank)`, after
    /// `base_model.model.`; `lora_embedding_A` and `lora_embedding_B`; DoRA's `lora_magnitude_vector`; and whole tensors that replace the
    /// model's (`modules_to_save`, `bias`).
    ///
    /// # Errors
    /// A method other than LoRA; an unsupported variant of it; a tensor without its other half, with another rank than the configuration's,
    /// or with an unknown name; no tensors.
    pub fn new(name: &str, config: &str, tensors: HashMap<String, Tensor>) -> Result<Self> {
        Self::read(name, config, tensors).with_context(|| format!("adapter {name}"))
    }

    fn read(name: &str, config: &str, tensors: HashMap<String, Tensor>) -> Result<Self> {
        let config = Config::parse(config)?;
        let mut found: BTreeMap<String, Found> = BTreeMap::new();
        let (mut replaced, mut shared) = (BTreeMap::new(), BTreeSet::new());
        for (full, tensor) in tensors {
            if !tensor.dtype().is_float() {
                bail!(
                    "tensor {full:?} has dtype {:?}; expected a float type",
                    tensor.dtype()
                )
            }
            let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
            let Some(inner) = full.strip_prefix(PREFIX) else {
                bail!("tensor {full:?}: expected a name that begins with {PREFIX:?}")
            };
            let Some((module, part)) = inner.split_once(".lora_") else {
                // Copies of `modules_to_save`, and what is below a layer that peft has wrapped.
                let plain = inner
                    .replace(".modules_to_save.default", "")
                    .replace(".modules_to_save", "")
                    .replace(".base_layer", "");
                if inner.contains(".base_layer") {
                    shared.insert(plain.clone());
                }
                if let Some(other) = [".token_adapter.", "trainable_tokens"]
                    .into_iter()
                    .find(|part| plain.contains(part))
                {
                    bail!("tensor {full:?}: {other} is not supported")
                }
                if replaced.insert(plain.clone(), tensor).is_some() {
                    bail!("tensor {full:?}: another tensor of the adapter is for {plain:?} too")
                }
                continue;
            };
            let module = module.replace(".base_layer", "");
            let of = found.entry(module).or_default();
            let part = part.strip_suffix(".weight").unwrap_or(part);
            let part = part.strip_suffix(".default").unwrap_or(part);
            let place = match part {
                "A" => &mut of.a,
                "B" => &mut of.b,
                "embedding_A" => &mut of.table_a,
                "embedding_B" => &mut of.table_b,
                "magnitude_vector" => &mut of.magnitude,
                _ => bail!("tensor {full:?}: lora_{part} is not supported"),
            };
            *place = Some(tensor);
        }
        let low =
            |(module, found): (String, Found)| Ok((module.clone(), found.low(&module, &config)?));
        let layers = found
            .into_iter()
            .map(low)
            .collect::<Result<BTreeMap<_, _>>>()?;
        if layers.is_empty() && replaced.is_empty() {
            bail!("adapter_model.safetensors has no tensors")
        }
        Ok(Self {
            name: name.to_string(),
            base: config.base,
            scale: 1.,
            layers,
            replaced,
            shared,
        })
    }

    /// Its name in messages: the folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same under another name.
    pub fn with_name(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// The model that it was made for, as its makers name it.
    pub fn base_model(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// The same with its changes times `scale`, over the factor that its configuration says. Whole tensors stay.
    ///
    /// # Errors
    /// A number that is not finite; other than 1 for DoRA, whose lengths would not fit.
    pub fn with_scale(mut self, scale: f64) -> Result<Self> {
        if !scale.is_finite() {
            bail!(
                "adapter {}: scale {scale}; expected a finite number",
                self.name
            )
        }
        if scale != 1. && self.layers.values().any(|low| low.magnitude.is_some()) {
            bail!(
                "adapter {}: scale {scale} of a DoRA adapter; expected 1",
                self.name
            )
        }
        for low in self.layers.values_mut() {
            low.b = (&low.b * scale)?;
        }
        self.scale *= scale;
        Ok(self)
    }

    /// The factor of [`Adapter::with_scale`].
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Number of layers and tables that it changes by `B A`, and number of tensors that it replaces.
    pub fn counts(&self) -> [usize; 2] {
        [self.layers.len(), self.replaced.len()]
    }
}

impl Found {
    fn low(self, module: &str, config: &Config) -> Result<Low> {
        let (a, b, table) = match (self.a, self.b, self.table_a, self.table_b) {
            (Some(a), Some(b), None, None) => (a, b, false),
            // For a table, `A` is `(rank, tokens)` and `B` `(elements, rank)`.
            (None, None, Some(a), Some(b)) => (b.t()?.contiguous()?, a.t()?.contiguous()?, true),
            (a, b, table_a, table_b) => {
                let found: Vec<&str> = [
                    (a, "lora_A"),
                    (b, "lora_B"),
                    (table_a, "lora_embedding_A"),
                    (table_b, "lora_embedding_B"),
                ]
                .into_iter()
                .filter_map(|(tensor, name)| tensor.map(|_| name))
                .collect();
                bail!("module {module:?} has {found:?}; expected lora_A and lora_B, or lora_embedding_A and lora_embedding_B")
            }
        };
        let ([rank, _], [_, other]) = (a.dims(), b.dims()) else {
            bail!(
                "module {module:?}: its matrices have shapes {:?} and {:?}; expected two dimensions each (convolutions are not supported)",
                a.dims(),
                b.dims()
            )
        };
        if rank != other || *rank == 0 {
            bail!(
                "module {module:?}: its matrices have shapes {:?} and {:?}, which have no product",
                b.dims(),
                a.dims()
            )
        }
        let scale = config.scale(module, *rank)?;
        match (&self.magnitude, config.dora) {
            (None, true) => bail!("module {module:?}: use_dora, but there is no lora_magnitude_vector"),
            (Some(_), false) => bail!("module {module:?}: a lora_magnitude_vector, but adapter_config.json does not say use_dora"),
            (Some(_), true) if table => bail!("module {module:?}: DoRA over a table of tokens is not supported"),
            _ => {}
        }
        let magnitude = self
            .magnitude
            .map(|magnitude| magnitude.flatten_all())
            .transpose()?;
        if let Some(magnitude) = magnitude.as_ref().filter(|m| m.dims() != &b.dims()[..1]) {
            bail!(
                "module {module:?}: lora_magnitude_vector has {} elements, lora_B {} rows",
                magnitude.elem_count(),
                b.dims()[0]
            )
        }
        Ok(Low {
            b: (b * scale)?,
            a,
            magnitude,
            table,
        })
    }
}
