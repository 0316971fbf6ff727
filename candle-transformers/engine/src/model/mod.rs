//! The parts of a model: configuration, tokenizer, weights; from a folder, a GGUF file, the Hugging Face Hub or this binary.
//!
//! [`ModelFiles::open`] reads and checks everything that can be checked without a device, down to the name and shape of
//! each tensor, so that a bad file is reported before a GPU is opened.

mod chat_template;
mod config;
mod content;
#[cfg(not(target_arch = "wasm32"))]
mod embedded;
mod folder;
mod gguf;
#[cfg(not(target_arch = "wasm32"))]
mod hub;
pub(crate) mod kind;
mod lora;
mod most_bytes;
mod network;
mod parts;
mod plain_text;
mod sampling;
pub(crate) mod split;
mod token_bytes;
mod tokenizer;
mod vocabularies;
mod weights;

#[cfg(all(feature = "speech", not(target_arch = "wasm32")))]
pub(crate) use folder::read;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use folder::{expect_folder, open_weights};
#[cfg(any(feature = "speech", not(target_arch = "wasm32")))]
pub(crate) use folder::{CONFIG, TOKENIZER};
#[cfg(any(feature = "speech", not(target_arch = "wasm32")))]
pub(crate) use tokenizer::read as read_tokenizer;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use gguf::map as map_gguf;

pub use chat_template::{ChatTemplate, Message, Role};
#[cfg(not(target_arch = "wasm32"))]
pub use hub::{CachedModel, CachedRepo, Hub, HubModel, Removal};
pub use lora::LoraSource;
pub use parts::{load_parts, part_shapes, Bytes, ModelParts, PartFile, PartSource};
pub use sampling::SamplingDefaults;
pub use split::{GpuLayers, Needs, Split};
pub use tokenizer::TextTokenizer;
pub(crate) use vocabularies::{difference, Vocabulary};
pub use weights::Weights;

use crate::error::Doing;
use crate::format::{KvType, WeightFormat};
use crate::pictures::PictureSupport;
use crate::{Error, Result};
use candle_core::{DType, Device};
use candle_transformers::blocks::Decoder;
use network::{Files, Network};
use std::path::{Path, PathBuf};

/// The form of a model's name on the Hugging Face Hub, for messages.
pub const FORM: &str = "owner/name[@revision][:file.gguf or :FORMAT, such as :Q4_K_M]";

/// The source of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The small Llama that is part of this binary; a page in a browser loads it as it loads others.
    #[cfg(not(target_arch = "wasm32"))]
    Embedded,
    /// A Hugging Face folder: `config.json`, `tokenizer.json`, `model.safetensors` or
    /// `model.safetensors.index.json` with its shards, and `generation_config.json` if there is one.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// A model on the Hugging Face Hub, fetched into the cache where it is not there yet; a folder or a GGUF file.
    #[cfg(not(target_arch = "wasm32"))]
    Hub(HubModel),
}

impl ModelSource {
    /// The model at a path: a file is read as GGUF; a path that does not exist and has the form `owner/name[@revision][:file.gguf]` is a
    /// model on the Hugging Face Hub; anything else is a folder.
    pub fn at(path: PathBuf) -> Self {
        if path.is_file() {
            return Self::Gguf(path);
        }
        #[cfg(not(target_arch = "wasm32"))]
        if !path.exists() {
            if let Some(model) = path.to_str().and_then(HubModel::parse) {
                return Self::Hub(model);
            }
        }
        Self::Folder(path)
    }

    /// A short name for the model: that of the folder, that of the file without its ending, that on the Hub without its owner.
    pub fn short_name(&self) -> String {
        let text = |name: Option<&std::ffi::OsStr>| {
            name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
        };
        match self {
            #[cfg(not(target_arch = "wasm32"))]
            Self::Embedded => "embedded".to_string(),
            Self::Folder(path) => text(path.file_name()),
            Self::Gguf(path) => text(path.file_stem()),
            #[cfg(not(target_arch = "wasm32"))]
            Self::Hub(model) => model.short_name().to_string(),
        }
    }
}

