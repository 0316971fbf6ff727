//! Models from a GGUF file, which holds configuration, tokenizer and weights.

use super::network::{Files, Network};
use super::{kind, ChatTemplate, ModelFiles, SamplingDefaults, Split, TextTokenizer};
use crate::error::{brief, unlocated};
use crate::format::KvType;
use crate::pictures::PictureSupport;
use crate::{Error, Result};
use candle_core::quantized::gguf_file::{Content, MmapedContent, TensorInfo};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::{bail, Device, Shape};
use candle_transformers::auto;
use candle_transformers::blocks::{Decoder, GgufMetadata, Reading, Stored, Wanted, WeightSource};
use candle_transformers::embed::architectures;
use std::collections::HashSet;
use std::future::ready;
use std::ops::Deref;
use std::path::Path;
use tokenizers::Tokenizer;

/// The keys of the tokens that end a text: the end of the text itself, of a turn of a chat, of a message to a tool.
const END_TOKENS: [&str; 3] = [
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
];

/// The header of a GGUF file; for a mapped file, the tensors too.
pub(super) enum GgufContent {
    Mapped(MmapedContent),
    /// The header of a file of this many bytes.
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
    fn contains(&self, name: &str) -> bool {
        self.tensor_infos.contains_key(name)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        let info = self.tensor_infos.get(name)?;
        Some(info.shape.clone())
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        let name = wanted.name;
        let tensor = match self {
            GgufContent::Mapped(content) => content.tensor(name, &Device::Cpu).map(Stored::from),
            GgufContent::Header(..) => Err(candle_core::Error::Msg(format!(
                "tensor {name:?} is not loaded yet: its file is read in parts"
            ))),
        };
        Box::pin(ready(tensor))
    }
}

/// An error of a file, which of a model in several files may be another one than the one that was named.
fn located(file: &Path, err: &candle_core::Error) -> Error {
    let mut inner = err;
    while let candle_core::Error::WithBacktrace { inner: next, .. } = inner {
        inner = next;
    }
    match inner {
        candle_core::Error::WithPath { path, .. } => Error::file(path, brief(unlocated(err))),
        _ => Error::file(file, brief(unlocated(err))),
    }
}

/// Maps a file, or all files of the model that it is part of.
pub(crate) fn map(file: &Path) -> Result<MmapedContent> {
    // SAFETY: the mapping is sound unless something truncates the file while it is open. No reader of mapped files can rule that out; the
    // files are the user's own.
    let content = unsafe { MmapedContent::new(file) };
    let content = content.map_err(|err| match kind::of_file(file) {
        Some(found) => Error::file(file, found),
        None => located(file, &err),
    })?;
    match kind::of_gguf(&content) {
        Some(found) => Err(Error::file(file, found)),
        None => Ok(content),
    }
}

/// Maps a file, or all files of the model that it is part of, and checks metadata, tokenizer, and each tensor's name, shape and offset.
pub(super) fn open(file: &Path) -> Result<ModelFiles> {
    describe(file, GgufContent::Mapped(map(file)?))
}

/// Checks metadata, tokenizer, and each tensor's name, shape and offset in the file.
pub(super) fn describe(file: &Path, content: GgufContent) -> Result<ModelFiles> {
    let failed = |err: candle_core::Error| Error::file(file, brief(unlocated(&err)));
    if let Some(found) = kind::of_gguf(&content) {
        return Err(Error::file(file, found));
    }
    let source = &content;
    let metadata = GgufMetadata::new(&content.metadata, &source).map_err(failed)?;
    let spec = auto::gguf_spec(&metadata).map_err(|err| {
        if architectures().contains(&metadata.architecture()) {
            Error::file(
                file,
                format!(
                    "{:?} is a model that makes vectors of texts: use `candle-dvm embed`",
                    metadata.architecture()
                ),
            )
        } else {
            failed(err)
        }
    })?;
    let tensors = Decoder::check_weights(spec.clone(), &mut &content).map_err(failed)?;
    refuse_others(file, &content, &tensors)?;
    for name in &tensors {
        content.check_place(name).map_err(failed)?;
    }
    let tokenizer = Tokenizer::from_gguf(&content).map_err(failed)?;
    let tokenizer = TextTokenizer::new(file, tokenizer, None, spec.vocab)?;
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
        pictures: PictureSupport::none(
            "a GGUF file has no image encoder, and mmproj files are not supported; use the model's Hugging Face folder",
        ),
        name: file.display().to_string(),
        tokenizer,
        stop_tokens,
        chat_template: ChatTemplate::of_gguf(file, &content),
        sampling: SamplingDefaults::of_gguf(file, &content),
        kv_type: KvType::default(),
        split: Split::default(),
        embedded: false,
        loras: Vec::new(),
        network: Network {
            spec,
            tensors,
            files: Files::Gguf(content).into(),
            plan: None,
        },
    })
}

/// Without this check, a tensor that the model does not use would be ignored silently.
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
            problem: "the supported architecture has no such tensor".to_string(),
        }),
    }
}

fn stored_bytes(info: &TensorInfo) -> u64 {
    let blocks = info.shape.elem_count() / info.ggml_dtype.block_size();
    blocks as u64 * info.ggml_dtype.type_size() as u64
}

impl GgufContent {
    /// The stored size of a tensor.
    pub(super) fn bytes(&self, name: &str) -> u64 {
        self.tensor_infos.get(name).map_or(0, stored_bytes)
    }

    /// Whether the file is long enough for a tensor.
    fn check_place(&self, name: &str) -> candle_core::Result<()> {
        match self {
            // A view of the file says it.
            Self::Mapped(content) => content.tensor(name, &Device::Cpu).map(|_| ()),
            Self::Header(content, size) => {
                let info = &content.tensor_infos[name];
                let start = content.tensor_data_offset.checked_add(info.offset);
                match start.and_then(|start| start.checked_add(stored_bytes(info))) {
                    Some(end) if end <= *size => Ok(()),
                    _ => bail!(
                        "tensor {name:?}: {} bytes at offset {} after {}, but the file has {size} bytes: is the download complete?",
                        stored_bytes(info),
                        info.offset,
                        content.tensor_data_offset
                    ),
                }
            }
        }
    }
}

/// Reports the size of each tensor once it has been read.
pub(super) struct Reported<'a> {
    pub(super) content: &'a GgufContent,
    pub(super) progress: &'a (dyn Fn(u64) + Send + Sync),
}

impl WeightSource for Reported<'_> {
    fn contains(&self, name: &str) -> bool {
        self.content.contains(name)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        self.content.shape(name)
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        Box::pin(async move {
            let stored = self.content.read(wanted).await?;
            (self.progress)(self.content.bytes(wanted.name));
            Ok(stored)
        })
    }
}
