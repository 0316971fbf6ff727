//! Weights by name. A [`VarBuilder`] follows the names of a model's tensors while its layers are created:
//! `vb.pp("layers").pp(0).get((n, n), "weight")` asks its backend for `layers.0.weight`, of that shape.
//!
//! Backends are safetensors, `.npz` and PyTorch files, a map of tensors, a [`VarMap`], or anything that implements
//! [`SimpleBackend`]. [`ShardedSafeTensors`] loads a part of each tensor, for one of several processes.

mod backends;
mod sharded;

pub use backends::{Rename, Renamer};
pub use sharded::{SafeTensorWithRouting, Shard, ShardedSafeTensors, ShardedVarBuilder};

use crate::{Init, VarMap};
use candle_core::npy::NpzTensors;
use candle_core::pickle::PthTensors;
use candle_core::safetensors::{BufferedSafetensors, MmapedSafetensors, SliceSafetensors};
use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// A source of tensors by full name.
pub trait Backend: Send + Sync {
    /// Extra information about a tensor beyond its shape.
    type Hints: Default;

    /// The tensor `name` in this dtype on this device.
    ///
    /// # Errors
    /// There is none of that name, its shape is not `s`, or it cannot be loaded.
    fn get(
        &self,
        s: Shape,
        name: &str,
        h: Self::Hints,
        dtype: DType,
        dev: &Device,
    ) -> Result<Tensor>;

    /// The tensor `name` in whatever shape it has, in this dtype on this device.
    ///
    /// # Errors
    /// There is none of that name, or it cannot be loaded.
    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor>;

    /// Whether there is a tensor `name`.
    fn contains_tensor(&self, name: &str) -> bool;

    /// Whether [`get`](Self::get) makes what is not there, as a [`VarMap`] does. Not in upstream's interface.
    fn makes_tensors(&self) -> bool {
        false
    }
}

/// A [`Backend`] whose hints say how a new tensor is filled. Those that read stored tensors ignore them.
pub trait SimpleBackend: Send + Sync {
    /// The tensor `name` in this dtype on this device.
    ///
    /// # Errors
    /// There is none of that name, its shape is not `s`, or it cannot be loaded.
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor>;

    /// The tensor `name` in whatever shape it has, in this dtype on this device.
    ///
    /// # Errors
    /// There is none of that name, or it cannot be loaded.
    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor>;

    /// Whether there is a tensor `name`.
    fn contains_tensor(&self, name: &str) -> bool;

    /// Whether [`get`](Self::get) makes what is not there, as a [`VarMap`] does. Not in upstream's interface.
    fn makes_tensors(&self) -> bool {
        false
    }
}

impl Backend for Box<dyn SimpleBackend + '_> {
    type Hints = Init;

    fn get(
        &self,
        s: Shape,
        name: &str,
        h: Self::Hints,
        dtype: DType,
        dev: &Device,
    ) -> Result<Tensor> {
        self.as_ref().get(s, name, h, dtype, dev)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.as_ref().get_unchecked(name, dtype, dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.as_ref().contains_tensor(name)
    }

    fn makes_tensors(&self) -> bool {
        self.as_ref().makes_tensors()
    }
}

/// A [`Backend`] with a position in its tree of names, a dtype and a device. Cheap to clone.
pub struct VarBuilderArgs<'a, B: Backend> {
    source: Arc<Source<B>>,
    path: Vec<String>,
    /// The dtype that tensors are returned in.
    pub dtype: DType,
    device: Device,
    _lifetime: std::marker::PhantomData<&'a B>,
}

/// [`VarBuilderArgs`] over any [`SimpleBackend`]: what layers take.
pub type VarBuilder<'a> = VarBuilderArgs<'a, Box<dyn SimpleBackend + 'a>>;

struct Source<B> {
    backend: B,
    /// The source of the tensors, for errors.
    place: String,
}

