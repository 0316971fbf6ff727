//! Weights in safetensors files: headers checked against the configuration, data mapped and read tensor by tensor.

use super::parts::Wanted;
use crate::error::{brief, unlocated};
use crate::{Error, Result};
use candle_core::safetensors::{MmapedSafetensors, SliceSafetensors};
use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::llama::Config;
use safetensors::tensor::Metadata;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The element types that weights may be stored in.
const STORED: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// The tensors of one or more safetensors files.
pub struct Weights {
    shards: Vec<Shard>,
    tensors: HashMap<String, Info>,
}

struct Shard {
    file: PathBuf,
    data: Box<dyn SimpleBackend>,
}

/// A tensor as its file's header describes it.
struct Info {
    shard: usize,
    shape: Vec<usize>,
    /// The element type, or the file's own name for one that candle does not have.
    dtype: std::result::Result<DType, String>,
    bytes: u64,
    /// Where it begins in a file that is read in parts.
    start: u64,
}

/// Tensors that are on their device already. Each is asked for once and given away: its layer may merge it with others, and then its
/// memory is free again.
#[derive(Default)]
pub(super) struct Placed(Mutex<HashMap<String, Tensor>>);

impl Placed {
    pub(super) fn insert(&mut self, name: String, tensor: Tensor) {
        self.lock().insert(name, tensor);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Tensor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimpleBackend for Placed {
    fn get(
        &self,
        _shape: Shape,
        name: &str,
        _init: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        self.get_unchecked(name, dtype, device)
    }

    fn get_unchecked(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let tensor = self.lock().remove(name);
        let missing = || candle_core::Error::CannotFindTensor {
            path: name.to_string(),
        };
        tensor
            .ok_or_else(missing)?
            .to_device(device)?
            .to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }
}

impl Weights {
    /// Maps the files and reads their headers.
    ///
    /// # Errors
    /// The first file that is missing, truncated or no safetensors file.
    pub fn from_files(files: &[PathBuf]) -> Result<Self> {
        let mut weights = Self::empty();
        for file in files {
            // SAFETY: the mapping is sound as long as nobody truncates the file while it is open, which no reader of
            // mapped files can rule out; the files are the user's own.
            let data = unsafe { MmapedSafetensors::new(file) }
                .map_err(|err| Error::file(file, brief(unlocated(&err))))?;
            weights.add_headers(&data.tensors());
            weights.shards.push(Shard {
                file: file.clone(),
                data: Box::new(data),
            });
        }
        Ok(weights)
    }

    /// Reads the header of a safetensors file that is in memory already; `file` is its name in messages.
    ///
    /// # Errors
    /// Bytes that are truncated or no safetensors file.
    pub fn from_bytes(file: &Path, bytes: &'static [u8]) -> Result<Self> {
        let mut weights = Self::empty();
        let data = SliceSafetensors::new(bytes)
            .map_err(|err| Error::file(file, brief(unlocated(&err))))?;
        weights.add_headers(&data.tensors());
        weights.shards.push(Shard {
            file: file.to_path_buf(),
            data: Box::new(data),
        });
        Ok(weights)
    }

    pub(super) fn empty() -> Self {
        Self {
            shards: Vec::new(),
            tensors: HashMap::new(),
        }
    }

    /// Notes the tensors of the shard that is about to be added.
    fn add_headers(&mut self, tensors: &[(String, safetensors::tensor::TensorView)]) {
        let shard = self.shards.len();
        for (name, view) in tensors {
            let dtype = DType::try_from(view.dtype()).map_err(|_| format!("{:?}", view.dtype()));
            let info = Info {
                shard,
                shape: view.shape().to_vec(),
                dtype,
                bytes: view.data().len() as u64,
                start: 0,
            };
            self.tensors.insert(name.clone(), info);
        }
    }

    /// Adds a file of which only the header has been read.
    pub(super) fn add_header(&mut self, file: &Path, data_start: usize, header: &Metadata) {
        let shard = self.shards.len();
        for (name, tensor) in header.tensors() {
            let (start, end) = tensor.data_offsets;
            let info = Info {
                shard,
                shape: tensor.shape.clone(),
                dtype: DType::try_from(tensor.dtype).map_err(|_| format!("{:?}", tensor.dtype)),
                bytes: (end - start) as u64,
                start: data_start as u64 + start as u64,
            };
            self.tensors.insert(name, info);
        }
        self.shards.push(Shard {
            file: file.to_path_buf(),
            data: Box::new(Placed::default()),
        });
    }

    /// The tensors of a file in the order in which they lie there, those of other dtypes than [`STORED`] left out: the model has none.
    pub(super) fn in_shard(&self, shard: usize) -> Vec<Wanted> {
        let inside = self.tensors.iter().filter(|(_, info)| info.shard == shard);
        let mut found: Vec<Wanted> = inside
            .filter_map(|(name, info)| {
                let stored = info.dtype.as_ref().ok().copied();
                Some(Wanted {
                    name: name.clone(),
                    start: info.start,
                    bytes: info.bytes,
                    shape: info.shape.clone(),
                    stored: stored.filter(|stored| STORED.contains(stored))?,
                })
            })
            .collect();
        found.sort_by_key(|wanted| wanted.start);
        found
    }

    /// Puts the tensors of a file that was added by its header.
    pub(super) fn fill(&mut self, shard: usize, placed: Placed) {
        self.shards[shard].data = Box::new(placed);
    }

    /// The file that holds a tensor.
    pub(super) fn file_of(&self, tensor: &str) -> Option<&Path> {
        let info = self.tensors.get(tensor)?;
        Some(&self.shards[info.shard].file)
    }

    /// The stored size of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.values().map(|info| info.bytes).sum()
    }

    /// What the token embedding is stored as, and by custom every matrix.
    pub fn dtype(&self) -> DType {
        self.tensors
            .get("model.embed_tokens.weight")
            .and_then(|info| info.dtype.clone().ok())
            .unwrap_or(DType::F32)
    }

    /// Checks that each tensor of a Llama of this configuration is there, in its shape and in a float type.
    pub(super) fn check(&self, config: &Config, config_file: &Path) -> Result<()> {
        each_tensor(config, |name, expected| {
            let problem = |file: &Path, problem: String| {
                Err(Error::Tensor {
                    file: file.display().to_string(),
                    tensor: name.to_string(),
                    problem,
                })
            };
            let Some(info) = self.tensors.get(name) else {
                let files = self.shards.iter().map(|shard| shard.file.display());
                let files: Vec<String> = files.map(|file| file.to_string()).collect();
                return problem(
                    Path::new(&files.join(", ")),
                    format!("missing; {} needs it", config_file.display()),
                );
            };
            let file = &self.shards[info.shard].file;
            if info.shape != expected {
                let by = config_file.display();
                return problem(
                    file,
                    format!("has shape {:?}, but {by} asks for {expected:?}", info.shape),
                );
            }
            match &info.dtype {
                Ok(dtype) if STORED.contains(dtype) => Ok(()),
                Ok(dtype) => problem(file, format!("has dtype {dtype:?}, expected a float type")),
                Err(dtype) => problem(file, format!("has dtype {dtype}, expected a float type")),
            }
        })
    }

    /// A builder that reads each tensor when the model asks for it, as `dtype` on `device`; `progress` hears of the
    /// stored bytes of each.
    pub(crate) fn var_builder<'a>(
        &'a self,
        dtype: DType,
        device: &Device,
        progress: &'a (dyn Fn(u64) + Send + Sync),
    ) -> VarBuilder<'a> {
        let reader = Reader {
            weights: self,
            progress,
        };
        VarBuilder::from_backend(Box::new(reader), dtype, device.clone())
    }
}

