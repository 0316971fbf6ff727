//! Quantised weights by name, for models that are made part by part.

use std::collections::HashMap;
use std::io::{Cursor, Read, Seek};
use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::QTensor;
use candle_core::{bail, Device, Error, Result, Shape};

/// The tensors of a GGUF file on a device, and the builder's prefix of their names. A clone shares the tensors.
#[derive(Clone)]
pub struct VarBuilder {
    tensors: Arc<HashMap<String, Arc<QTensor>>>,
    prefix: String,
    device: Device,
}

impl VarBuilder {
    /// Reads all tensors of a file to `device`.
    ///
    /// # Errors
    /// If the file cannot be read, or the device refuses a tensor, with the path and the tensor's name.
    pub fn from_gguf<P: AsRef<Path>>(p: P, device: &Device) -> Result<Self> {
        let path = p.as_ref();
        let read = || Self::read(&mut std::fs::File::open(path)?, device);
        read().map_err(|err: Error| err.with_path(path))
    }

    /// Reads all tensors of a file in memory to `device`.
    ///
    /// # Errors
    /// If the bytes are not a GGUF file, or the device refuses a tensor, with its name.
    pub fn from_gguf_buffer(buffer: &[u8], device: &Device) -> Result<Self> {
        Self::read(&mut Cursor::new(buffer), device)
    }

    fn read<R: Read + Seek>(reader: &mut R, device: &Device) -> Result<Self> {
        let content = Content::read(reader)?;
        let names = content.tensor_infos.keys();
        let tensors = names
            .map(|name| Ok((name.clone(), content.tensor(reader, name, device)?.into())))
            .collect::<Result<_>>()?;
        Ok(Self {
            tensors: Arc::new(tensors),
            prefix: String::new(),
            device: device.clone(),
        })
    }

    /// The builder below `s`: names get it and a dot as a prefix.
    pub fn pp<S: ToString>(&self, s: S) -> Self {
        Self {
            prefix: self.path(&s.to_string()),
            ..self.clone()
        }
    }

    fn path(&self, name: &str) -> String {
        match self.prefix.as_str() {
            "" => name.to_string(),
            prefix => format!("{prefix}.{name}"),
        }
    }

    /// A tensor by name and shape. Asking twice gives the same one.
    ///
    /// # Errors
    /// `CannotFindTensor`; another shape, with both.
    pub fn get<S: Into<Shape>>(&self, s: S, name: &str) -> Result<Arc<QTensor>> {
        let (tensor, expected) = (self.get_no_shape(name)?, s.into());
        if *tensor.shape() != expected {
            bail!(
                "tensor {:?} has shape {:?}, expected {expected:?}",
                self.path(name),
                tensor.shape()
            )
        }
        Ok(tensor)
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// `CannotFindTensor`.
    pub fn get_no_shape(&self, name: &str) -> Result<Arc<QTensor>> {
        let path = self.path(name);
        match self.tensors.get(&path) {
            Some(tensor) => Ok(tensor.clone()),
            None => Err(Error::CannotFindTensor { path }.bt()),
        }
    }

    /// The device that the tensors are on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether the file has a tensor of this full name; the prefix of [`VarBuilder::pp`] is ignored, as in Candle.
    pub fn contains_key(&self, key: &str) -> bool {
        self.tensors.contains_key(key)
    }
}
