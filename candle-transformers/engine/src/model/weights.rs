//! Weights in safetensors files: headers checked against the configuration, data mapped and read tensor by tensor.

use crate::error::{brief, unlocated};
use crate::{Error, Result};
use candle_core::safetensors::{load_ranges, MmapedSafetensors, SliceSafetensors};
use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_transformers::blocks::{
    Cut, Decoder, DecoderSpec, Reading, Stored, Wanted, WeightSource,
};
use safetensors::tensor::{Metadata, TensorView};
use std::collections::HashMap;
use std::future::ready;
use std::path::{Path, PathBuf};

/// The element types that weights may be stored in.
const STORED: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// The tensors of one or more safetensors files.
pub struct Weights {
    shards: Vec<Shard>,
    tensors: HashMap<String, Info>,
}

struct Shard {
    file: PathBuf,
    /// `None` for a file that is read in parts.
    data: Option<Box<dyn Data>>,
}

/// A file whose tensors are at hand.
trait Data: SimpleBackend {
    fn view(&self, name: &str) -> candle_core::Result<TensorView<'_>>;
}

impl Data for MmapedSafetensors {
    fn view(&self, name: &str) -> candle_core::Result<TensorView<'_>> {
        self.get(name)
    }
}

impl Data for SliceSafetensors<'static> {
    fn view(&self, name: &str) -> candle_core::Result<TensorView<'_>> {
        self.get(name)
    }
}

/// A tensor as its file's header describes it.
struct Info {
    shard: usize,
    shape: Vec<usize>,
    /// The element type, or the file's own name for one that candle does not have.
    dtype: std::result::Result<DType, String>,
    bytes: u64,
    /// The tensors' offset in a file that is read in parts.
    start: u64,
}

impl Weights {
    /// Maps the files and reads their headers.
    ///
    /// # Errors
    /// The first file that is missing, truncated or no safetensors file.
    pub fn from_files(files: &[PathBuf]) -> Result<Self> {
        let mut weights = Self::empty();
        for file in files {
            // SAFETY: the mapping is sound unless something truncates the file while it is open. No reader of mapped files can rule that
            // out; the files are the user's own.
            let data = unsafe { MmapedSafetensors::new(file) }
                .map_err(|err| Error::file(file, brief(unlocated(&err))))?;
            weights.add_headers(&data.tensors());
            weights.shards.push(Shard {
                file: file.clone(),
                data: Some(Box::new(data)),
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
            data: Some(Box::new(data)),
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

    /// Adds a file whose header alone has been read.
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
            data: None,
        });
    }

    /// The tensors of a file, by offset, without those of dtypes outside [`STORED`].
    pub(super) fn in_shard(&self, shard: usize) -> Vec<Place> {
        let inside = self.tensors.iter().filter(|(_, info)| info.shard == shard);
        let mut found: Vec<Place> = inside.filter_map(|(name, _)| self.place(name)).collect();
        found.sort_by_key(|place| place.start);
        found
    }

    /// The location of a tensor of one of the dtypes [`STORED`].
    pub(super) fn place(&self, name: &str) -> Option<Place> {
        let info = self.tensors.get(name)?;
        let stored = info.dtype.as_ref().ok().copied();
        Some(Place {
            name: name.to_string(),
            shard: info.shard,
            start: info.start,
            bytes: info.bytes,
            shape: info.shape.clone(),
            stored: stored.filter(|stored| STORED.contains(stored))?,
        })
    }

    /// The stored size of a tensor, 0 if there is none.
    pub(super) fn bytes(&self, name: &str) -> u64 {
        self.tensors.get(name).map_or(0, |info| info.bytes)
    }

    /// The storage dtype of a tensor.
    pub(super) fn dtype(&self, name: &str) -> DType {
        let dtype = self
            .tensors
            .get(name)
            .and_then(|info| info.dtype.clone().ok());
        dtype.unwrap_or(DType::F32)
    }

    /// The file that has a tensor.
    pub(super) fn file_of(&self, name: &str) -> Option<&Path> {
        let info = self.tensors.get(name)?;
        Some(&self.shards[info.shard].file)
    }

    /// All files.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.file.as_path())
    }

