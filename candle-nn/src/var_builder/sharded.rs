//! Sharded loading: a part of each tensor for one of several processes; and several files in memory as one.

use super::backends::{check_shape, missing};
use super::{Backend, SimpleBackend, VarBuilderArgs};
use crate::Init;
use candle_core::safetensors::{load_ranges, Load, MmapedSafetensors};
use candle_core::{bail, Context as _, DType, Device, Error, Result, Shape, Tensor};
use safetensors::tensor::{SafeTensors, TensorView};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// The requested part of a tensor: part `rank` of `world_size` equal ones along `dim`. The whole tensor by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The dimension that is cut.
    pub dim: usize,
    /// The part's number, from 0 on.
    pub rank: usize,
    /// The number of parts.
    pub world_size: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            dim: 0,
            rank: 0,
            world_size: 1,
        }
    }
}

/// Safetensors files, of whose tensors only a part is loaded.
pub struct ShardedSafeTensors(MmapedSafetensors);

/// A [`VarBuilder`](crate::VarBuilder) whose hints say which part of a tensor is wanted.
pub type ShardedVarBuilder<'a> = VarBuilderArgs<'a, ShardedSafeTensors>;

impl ShardedSafeTensors {
    /// A builder over the tensors of safetensors files, which are memory-mapped and read at each request.
    ///
    /// # Safety
    /// The files must not be changed or truncated while the builder or a clone of it lives.
    ///
    /// # Errors
    /// A file cannot be opened, or is not a whole safetensors file.
    pub unsafe fn var_builder<P: AsRef<Path>>(
        paths: &[P],
        dtype: DType,
        dev: &Device,
    ) -> Result<ShardedVarBuilder<'static>> {
        // SAFETY: this function's contract.
        let files = unsafe { MmapedSafetensors::multi(paths)? };
        let place = super::list_files(paths);
        Ok(VarBuilderArgs::at(Self(files), place, dtype, dev.clone()))
    }
}

impl ShardedSafeTensors {
    fn ranges(
        &self,
        name: &str,
        dim: usize,
        ranges: &[Range<usize>],
        dtype: DType,
        dev: &Device,
    ) -> Result<Tensor> {
        let view = self.0.get(name)?;
        let part = load_ranges(&view, dim, ranges, &Device::Cpu);
        part.with_context(|| name.to_string())?
            .to_dtype(dtype)?
            .to_device(dev)
    }
}

/// Not in upstream's interface.
impl ShardedVarBuilder<'_> {
    /// The shape of the whole tensor `name`; `None` if there is none.
    pub fn shape(&self, name: &str) -> Option<Shape> {
        let view = self.source.backend.0.get(&self.full_name(name)).ok()?;
        Some(Shape::from(view.shape()))
    }

    /// Returns `ranges` of dimension `dim` of the tensor `name`, concatenated in this order. The ranges may have any lengths. Only they are
    /// read.
    ///
    /// # Errors
    /// There is no tensor of that name, or the ranges are not in it.
    pub fn get_ranges(&self, name: &str, dim: usize, ranges: &[Range<usize>]) -> Result<Tensor> {
        let name = self.full_name(name);
        let backend = &self.source.backend;
        let part = backend.ranges(&name, dim, ranges, self.dtype, &self.device);
        part.map_err(|err| self.say_where(err))
    }
}

/// The requested shape may be that of the part, that of the whole tensor, or `()` if the caller does not know it.
impl Backend for ShardedSafeTensors {
    type Hints = Shard;

    fn get(&self, s: Shape, name: &str, h: Shard, dtype: DType, dev: &Device) -> Result<Tensor> {
        let view = self.0.get(name)?;
        let whole = Shape::from(view.shape());
        if h.world_size == 1 && h.rank == 0 {
            if s.rank() > 0 {
                check_shape(name, s, &whole)?;
            }
            return SimpleBackend::get_unchecked(&self.0, name, dtype, dev);
        }
        let range = share(name, &view, h)?;
        if s.rank() > 0 && s != whole {
            let mut part = view.shape().to_vec();
            part[h.dim] = range.len();
            check_shape(name, s, &part.into())?;
        }
        self.ranges(name, h.dim, &[range], dtype, dev)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        SimpleBackend::get_unchecked(&self.0, name, dtype, dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.get(name).is_ok()
    }
}

/// The range of the dimension that a part is.
fn share(name: &str, view: &TensorView<'_>, shard: Shard) -> Result<Range<usize>> {
    let Shard {
        dim,
        rank,
        world_size,
    } = shard;
    let dims = view.shape();
    let Some(&size) = dims.get(dim) else {
        bail!("{name} of shape {dims:?} has no dimension {dim} to split")
    };
    if rank >= world_size {
        bail!("{name}: part {rank} of {world_size}; parts are counted from 0")
    }
    if !size.is_multiple_of(world_size) {
        bail!("{name} of shape {dims:?} cannot be split into {world_size} equal parts along dimension {dim}")
    }
    let len = size / world_size;
    Ok(rank * len..(rank + 1) * len)
}

/// Several safetensors files in memory, and which of them holds a tensor.
pub struct SafeTensorWithRouting<'a> {
    routing: HashMap<String, usize>,
    files: Vec<SafeTensors<'a>>,
}

impl<'a> SafeTensorWithRouting<'a> {
    /// The tensors of all of `files`; of a name that several have, the last one's. Not in upstream's interface.
    ///
    /// # Errors
    /// One of them is not a whole safetensors file; the error says which.
    pub fn new(files: &[&'a [u8]]) -> Result<Self> {
        let mut routing = HashMap::new();
        let mut parsed = Vec::with_capacity(files.len());
        for (i, data) in files.iter().enumerate() {
            let file = SafeTensors::deserialize(data).map_err(|err| {
                Error::msg(format!("safetensors {i} of {}: {err}", files.len())).bt()
            })?;
            routing.extend(file.names().into_iter().map(|name| (name.to_string(), i)));
            parsed.push(file);
        }
        Ok(Self {
            routing,
            files: parsed,
        })
    }

    fn view(&self, name: &str) -> Result<TensorView<'_>> {
        let file = self.routing.get(name).ok_or_else(|| missing(name))?;
        self.files[*file].tensor(name).map_err(Error::wrap)
    }
}

impl SimpleBackend for SafeTensorWithRouting<'_> {
    fn get(&self, s: Shape, name: &str, _h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        check_shape(name, s, &Shape::from(self.view(name)?.shape()))?;
        self.get_unchecked(name, dtype, dev)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.view(name)?.load(dev)?.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.routing.contains_key(name)
    }
}
