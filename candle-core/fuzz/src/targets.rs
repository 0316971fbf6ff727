//! The bodies of the fuzz targets. An error is a valid outcome.

use std::io::Cursor;
use std::path::Path;

use candle_core::npy::{self, NpzTensors};
use candle_core::pickle::{Object, PthTensors, Stack};
use candle_core::quantized::imatrix_file::load_imatrix;
use candle_core::quantized::{ggml_file, gguf_file};
use candle_core::safetensors::load_buffer;
use candle_core::Device;

use crate::bounded::{bounded, read};

/// A GGML file in a format before GGUF.
pub fn ggml(data: &[u8]) {
    bounded(data, || {
        let content = ggml_file::Content::read(&mut Cursor::new(data), &Device::Cpu)?;
        for tensor in content.tensors.values() {
            read(&tensor.dequantize(&Device::Cpu)?)?;
        }
        Ok(())
    });
}

/// A GGUF file: metadata, and every tensor dequantized.
pub fn gguf(data: &[u8]) {
    bounded(data, || {
        let content = gguf_file::Content::read(&mut Cursor::new(data))?;
        for name in content.tensor_infos.keys() {
            let tensor = content.tensor(&mut Cursor::new(data), name, &Device::Cpu)?;
            read(&tensor.dequantize(&Device::Cpu)?)?;
        }
        Ok(())
    });
}

/// An importance matrix of llama.cpp. The parser takes a path, so each input becomes a file.
pub fn imatrix(data: &[u8]) {
    bounded(data, || {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), data)?;
        load_imatrix(file.path()).map(drop)
    });
}

/// A NumPy array.
pub fn npy(data: &[u8]) {
    bounded(data, || read(&npy::from_reader(&mut &*data)?));
}

/// A zip archive with NumPy arrays.
pub fn npz(data: &[u8]) {
    bounded(data, || {
        let arrays = NpzTensors::from_bytes(data.to_vec())?;
        for name in arrays.names() {
            arrays.get(name)?.map_or(Ok(()), |array| read(&array))?;
        }
        Ok(())
    });
}

/// A Python pickle without an archive around it.
pub fn pickle(data: &[u8]) {
    bounded(data, || {
        let mut stack = Stack::empty();
        let result = stack.read_loop(&mut &*data);
        // Also the stack of a pickle that ends early.
        let shown = format!("{:?}", stack.stack());
        assert!(shown.starts_with('['));
        result?;
        let name = Object::Unicode("w".to_string());
        let info = stack
            .finalize()?
            .into_tensor_info(name, Path::new("data"))?;
        assert!(info.is_none_or(|info| info.name == "w"));
        Ok(())
    });
}

/// A PyTorch checkpoint.
pub fn pth(data: &[u8]) {
    bounded(data, || {
        let checkpoint = PthTensors::from_bytes(data.to_vec(), None)?;
        for name in checkpoint.tensor_infos().keys() {
            checkpoint
                .get(name)?
                .map_or(Ok(()), |tensor| read(&tensor))?;
        }
        Ok(())
    });
}

/// Headers of safetensors files, and all of their tensors.
pub fn safetensors(data: &[u8]) {
    bounded(data, || {
        for tensor in load_buffer(data, &Device::Cpu)?.values() {
            read(tensor)?;
        }
        Ok(())
    });
}