impl<B: Backend> Clone for VarBuilderArgs<'_, B> {
    fn clone(&self) -> Self {
        Self {
            source: self.source.clone(),
            path: self.path.clone(),
            dtype: self.dtype,
            device: self.device.clone(),
            _lifetime: self._lifetime,
        }
    }
}

impl<B: Backend> VarBuilderArgs<'_, B> {
    /// A builder at the root of `backend`.
    pub fn new_with_args(backend: B, dtype: DType, dev: &Device) -> Self {
        Self::at(backend, "the given backend".to_string(), dtype, dev.clone())
    }

    fn at(backend: B, place: String, dtype: DType, device: Device) -> Self {
        Self {
            source: Arc::new(Source { backend, place }),
            path: vec![],
            dtype,
            device,
            _lifetime: std::marker::PhantomData,
        }
    }

    /// The prefix of names of this builder, such as `model.layers.0`; empty at the root.
    pub fn prefix(&self) -> String {
        self.path.join(".")
    }

    /// The builder at the root.
    pub fn root(&self) -> Self {
        self.with_path(vec![])
    }

    /// The builder at `prefix`, counted from the root.
    pub fn set_prefix(&self, prefix: impl ToString) -> Self {
        self.with_path(vec![prefix.to_string()])
    }

    /// The builder one step further down, at `s`.
    pub fn push_prefix<S: ToString>(&self, s: S) -> Self {
        let mut path = self.path.clone();
        path.push(s.to_string());
        self.with_path(path)
    }

    /// Short for [`VarBuilderArgs::push_prefix`].
    pub fn pp<S: ToString>(&self, s: S) -> Self {
        self.push_prefix(s)
    }

    fn with_path(&self, path: Vec<String>) -> Self {
        Self {
            path,
            ..self.clone()
        }
    }

    /// The device that tensors are loaded to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The dtype that tensors are returned in.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The builder with another dtype.
    pub fn to_dtype(&self, dtype: DType) -> Self {
        self.clone().set_dtype(dtype)
    }

    /// The builder with another dtype.
    pub fn set_dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The builder with another device.
    pub fn set_device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// The full name of the tensor that is `tensor_name` here.
    fn full_name(&self, tensor_name: &str) -> String {
        if self.path.is_empty() {
            tensor_name.to_string()
        } else {
            format!("{}.{tensor_name}", self.path.join("."))
        }
    }

    /// Whether [`get`](Self::get) makes tensors that are not there, as it does of a map of variables. Not in upstream's interface.
    pub fn makes_tensors(&self) -> bool {
        self.source.backend.makes_tensors()
    }

    /// Whether there is a tensor `tensor_name` here. In a map of variables this is true only after it was created.
    pub fn contains_tensor(&self, tensor_name: &str) -> bool {
        let name = self.full_name(tensor_name);
        self.source.backend.contains_tensor(&name)
    }

    /// The tensor `name`, of shape `s`.
    ///
    /// # Errors
    /// There is none of that name, its shape is another, or it cannot be loaded; the error says the full name and where it
    /// was looked for.
    pub fn get<S: Into<Shape>>(&self, s: S, name: &str) -> Result<Tensor> {
        self.get_with_hints(s, name, Default::default())
    }

    /// [`VarBuilderArgs::get`], saying how the tensor is filled if the backend makes it.
    ///
    /// # Errors
    /// Those of [`VarBuilderArgs::get`].
    pub fn get_with_hints<S: Into<Shape>>(
        &self,
        s: S,
        name: &str,
        hints: B::Hints,
    ) -> Result<Tensor> {
        self.get_with_hints_dtype(s, name, hints, self.dtype)
    }

    /// [`VarBuilderArgs::get_with_hints`] with an explicit dtype.
    ///
    /// # Errors
    /// Those of [`VarBuilderArgs::get`].
    pub fn get_with_hints_dtype<S: Into<Shape>>(
        &self,
        s: S,
        name: &str,
        hints: B::Hints,
        dtype: DType,
    ) -> Result<Tensor> {
        let name = self.full_name(name);
        self.source
            .backend
            .get(s.into(), &name, hints, dtype, &self.device)
            .map_err(|err| self.say_where(err))
    }

    /// The tensor `name` in whatever shape it has.
    ///
    /// # Errors
    /// There is none of that name, or it cannot be loaded.
    pub fn get_unchecked(&self, name: &str) -> Result<Tensor> {
        self.get_unchecked_dtype(name, self.dtype)
    }

    /// [`VarBuilderArgs::get_unchecked`] with an explicit dtype.
    ///
    /// # Errors
    /// Those of [`VarBuilderArgs::get_unchecked`].
    pub fn get_unchecked_dtype(&self, name: &str, dtype: DType) -> Result<Tensor> {
        let name = self.full_name(name);
        self.source
            .backend
            .get_unchecked(&name, dtype, &self.device)
            .map_err(|err| self.say_where(err))
    }

    /// Adds the source of the tensors to an error. The backend has added the tensor's name.
    fn say_where(&self, err: Error) -> Error {
        let place = &self.source.place;
        match err {
            Error::CannotFindTensor { path } => Error::CannotFindTensor {
                path: format!("{path} in {place}"),
            },
            Error::UnexpectedShape { msg, expected, got } => Error::UnexpectedShape {
                msg: format!("{msg} in {place}"),
                expected,
                got,
            },
            // The path is one of the files that `place` lists.
            Error::WithPath { inner, .. } if about_tensor(&inner) => self.say_where(*inner),
            Error::WithBacktrace { inner, backtrace } => Error::WithBacktrace {
                inner: Box::new(self.say_where(*inner)),
                backtrace,
            },
            err => err,
        }
    }
}

