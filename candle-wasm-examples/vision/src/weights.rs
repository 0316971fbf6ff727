//! Weights in a safetensors file, which is read in parts, or in a checkpoint of PyTorch, which is not: pickles and zip archives are read from
//! their ends.

use browser::files::File;
use candle_core::pickle::PthTensors;
use candle_core::{DType, Device};
use candle_engine::model::{load_parts, part_shapes};
use candle_engine::{Error, PartFile, Result};
use candle_nn::VarBuilder;
use std::collections::HashMap;

/// More bytes of a checkpoint are not held: models of pictures for a browser are smaller.
const MOST: u64 = 1 << 30;
/// The first bytes of zip archives, and of pickles.
const ZIP: &[u8] = b"PK";
const PICKLE: &[u8] = b"\x80\x02";

enum Contents {
    Safetensors([Box<dyn PartFile>; 1]),
    Pth(PthTensors),
}

/// A file of weights whose names and shapes are known.
pub struct Weights {
    name: String,
    contents: Contents,
    shapes: HashMap<String, Vec<usize>>,
}

impl Weights {
    /// Reads the header of a safetensors file, or all of a checkpoint.
    ///
    /// # Errors
    /// A file that is neither, or damaged, and what the file gives for an error.
    pub async fn open(file: File) -> Result<Self> {
        let name = file.name().to_string();
        let start = file.read(0, file.size().min(2)).await?;
        if start != ZIP && start != PICKLE {
            let files: [Box<dyn PartFile>; 1] = [Box::new(file)];
            let shapes = part_shapes(&files).await?;
            return Ok(Self {
                name,
                shapes,
                contents: Contents::Safetensors(files),
            });
        }
        let failed = |problem: String| Error::File {
            file: name.clone(),
            problem,
        };
        if file.size() > MOST {
            let problem = format!(
                "a checkpoint of {} bytes, at most {MOST} are read; convert it to safetensors",
                file.size()
            );
            return Err(failed(problem));
        }
        let bytes = file.read(0, file.size()).await?;
        let tensors = PthTensors::from_bytes(bytes, None).map_err(|err| failed(err.to_string()))?;
        let shapes = tensors.tensor_infos().iter();
        let shapes = shapes.map(|(name, info)| (name.clone(), info.layout.dims().to_vec()));
        Ok(Self {
            shapes: shapes.collect(),
            contents: Contents::Pth(tensors),
            name,
        })
    }

    /// The file's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.shapes.keys().map(String::as_str)
    }

    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.shapes.get(name).map(Vec::as_slice)
    }

    /// All of them on a device.
    ///
    /// # Errors
    /// A file that is damaged, and what it gives for an error.
    pub async fn load(&self, dtype: DType, device: &Device) -> Result<VarBuilder<'static>> {
        let tensors = match &self.contents {
            Contents::Safetensors(files) => load_parts(files, dtype, device).await?,
            Contents::Pth(checkpoint) => {
                let read = |name: &String| -> candle_core::Result<_> {
                    let tensor = checkpoint.get(name)?;
                    // Counters of batches are integers.
                    let tensor = tensor.filter(|tensor| tensor.dtype().is_float());
                    let placed = tensor.map(|tensor| tensor.to_device(device)?.to_dtype(dtype));
                    Ok(placed.transpose()?.map(|tensor| (name.clone(), tensor)))
                };
                let read = |name| read(name).transpose();
                let tensors: candle_core::Result<_> = self.shapes.keys().filter_map(read).collect();
                tensors.map_err(|err| Error::File {
                    file: self.name.clone(),
                    problem: err.to_string(),
                })?
            }
        };
        Ok(VarBuilder::from_tensors(tensors, dtype, device))
    }
}