/// Calls `visit` with the name and shape of each tensor that a Llama of this configuration has, and stops at the first
/// error: a configuration may name more layers than could ever be listed.
fn each_tensor(config: &Config, mut visit: impl FnMut(&str, &[usize]) -> Result<()>) -> Result<()> {
    let (hidden, ffn) = (config.hidden_size, config.intermediate_size);
    let kv = hidden / config.num_attention_heads * config.num_key_value_heads;
    visit("model.embed_tokens.weight", &[config.vocab_size, hidden])?;
    for layer in 0..config.num_hidden_layers {
        let parts: [(&str, &[usize]); 9] = [
            ("input_layernorm", &[hidden]),
            ("self_attn.q_proj", &[hidden, hidden]),
            ("self_attn.k_proj", &[kv, hidden]),
            ("self_attn.v_proj", &[kv, hidden]),
            ("self_attn.o_proj", &[hidden, hidden]),
            ("post_attention_layernorm", &[hidden]),
            ("mlp.gate_proj", &[ffn, hidden]),
            ("mlp.up_proj", &[ffn, hidden]),
            ("mlp.down_proj", &[hidden, ffn]),
        ];
        for (part, shape) in parts {
            visit(&format!("model.layers.{layer}.{part}.weight"), shape)?;
        }
    }
    visit("model.norm.weight", &[hidden])?;
    if !config.tie_word_embeddings {
        visit("lm_head.weight", &[config.vocab_size, hidden])?;
    }
    Ok(())
}

/// Finds each tensor's shard and reports its size once it has been read.
struct Reader<'a> {
    weights: &'a Weights,
    progress: &'a (dyn Fn(u64) + Send + Sync),
}

impl Reader<'_> {
    fn find(&self, name: &str) -> candle_core::Result<(&dyn SimpleBackend, u64)> {
        let info =
            self.weights
                .tensors
                .get(name)
                .ok_or_else(|| candle_core::Error::CannotFindTensor {
                    path: name.to_string(),
                })?;
        Ok((self.weights.shards[info.shard].data.as_ref(), info.bytes))
    }
}

impl SimpleBackend for Reader<'_> {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let (shard, bytes) = self.find(name)?;
        let tensor = shard.get(shape, name, init, dtype, device)?;
        (self.progress)(bytes);
        Ok(tensor)
    }

    fn get_unchecked(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let (shard, bytes) = self.find(name)?;
        let tensor = shard.get_unchecked(name, dtype, device)?;
        (self.progress)(bytes);
        Ok(tensor)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.weights.tensors.contains_key(name)
    }
}