impl<'a> VarBuilder<'a> {
    /// A builder at the root of `backend`.
    pub fn from_backend(
        backend: Box<dyn SimpleBackend + 'a>,
        dtype: DType,
        device: Device,
    ) -> Self {
        Self::at(backend, "the given backend".to_string(), dtype, device)
    }

    fn from_simple(
        backend: impl SimpleBackend + 'a,
        place: String,
        dtype: DType,
        dev: &Device,
    ) -> Self {
        Self::at(Box::new(backend), place, dtype, dev.clone())
    }

    /// A builder that returns zeros for every tensor, whatever its name.
    pub fn zeros(dtype: DType, dev: &Device) -> Self {
        Self::from_simple(backends::Zeros, "zeros".to_string(), dtype, dev)
    }

    /// A builder over the tensors of a map, converted and moved to the device at each request.
    pub fn from_tensors(ts: HashMap<String, Tensor>, dtype: DType, dev: &Device) -> Self {
        let place = format!("the {} given tensors", ts.len());
        Self::from_simple(ts, place, dtype, dev)
    }

    /// The variables of `varmap`, made in there when they are first asked for.
    pub fn from_varmap(varmap: &VarMap, dtype: DType, dev: &Device) -> Self {
        Self::from_simple(varmap.clone(), "the VarMap".to_string(), dtype, dev)
    }

    /// A builder over the tensors of safetensors files, which are memory-mapped and read at each request.
    ///
    /// # Safety
    /// The files must not be changed or truncated while the builder or a clone of it lives.
    ///
    /// # Errors
    /// A file cannot be opened, or is not a whole safetensors file.
    pub unsafe fn from_mmaped_safetensors<P: AsRef<Path>>(
        paths: &[P],
        dtype: DType,
        dev: &Device,
    ) -> Result<Self> {
        let files = MmapedSafetensors::multi(paths)?;
        Ok(Self::from_simple(files, list_files(paths), dtype, dev))
    }

