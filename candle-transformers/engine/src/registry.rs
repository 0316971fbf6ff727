//! The backends of this machine, and the reasons why others are absent.

use crate::device::{DeviceChoice, DeviceKind};
use crate::engine::CandleBackend;
use crate::error::brief;
use crate::model::ModelFiles;
use crate::{Error, Result};
use candle_core::{DType, Device};
use std::sync::OnceLock;

/// Every backend of this build, present or absent.
///
/// A device is opened when it is first asked about and kept: `--device cpu` opens no GPU, and nothing is opened twice.
pub struct BackendRegistry {
    entries: Vec<BackendEntry>,
    /// CUDA devices from the second on, which have to be named.
    cards: Vec<BackendEntry>,
}

/// More cards than a machine has.
const MOST_CARDS: usize = 128;

/// One backend in the registry.
pub struct BackendEntry {
    kind: DeviceKind,
    ordinal: usize,
    found: OnceLock<std::result::Result<Device, String>>,
}

impl BackendRegistry {
    /// The backends in order of preference: CUDA, Metal, WebGPU, CPU.
    pub fn detect() -> Self {
        let entry = |kind, ordinal| BackendEntry {
            kind,
            ordinal,
            found: OnceLock::new(),
        };
        let card = |ordinal| entry(DeviceKind::Cuda, ordinal);
        Self {
            entries: DeviceKind::ALL.map(|kind| entry(kind, 0)).into(),
            cards: (1..MOST_CARDS).map(card).collect(),
        }
    }

    /// All entries, best first.
    pub fn entries(&self) -> &[BackendEntry] {
        &self.entries
    }

    /// The entry that `choice` names, or for `Auto` the first that is present. Like [`Device::best_available`], `Auto`
    /// skips a software WebGPU adapter: the CPU backend is faster.
    ///
    /// # Errors
    /// [`Error::Device`] with the reason, if a device was named and is absent.
    pub fn select(&self, choice: DeviceChoice) -> Result<&BackendEntry> {
        if let Some(place) = choice.ordinal().checked_sub(1) {
            let card = self.cards.get(place).ok_or_else(|| Error::Device {
                asked: DeviceKind::Cuda.name(),
                reason: format!(
                    "device ordinal {} is out of range; ordinals are below {MOST_CARDS}",
                    place + 1
                ),
            })?;
            card.open()?;
            return Ok(card);
        }
        let wanted = choice.kind();
        let mut reasons = Vec::new();
        for entry in &self.entries {
            if wanted.is_some_and(|kind| kind != entry.kind) {
                continue;
            }
            let reason = match entry.device() {
                Ok(device) if wanted.is_none() && device.is_software_gpu() => {
                    "software adapter; the CPU backend is faster"
                }
                Ok(_) => return Ok(entry),
                Err(reason) => reason,
            };
            tracing::info!(backend = entry.kind.name(), reason, "skipped");
            reasons.push(reason);
        }
        Err(Error::Device {
            asked: wanted.map_or("auto", DeviceKind::name),
            reason: reasons.join("; "),
        })
    }
}

/// The most devices that share a model.
pub const MAX_DEVICES: usize = 64;

impl BackendEntry {
    /// The kind of device of this backend.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// The open device, or the reason why there is none.
    ///
    /// # Errors
    /// The reason, as one line.
    pub fn device(&self) -> std::result::Result<&Device, &str> {
        self.found
            .get_or_init(|| self.open_device().map_err(|err| brief(&err)))
            .as_ref()
            .map_err(String::as_str)
    }

    fn open_device(&self) -> candle_core::Result<Device> {
        match self.kind {
            DeviceKind::Cuda => Device::new_cuda(self.ordinal),
            kind => kind.open(),
        }
    }

    /// As [`BackendEntry::device`], with this crate's error.
    ///
    /// # Errors
    /// [`Error::Device`] with the reason.
    pub fn open(&self) -> Result<&Device> {
        self.device().map_err(|reason| Error::Device {
            asked: self.kind.name(),
            reason: reason.to_string(),
        })
    }

    /// The first `count` open devices of this kind, one for each rank of a model. Of the CPU there is one for all ranks.
    ///
    /// # Errors
    /// [`Error::Device`] with the reason, for the first that is not there.
    pub fn open_several(&self, count: usize) -> Result<Vec<Device>> {
        let mut devices = vec![self.open()?.clone()];
        for ordinal in 1..count {
            let device = self.kind.open_nth(ordinal).map_err(|err| Error::Device {
                asked: self.kind.name(),
                reason: format!("device {ordinal} of {count}: {}", brief(&err)),
            })?;
            devices.push(device);
        }
        Ok(devices)
    }

    /// Loads a model onto this backend's device. `dtype` of `None` means [`ModelFiles::default_dtype`]. Calls `progress` with each tensor's
    /// bytes as they arrive.
    ///
    /// # Errors
    /// The backend is absent, or the weights cannot be read or copied to the device.
    pub fn load(
        &self,
        files: ModelFiles,
        dtype: Option<DType>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<CandleBackend> {
        let device = self.open()?;
        let dtype = dtype.unwrap_or_else(|| files.default_dtype(device));
        CandleBackend::load(files, self.kind.name(), device, dtype, progress)
    }

    /// As [`BackendEntry::load`], onto `count` devices that share each layer. Ranks on the CPU share its cores, which is for tests.
    ///
    /// # Errors
    /// As [`BackendEntry::load`]; a device that is absent, or a model that as many devices cannot share.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn load_shared(
        &self,
        files: ModelFiles,
        count: usize,
        dtype: Option<DType>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<CandleBackend> {
        if count == 1 {
            return self.load(files, dtype, progress);
        }
        let devices = self.open_several(count)?;
        let dtype = dtype.unwrap_or_else(|| files.default_dtype(&devices[0]));
        CandleBackend::load_shared(files, self.kind.name(), &devices, dtype, progress)
    }
}
