//! Files that one side writes and the other reads.

use super::candle::{npy::NpzTensors, pickle, safetensors, Device, Result, Tensor};
use super::{guarded, tensor, value};
use crate::case::{Format, Input, Outcome};
use crate::value::Value;
use std::collections::HashMap;
use std::path::Path;

/// Writes the inputs, in their layouts, under the names `t0`, `t1`, …; `.npy` holds only the first.
pub fn save(format: Format, inputs: &[Input], path: &Path) -> Outcome {
    guarded(|| {
        let named: Result<Vec<_>> = inputs
            .iter()
            .enumerate()
            .map(|(i, input)| Ok((format!("t{i}"), tensor(input)?)))
            .collect();
        let named = named?;
        match format {
            Format::Npy => named[0].1.write_npy(path)?,
            Format::Npz => Tensor::write_npz(&named, path)?,
            Format::SafetensorsOne => named[0].1.save_safetensors("t0", path)?,
            _ => safetensors::save(&named.into_iter().collect::<HashMap<_, _>>(), path)?,
        }
        Result::Ok(Vec::new())
    })
}

/// Reads every tensor, in the order of their names.
pub fn load(format: Format, path: &Path) -> Outcome {
    guarded(|| {
        let cpu = &Device::Cpu;
        let mut named: Vec<(String, Tensor)> = match format {
            Format::Npy => vec![("t0".into(), Tensor::read_npy(path)?)],
            Format::Npz => Tensor::read_npz(path)?,
            Format::NpzByName => {
                let tensors = NpzTensors::new(path)?;
                let mut named = Vec::new();
                for name in tensors.names() {
                    named.extend(tensors.get(name)?.map(|t| (name.clone(), t)));
                }
                named
            }
            Format::Pickle => pickle::read_all(path)?,
            Format::SafetensorsMapped => {
                // SAFETY: the file belongs to this test and does not change.
                let file = unsafe { safetensors::MmapedSafetensors::new(path)? };
                let names = file.tensors().into_iter().map(|(name, _)| name);
                names
                    .map(|name| Ok((name.clone(), file.load(&name, cpu)?)))
                    .collect::<Result<_>>()?
            }
            Format::Safetensors | Format::SafetensorsOne => {
                safetensors::load(path, cpu)?.into_iter().collect()
            }
        };
        named.sort_by(|a, b| a.0.cmp(&b.0));
        let mut values = Vec::new();
        for (name, t) in named {
            values.extend([Value::Text(name), value(&t)?]);
        }
        Result::Ok(values)
    })
}