    /// The tensors of a safetensors file that is in memory.
    ///
    /// # Errors
    /// `data` is not a whole safetensors file.
    pub fn from_buffered_safetensors(data: Vec<u8>, dtype: DType, dev: &Device) -> Result<Self> {
        let place = format!("the given safetensors of {} bytes", data.len());
        let file = BufferedSafetensors::new(data)?;
        Ok(Self::from_simple(file, place, dtype, dev))
    }

    /// The tensors of a safetensors file that is in memory and borrowed.
    ///
    /// # Errors
    /// `data` is not a whole safetensors file.
    pub fn from_slice_safetensors(data: &'a [u8], dtype: DType, dev: &Device) -> Result<Self> {
        let place = format!("the given safetensors of {} bytes", data.len());
        let file = SliceSafetensors::new(data)?;
        Ok(Self::from_simple(file, place, dtype, dev))
    }

    /// A builder over the arrays of a NumPy `.npz` file, read at each request.
    ///
    /// # Errors
    /// The file cannot be read, or is not a zip archive.
    pub fn from_npz<P: AsRef<Path>>(p: P, dtype: DType, dev: &Device) -> Result<Self> {
        let place = p.as_ref().display().to_string();
        Ok(Self::from_simple(NpzTensors::new(p)?, place, dtype, dev))
    }

    /// A builder over the tensors of a PyTorch checkpoint, read at each request.
    ///
    /// # Errors
    /// The file cannot be read, or is not a checkpoint.
    pub fn from_pth<P: AsRef<Path>>(p: P, dtype: DType, dev: &Device) -> Result<Self> {
        let place = p.as_ref().display().to_string();
        let checkpoint = PthTensors::new(p, None)?;
        Ok(Self::from_simple(checkpoint, place, dtype, dev))
    }

    /// [`VarBuilderArgs::from_pth`] for a checkpoint that keeps its tensors in a dictionary under `state_key`.
    ///
    /// # Errors
    /// Those of [`VarBuilderArgs::from_pth`], or there is nothing under `state_key`.
    pub fn from_pth_with_state<P: AsRef<Path>>(
        p: P,
        dtype: DType,
        state_key: &str,
        dev: &Device,
    ) -> Result<Self> {
        let place = format!("{} under {state_key}", p.as_ref().display());
        let checkpoint = PthTensors::new(p, Some(state_key))?;
        Ok(Self::from_simple(checkpoint, place, dtype, dev))
    }

    /// A builder that passes names through `renamer` before they are looked up here: from the names that a model uses to the stored ones.
    /// It starts at the root; the names that `renamer` returns are relative to this builder.
    pub fn rename<R: Renamer + Send + Sync + 'a>(self, renamer: R) -> Self {
        let (place, dtype) = (self.source.place.clone(), self.dtype);
        let device = self.device.clone();
        Self::at(Box::new(Rename::new(self, renamer)), place, dtype, device)
    }

    /// [`VarBuilderArgs::rename`] by a closure.
    pub fn rename_f<F: Fn(&str) -> String + Sync + Send + 'static>(self, f: F) -> Self {
        let renamer: Box<dyn Fn(&str) -> String + Sync + Send> = Box::new(f);
        self.rename(renamer)
    }
}

/// Whether an error is one that [`VarBuilderArgs::say_where`] adds to.
fn about_tensor(err: &Error) -> bool {
    match err {
        Error::CannotFindTensor { .. } | Error::UnexpectedShape { .. } => true,
        Error::WithBacktrace { inner, .. } => about_tensor(inner),
        _ => false,
    }
}

/// The files of a model for an error: all of a few, or the first of many.
fn list_files<P: AsRef<Path>>(paths: &[P]) -> String {
    let names: Vec<String> = paths
        .iter()
        .map(|p| p.as_ref().display().to_string())
        .collect();
    match names.as_slice() {
        [] => "no files".to_string(),
        [first, rest @ ..] if rest.len() > 2 => format!("{first} and {} more files", rest.len()),
        names => names.join(", "),
    }
}