/// A model that has been read and checked, and is on no device yet.
pub struct ModelFiles {
    /// The name of the model in messages.
    pub name: String,
    /// The tokenizer.
    pub tokenizer: TextTokenizer,
    /// The tokens that end a text.
    pub stop_tokens: Vec<u32>,
    /// The template that turns a conversation into a prompt, if the model has one.
    pub chat_template: Option<ChatTemplate>,
    /// The sampling settings that its makers recommend.
    pub sampling: SamplingDefaults,
    /// The storage format of keys and values.
    pub kv_type: KvType,
    /// Layers on the GPU and on the CPU.
    pub split: Split,
    /// Whether the model takes images.
    pub(crate) pictures: PictureSupport,
    network: Network,
    embedded: bool,
    /// The adapters over the model, for messages.
    loras: Vec<String>,
}

/// The small files, as bytes, with the names they go by in messages.
struct JsonFiles<'a> {
    config: (&'a Path, &'a [u8]),
    generation_config: Option<(&'a Path, &'a [u8])>,
    tokenizer: (&'a Path, &'a [u8]),
    tokenizer_config: Option<(&'a Path, &'a [u8])>,
    chat_template: Option<(&'a Path, &'a [u8])>,
}

impl ModelFiles {
    /// Reads and checks the model; one on the Hugging Face Hub is fetched first, as the environment says ([`Hub::from_env`]).
    ///
    /// # Errors
    /// A model that cannot be fetched; the first file, field or tensor that is missing or does not fit.
    pub fn open(source: &ModelSource) -> Result<Self> {
        match source {
            #[cfg(not(target_arch = "wasm32"))]
            ModelSource::Embedded => embedded::open(),
            ModelSource::Folder(path) => folder::open(path),
            ModelSource::Gguf(path) => gguf::open(path),
            #[cfg(not(target_arch = "wasm32"))]
            ModelSource::Hub(model) => {
                let files = Self::open(&Hub::from_env()?.fetch(model)?)?;
                Ok(Self {
                    name: model.to_string(),
                    ..files
                })
            }
        }
    }

    /// The default element type of activations: f32 for the embedded model, whose reference outputs are in f32, and for any model on the
    /// CPU; otherwise [`WeightFormat::activations`].
    pub fn default_dtype(&self, device: &Device) -> DType {
        if self.embedded || device.is_cpu() {
            DType::F32
        } else {
            self.network.activations()
        }
    }

    /// The storage format of the weights; if they differ, that of most bytes.
    pub fn format(&self) -> WeightFormat {
        self.network.format()
    }

    /// Whether a product has floats for weights, and not blocks.
    pub(crate) fn has_dense_products(&self) -> bool {
        !self.loras.is_empty() || self.network.has_dense_matrices()
    }

    /// The stored size of the weights.
    pub fn total_bytes(&self) -> u64 {
        self.network.total_bytes()
    }

    /// The memory that the model takes on a GPU, by [`ModelFiles::split`]: with its default activations, and keys
    /// and values of `kv`.
    ///
    /// # Errors
    /// Files that do not fit the configuration, which were checked when they were opened.
    pub fn needs(&self, kv: DType) -> Result<Needs> {
        self.split
            .needs(&self.network, self.network.activations(), kv)
    }

    /// The longest sequence that the model can work on.
    pub fn max_positions(&self) -> usize {
        self.network.max_positions()
    }

