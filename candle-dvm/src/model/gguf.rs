//! Models from a GGUF file, which holds configuration, tokenizer and weights.

use super::network::Network;
use super::{ModelFiles, TextTokenizer};
use crate::error::{brief, unlocated, Doing};
use crate::format::WeightFormat;
use crate::{Error, Result};
use candle_core::quantized::gguf_file::{Content, MmapedContent, TensorInfo};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::quantized::QTensor;
use candle_core::{bail, DType, Device, Shape};
use candle_transformers::models::llama::{Cache, Llama};
use candle_transformers::models::quantized_llama::{self, Config, WeightSource};
use std::collections::HashSet;
use std::ops::Deref;
use std::path::Path;
use tokenizers::Tokenizer;

/// The keys of the tokens that end a text: the text itself, a turn of a chat, a message to a tool.
const END_TOKENS: [&str; 3] = [
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
];

/// The table whose rows are the tokens' vectors.
const EMBEDDING: &str = "token_embd.weight";

/// What is in front of the tensors of a file, and with a mapped one the tensors too.
pub(super) enum GgufContent {
    Mapped(MmapedContent),
    /// Of a file of this many bytes.
    Header(Content, u64),
}

impl Deref for GgufContent {
    type Target = Content;

    fn deref(&self) -> &Content {
        match self {
            Self::Mapped(content) => content,
            Self::Header(content, _) => content,
        }
    }
}

impl WeightSource for &GgufContent {
    fn shape(&self, name: &str) -> Option<Shape> {
        let info = self.tensor_infos.get(name)?;
        Some(info.shape.clone())
    }

    fn read(&mut self, name: &str) -> candle_core::Result<QTensor> {
        match self {
            GgufContent::Mapped(content) => content.tensor(name, &Device::Cpu),
            GgufContent::Header(..) => {
                bail!("tensor {name:?} is not there yet, its file is read in parts")
            }
        }
    }
}

/// A file, its metadata and shapes checked.
pub(super) struct GgufNetwork {
    pub(super) content: GgufContent,
    pub(super) config: Config,
    /// The tensors of the model, all that the file has.
    tensors: Vec<String>,
}

/// Maps a file, and checks its metadata, its tokenizer, and each tensor's name, shape and place in the file.
pub(super) fn open(file: &Path) -> Result<ModelFiles> {
    // SAFETY: the mapping is sound as long as nobody truncates the file while it is open, which no reader of mapped files can
    // rule out; the files are the user's own.
    let content = unsafe { MmapedContent::new(file) }
        .map_err(|err| Error::file(file, brief(unlocated(&err))))?;
    describe(file, GgufContent::Mapped(content))
}

/// Checks metadata, tokenizer, and each tensor's name, shape and place in the file.
pub(super) fn describe(file: &Path, content: GgufContent) -> Result<ModelFiles> {
    let failed = |err: candle_core::Error| Error::file(file, brief(unlocated(&err)));
    let config = Config::read(&content.metadata).map_err(failed)?;
    let tensors = config.check_tensors(&&content).map_err(failed)?;
    refuse_others(file, &content, &tensors)?;
    for name in &tensors {
        content.check_place(name).map_err(failed)?;
    }
    let tokenizer = Tokenizer::from_gguf(&content).map_err(failed)?;
    let vocab_size = content.tensor_infos[EMBEDDING].shape.dims()[0];
    let tokenizer = TextTokenizer::new(file, tokenizer, None, vocab_size)?;
    let mut stop_tokens = Vec::new();
    for key in END_TOKENS {
        if let Some(value) = content.metadata.get(key) {
            stop_tokens.push(value.to_u32().map_err(|err| Error::Field {
                file: file.display().to_string(),
                field: key.to_string(),
                problem: brief(&err),
            })?);
        }
    }
    Ok(ModelFiles {
        name: file.display().to_string(),
        tokenizer,
        stop_tokens,
        embedded: false,
        network: Network::Gguf(GgufNetwork {
            content,
            config,
            tensors,
        }),
    })
}