    /// The file that has a tensor, for messages; for one that is missing, all files.
    fn files_of(&self, name: &str) -> String {
        match self.file_of(name) {
            Some(file) => file.display().to_string(),
            None => {
                let files = self.shards.iter().map(|shard| shard.file.display());
                files
                    .map(|file| file.to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            }
        }
    }

    /// Checks that each tensor of a network is there, in its shape and in a float type, and gives their names.
    pub(super) fn check(&self, spec: &DecoderSpec, config_file: &Path) -> Result<Vec<String>> {
        let tensors = Decoder::check_weights(spec.clone(), &mut Headers(self))
            .map_err(|err| Error::file(config_file, brief(&err)))?;
        for name in &tensors {
            let problem = match &self.tensors[name].dtype {
                Ok(dtype) if STORED.contains(dtype) => continue,
                Ok(dtype) => format!("has dtype {dtype:?}, expected a float type"),
                Err(dtype) => format!("has dtype {dtype}, expected a float type"),
            };
            return Err(Error::Tensor {
                file: self.files_of(name),
                tensor: name.clone(),
                problem,
            });
        }
        Ok(tensors)
    }
}

/// A tensor of a safetensors file: its location, dtype and shape.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) shard: usize,
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) shape: Vec<usize>,
    pub(super) stored: DType,
}

/// The tensors' metadata, from the files' headers.
pub(super) struct Headers<'a>(pub(super) &'a Weights);

impl WeightSource for Headers<'_> {
    fn contains(&self, name: &str) -> bool {
        self.0.tensors.contains_key(name)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        let info = self.0.tensors.get(name)?;
        Some(Shape::from(info.shape.as_slice()))
    }

    fn whereabouts(&self, name: &str) -> String {
        format!(" of {}", self.0.files_of(name))
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        let err = format!("tensor {:?} was read during the shape check", wanted.name);
        Box::pin(ready(Err(candle_core::Error::Msg(err))))
    }
}

/// Mapped files; `progress` hears of the stored bytes of each tensor.
pub(super) struct Mapped<'a> {
    pub(super) weights: &'a Weights,
    /// The dtype and the device of tensors; `None` leaves them on the CPU as they are stored.
    pub(super) to: Option<(DType, &'a Device)>,
    pub(super) progress: &'a (dyn Fn(u64) + Send + Sync),
}

impl Mapped<'_> {
    fn to(&self, name: &str) -> (DType, &Device) {
        self.to
            .unwrap_or_else(|| (self.weights.dtype(name), &Device::Cpu))
    }

    fn tensor(&self, wanted: Wanted) -> candle_core::Result<Tensor> {
        let (data, bytes) = self.data(wanted.name)?;
        let shape = wanted.shape.into();
        let (dtype, device) = self.to(wanted.name);
        let tensor = data.get(shape, wanted.name, wanted.init, dtype, device)?;
        (self.progress)(bytes);
        Ok(tensor)
    }
}

impl Mapped<'_> {
    /// The file that has a tensor, and the tensor's stored size.
    fn data(&self, name: &str) -> candle_core::Result<(&dyn Data, u64)> {
        let info = self.weights.tensors.get(name);
        let data = info.and_then(|info| {
            let data = self.weights.shards[info.shard].data.as_deref()?;
            Some((data, info.bytes))
        });
        data.ok_or_else(|| candle_core::Error::CannotFindTensor {
            path: name.to_string(),
        })
    }

    /// A part of a tensor, which alone is read.
    fn part(&self, wanted: Wanted, cut: &Cut) -> candle_core::Result<Tensor> {
        let Some((dim, ranges)) = cut.ranges() else {
            return self.tensor(wanted);
        };
        let (data, bytes) = self.data(wanted.name)?;
        let part = load_ranges(&data.view(wanted.name)?, dim, ranges, &Device::Cpu)?;
        (self.progress)(bytes);
        let (dtype, device) = self.to(wanted.name);
        part.to_dtype(dtype)?.to_device(device)
    }
}

impl WeightSource for Mapped<'_> {
    fn contains(&self, name: &str) -> bool {
        self.weights.tensors.contains_key(name)
    }

    fn shape(&self, name: &str) -> Option<Shape> {
        Headers(self.weights).shape(name)
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        Box::pin(ready(self.tensor(wanted).map(Stored::from)))
    }

    fn read_part<'a>(&'a mut self, wanted: Wanted<'a>, cut: &'a Cut) -> Reading<'a> {
        Box::pin(ready(self.part(wanted, cut).map(Stored::from)))
    }
}
