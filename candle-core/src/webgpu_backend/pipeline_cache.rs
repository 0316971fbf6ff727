//! Vulkan's compiled pipelines, cached on disk between runs of a program.
//!
//! One file per adapter, in `CANDLE_WEBGPU_PIPELINE_CACHE` or in the user's cache folder. It is written completely and then renamed, so a
//! program that ends in between leaves the previous file. Several programs may use one file; the last write counts. wgpu and the driver
//! check the version of the data but not its integrity, so a checksum precedes it.

use std::path::{Path, PathBuf};

use crate::cache_folder::cache_folder;

const MAGIC: &[u8; 8] = b"candlePC";
/// Magic and checksum.
const HEADER: usize = 16;
const VARIABLE: &str = "CANDLE_WEBGPU_PIPELINE_CACHE";

/// The pipeline cache on disk, returned by [`WebGpuDevice::pipeline_cache`](super::WebGpuDevice::pipeline_cache).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineCacheReport {
    /// The file.
    pub path: PathBuf,
    /// Bytes loaded when the device was opened; 0 if there was no file or a damaged one.
    pub loaded_bytes: usize,
}

pub(super) struct PipelineCache {
    raw: wgpu::PipelineCache,
    report: PipelineCacheReport,
}

impl PipelineCache {
    /// The cache of an adapter in `dir`, or in the environment's folder. `None` if the adapter does not support it or it is disabled.
    pub(super) fn open(
        device: &wgpu::Device,
        info: &wgpu::AdapterInfo,
        dir: Option<&Path>,
    ) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let dir = dir.map_or_else(
            || cache_folder(VARIABLE, "webgpu"),
            |dir| Some(dir.to_path_buf()),
        )?;
        let path = dir.join(wgpu::util::pipeline_cache_key(info)?);
        let data = read(&path);
        let descriptor = wgpu::PipelineCacheDescriptor {
            label: Some("candle"),
            data: data.as_deref(),
            fallback: true,
        };
        // SAFETY: the checksum shows that `save` wrote the data; wgpu compares adapter and driver.
        let raw = unsafe { device.create_pipeline_cache(&descriptor) };
        let loaded_bytes = data.map_or(0, |data| data.len());
        Some(Self {
            raw,
            report: PipelineCacheReport { path, loaded_bytes },
        })
    }

    pub(super) fn raw(&self) -> &wgpu::PipelineCache {
        &self.raw
    }

    pub(super) fn report(&self) -> &PipelineCacheReport {
        &self.report
    }

    /// Writes the pipelines compiled so far.
    pub(super) fn save(&self) -> std::io::Result<()> {
        let Some(data) = self.raw.get_data() else {
            return Ok(());
        };
        let path = &self.report.path;
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut file = Vec::with_capacity(HEADER + data.len());
        file.extend_from_slice(MAGIC);
        file.extend_from_slice(&checksum(&data).to_le_bytes());
        file.extend_from_slice(&data);
        let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&unfinished, file)?;
        std::fs::rename(&unfinished, path)
    }
}

/// The data of a file, if it exists and is complete.
fn read(path: &Path) -> Option<Vec<u8>> {
    let file = match std::fs::read(path) {
        Ok(file) => file,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return None,
        Err(err) => {
            tracing::warn!(path = %path.display(), %err, "cannot read the pipeline cache");
            return None;
        }
    };
    let data = undamaged(&file);
    if data.is_none() {
        tracing::warn!(path = %path.display(), "the pipeline cache is damaged; ignoring it");
    }
    data.map(<[u8]>::to_vec)
}

fn undamaged(file: &[u8]) -> Option<&[u8]> {
    let (header, data) = file.split_at_checked(HEADER)?;
    let (magic, sum) = header.split_at(MAGIC.len());
    (magic == MAGIC && sum == checksum(data).to_le_bytes()).then_some(data)
}

/// FNV-1a, 64 bits: Fowler, Noll, Vo, `http://www.isthe.com/chongo/tech/comp/fnv/`.
fn checksum(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::{checksum, undamaged, MAGIC};

    #[test]
    fn a_damaged_file_is_seen() {
        // The published values for the empty input and for "a".
        assert_eq!(checksum(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(checksum(b"a"), 0xaf63_dc4c_8601_ec8c);
        let data = b"some pipelines";
        let file = [&MAGIC[..], &checksum(data).to_le_bytes(), data].concat();
        assert_eq!(undamaged(&file), Some(&data[..]));
        for place in 0..file.len() {
            let mut damaged = file.clone();
            damaged[place] ^= 0x10;
            assert_eq!(undamaged(&damaged), None);
            assert_eq!(undamaged(&file[..place]), None);
        }
    }
}