/// A tensor that the model does not use would be left out of the computation silently.
fn refuse_others(file: &Path, content: &Content, used: &[String]) -> Result<()> {
    let used: HashSet<&str> = used.iter().map(String::as_str).collect();
    let mut names: Vec<&String> = content.tensor_infos.keys().collect();
    names.sort_unstable();
    // Older files have the rotary frequencies, which follow from the metadata.
    let is_other =
        |name: &&&String| !used.contains(name.as_str()) && !name.ends_with(".attn_rot_embd.weight");
    match names.iter().find(is_other) {
        None => Ok(()),
        Some(name) => Err(Error::Tensor {
            file: file.display().to_string(),
            tensor: name.to_string(),
            problem: "the architecture as it is supported here has no such tensor".to_string(),
        }),
    }
}

fn bytes(info: &TensorInfo) -> u64 {
    let blocks = info.shape.elem_count() / info.ggml_dtype.block_size();
    blocks as u64 * info.ggml_dtype.type_size() as u64
}

impl GgufContent {
    /// Whether the file is long enough for a tensor.
    fn check_place(&self, name: &str) -> candle_core::Result<()> {
        match self {
            // A view of the file says it.
            Self::Mapped(content) => content.tensor(name, &Device::Cpu).map(|_| ()),
            Self::Header(content, size) => {
                let info = &content.tensor_infos[name];
                let start = content.tensor_data_offset.checked_add(info.offset);
                match start.and_then(|start| start.checked_add(bytes(info))) {
                    Some(end) if end <= *size => Ok(()),
                    _ => bail!(
                        "tensor {name:?}: {} bytes at offset {} after {}, the file has {size} bytes: is the download complete?",
                        bytes(info),
                        info.offset,
                        content.tensor_data_offset
                    ),
                }
            }
        }
    }
}

impl GgufNetwork {
    pub(super) fn max_positions(&self) -> usize {
        self.config.context_length
    }

    pub(super) fn bytes(&self, name: &str) -> u64 {
        bytes(&self.content.tensor_infos[name])
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(|name| self.bytes(name)).sum()
    }

    /// What the matrices are stored as; where they differ, most of them by size.
    pub(super) fn format(&self) -> WeightFormat {
        let mut sums: Vec<(WeightFormat, u64)> = Vec::new();
        for name in &self.tensors {
            let format = self.content.tensor_infos[name].ggml_dtype.into();
            match sums.iter_mut().find(|(other, _)| *other == format) {
                Some((_, sum)) => *sum += self.bytes(name),
                None => sums.push((format, self.bytes(name))),
            }
        }
        let largest = sums.into_iter().max_by_key(|(_, sum)| *sum);
        largest.map_or(WeightFormat::Dense(DType::F32), |(format, _)| format)
    }

    /// What activations on a GPU are, unless something else is asked for.
    pub(super) fn activations(&self) -> DType {
        self.format().activations()
    }

    pub(super) fn place(
        &self,
        dtype: DType,
        device: &Device,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(Llama, Cache)> {
        let mut source = Reported {
            content: &self.content,
            progress,
        };
        quantized_llama::load(&self.config, &mut source, dtype, device).doing("loading the weights")
    }
}

/// Reports the size of each tensor once it has been read.
struct Reported<'a> {
    content: &'a GgufContent,
    progress: &'a (dyn Fn(u64) + Send + Sync),
}

impl WeightSource for Reported<'_> {
    fn shape(&self, name: &str) -> Option<Shape> {
        WeightSource::shape(&self.content, name)
    }

    fn read(&mut self, name: &str) -> candle_core::Result<QTensor> {
        let tensor = WeightSource::read(&mut self.content, name)?;
        (self.progress)(tensor.storage_size_in_bytes() as u64);
        Ok(tensor)
    }
}