    /// The model on `device` with activations of `dtype`, but for what [`ModelFiles::split`] leaves to the CPU. Floats become `dtype`, blocks
    /// stay blocks. `progress` is called with each tensor's bytes as they arrive.
    pub(crate) fn place(
        &self,
        dtype: DType,
        device: &Device,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Decoder> {
        let kv = self.kv_type.dtype(self.format(), dtype, device);
        let parts = self.split.offload(&self.network, device, dtype, kv)?;
        let loaded = self.network.place(dtype, device, parts, progress);
        let decoder = loaded.map_err(|err| {
            // What was loaded is dropped: free is what was free before.
            let free = split::free_memory(device).ok().flatten();
            let split = &self.split;
            let larger = split.too_large(&self.network, device, dtype, kv, free);
            larger.unwrap_or(err)
        })?;
        self.keeping(decoder).doing("loading the weights")
    }

    /// As [`ModelFiles::place`], for the part of one rank of `group`.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn place_rank(
        &self,
        dtype: DType,
        device: &Device,
        group: std::sync::Arc<dyn candle_core::distributed::Communicator>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> candle_core::Result<Decoder> {
        let rank = self.network.place_rank(dtype, device, group, progress)?;
        self.keeping(rank)
    }

    /// `decoder`, which keeps keys and values as [`ModelFiles::kv_type`] says.
    fn keeping(&self, decoder: Decoder) -> candle_core::Result<Decoder> {
        let (format, activations) = (self.format(), decoder.dtype());
        let dtype = self.kv_type.dtype(format, activations, decoder.device());
        decoder.with_kv_dtype(dtype)
    }

    /// The prompt's tokens with the begin token.
    ///
    /// # Errors
    /// A prompt without tokens, or longer than the model's positions.
    pub fn prompt_tokens(&self, prompt: &str) -> Result<Vec<u32>> {
        prompt_tokens(&self.tokenizer, self.max_positions(), prompt)
    }

    /// Checks that `draft` can propose tokens to this model: that both mean the same tokens by the same ids.
    ///
    /// # Errors
    /// [`Error::Draft`] says why not.
    pub fn check_draft(&self, draft: &Self) -> Result<()> {
        check_draft(&self.vocabulary(), &draft.vocabulary())
    }

    fn vocabulary(&self) -> Vocabulary<'_> {
        Vocabulary {
            name: &self.name,
            tokenizer: &self.tokenizer,
            rows: self.network.spec.vocab,
        }
    }

    fn from_parts(name: String, json: JsonFiles, weights: Weights, embedded: bool) -> Result<Self> {
        let (config_file, config_bytes) = json.config;
        let config = config::parse(config_file, config_bytes)?;
        let mut stop_tokens = config.end_tokens;
        let mut begin_token = config.begin_token;
        let mut sampling = SamplingDefaults::default();
        if let Some((file, bytes)) = json.generation_config {
            let generation = config::parse_generation(file, bytes)?;
            stop_tokens.extend(generation.end_tokens);
            begin_token = begin_token.or(generation.begin_token);
            sampling = generation.sampling;
        }
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let (tokenizer_file, tokenizer_bytes) = json.tokenizer;
        let tokenizer = TextTokenizer::parse(
            tokenizer_file,
            tokenizer_bytes,
            begin_token,
            config.spec.vocab,
        )?;
        let tensors = weights.check(&config.spec, config_file)?;
        Ok(Self {
            name,
            tokenizer,
            stop_tokens,
            chat_template: ChatTemplate::of_folder(json.tokenizer_config, json.chat_template)?,
            sampling,
            kv_type: KvType::default(),
            split: Split::default(),
            pictures: PictureSupport::none("it has no image encoder here"),
            network: Network {
                spec: config.spec,
                tensors,
                files: Files::Safetensors(weights).into(),
                plan: None,
            },
            embedded,
            loras: Vec::new(),
        })
    }
}

/// Refuses a pair whose vocabularies differ.
pub(crate) fn check_draft(model: &Vocabulary, draft: &Vocabulary) -> Result<()> {
    match difference(draft, model) {
        None => Ok(()),
        Some(why) => Err(Error::Draft {
            draft: draft.name.to_string(),
            model: model.name.to_string(),
            problem: format!("{why}; choose a draft model with the same tokenizer"),
        }),
    }
}

/// Tokenises a prompt and holds it against the model's positions.
pub(crate) fn prompt_tokens(
    tokenizer: &TextTokenizer,
    limit: usize,
    prompt: &str,
) -> Result<Vec<u32>> {
    tokenizer.check_bytes(prompt.len(), limit)?;
    let tokens = tokenizer.encode_prompt(prompt)?;
    if tokens.len() > limit {
        return Err(Error::PromptTooLong {
            tokens: tokens.len(),
            limit,
        });
    }
    Ok(tokens)
}
