//! The backends of a [`VarBuilder`].

use super::{SimpleBackend, VarBuilder};
use crate::{Init, VarMap};
use candle_core::npy::NpzTensors;
use candle_core::pickle::PthTensors;
use candle_core::safetensors::{BufferedSafetensors, MmapedSafetensors, SliceSafetensors};
use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use std::borrow::Cow;
use std::collections::HashMap;

pub(super) fn missing(name: &str) -> Error {
    Error::CannotFindTensor {
        path: name.to_string(),
    }
    .bt()
}

pub(super) fn check_shape(name: &str, expected: Shape, got: &Shape) -> Result<()> {
    if *got == expected {
        return Ok(());
    }
    Err(Error::UnexpectedShape {
        msg: format!("shape mismatch for {name}"),
        expected,
        got: got.clone(),
    }
    .bt())
}

/// Makes zeros.
pub(super) struct Zeros;

impl SimpleBackend for Zeros {
    fn get(&self, s: Shape, _name: &str, _h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        Tensor::zeros(s, dtype, dev)
    }

    fn get_unchecked(&self, name: &str, _dtype: DType, _dev: &Device) -> Result<Tensor> {
        candle_core::bail!("cannot make zeros for {name} without a shape, use get")
    }

    fn contains_tensor(&self, _name: &str) -> bool {
        true
    }
}

impl SimpleBackend for HashMap<String, Tensor> {
    fn get(&self, s: Shape, name: &str, _h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let tensor = HashMap::get(self, name).ok_or_else(|| missing(name))?;
        check_shape(name, s, tensor.shape())?;
        tensor.to_device(dev)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        let tensor = HashMap::get(self, name).ok_or_else(|| missing(name))?;
        tensor.to_device(dev)?.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.contains_key(name)
    }
}

impl SimpleBackend for VarMap {
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        VarMap::get(self, s, name, h, dtype, dev)
    }

    /// A variable that exists; without a shape none can be made.
    fn get_unchecked(&self, name: &str, _dtype: DType, _dev: &Device) -> Result<Tensor> {
        self.find(name).ok_or_else(|| missing(name))
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn makes_tensors(&self) -> bool {
        true
    }
}

macro_rules! safetensors_backend {
    ($t:ty) => {
        impl SimpleBackend for $t {
            fn get(
                &self,
                s: Shape,
                name: &str,
                _h: Init,
                dtype: DType,
                dev: &Device,
            ) -> Result<Tensor> {
                // Checked before anything is copied or converted.
                let view = <$t>::get(self, name)?;
                check_shape(name, s, &Shape::from(view.shape()))?;
                SimpleBackend::get_unchecked(self, name, dtype, dev)
            }

            fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
                let stored_bits = <$t>::get(self, name)?.dtype().bitsize();
                // Converted on the side for which fewer bytes are moved to the device.
                if dev.is_cpu() || stored_bits <= 8 * dtype.size_in_bytes() {
                    self.load(name, dev)?.to_dtype(dtype)
                } else {
                    self.load(name, &Device::Cpu)?
                        .to_dtype(dtype)?
                        .to_device(dev)
                }
            }

            fn contains_tensor(&self, name: &str) -> bool {
                <$t>::get(self, name).is_ok()
            }
        }
    };
}

safetensors_backend!(MmapedSafetensors);
safetensors_backend!(BufferedSafetensors);
safetensors_backend!(SliceSafetensors<'_>);

macro_rules! archive_backend {
    ($t:ty, |$archive:ident, $name:ident| $contains:expr) => {
        impl SimpleBackend for $t {
            fn get(
                &self,
                s: Shape,
                name: &str,
                _h: Init,
                dtype: DType,
                dev: &Device,
            ) -> Result<Tensor> {
                let tensor = <$t>::get(self, name)?.ok_or_else(|| missing(name))?;
                check_shape(name, s, tensor.shape())?;
                tensor.to_dtype(dtype)?.to_device(dev)
            }

            fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
                let tensor = <$t>::get(self, name)?.ok_or_else(|| missing(name))?;
                tensor.to_dtype(dtype)?.to_device(dev)
            }

            fn contains_tensor(&self, $name: &str) -> bool {
                let $archive = self;
                $contains
            }
        }
    };
}

archive_backend!(NpzTensors, |npz, name| npz
    .names()
    .iter()
    .any(|n| *n == name));
archive_backend!(PthTensors, |pth, name| pth
    .tensor_infos()
    .contains_key(name));

/// From the names that a model uses to those that are stored.
pub trait Renamer {
    /// The stored name of `v`.
    fn rename(&self, v: &str) -> Cow<'_, str>;
}

impl Renamer for Box<dyn Fn(&str) -> String + Sync + Send> {
    fn rename(&self, v: &str) -> Cow<'_, str> {
        Cow::Owned(self(v))
    }
}

/// A backend that looks names up in a [`VarBuilder`] after renaming them.
pub struct Rename<'a, R: Renamer> {
    inner: VarBuilder<'a>,
    renamer: R,
}

impl<'a, R: Renamer> Rename<'a, R> {
    /// A backend that renames by `renamer` and looks up in `inner`.
    pub fn new(inner: VarBuilder<'a>, renamer: R) -> Self {
        Self { inner, renamer }
    }

    fn stored_name(&self, name: &str) -> String {
        self.inner.full_name(&self.renamer.rename(name))
    }
}

// Calls the backend of `inner`, because `inner` itself would add the source to errors a second time.
impl<R: Renamer + Sync + Send> SimpleBackend for Rename<'_, R> {
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let backend = &self.inner.source.backend;
        backend.get(s, &self.stored_name(name), h, dtype, dev)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, dev: &Device) -> Result<Tensor> {
        let backend = &self.inner.source.backend;
        backend.get_unchecked(&self.stored_name(name), dtype, dev)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let backend = &self.inner.source.backend;
        backend.contains_tensor(&self.stored_name(name))
    }

    fn makes_tensors(&self) -> bool {
        self.inner.source.backend.makes_tensors()
    }
}
