//! The devices by name, and a device for each guest.

use std::fmt;
use std::str::FromStr;

use candle_core::{Device, DeviceLocation, DeviceProbe};

use crate::error::line;
use crate::{Error, Result};

/// The value of `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best that is present: CUDA, then Metal, then WebGPU on a GPU, then the CPU.
    #[default]
    Auto,
    /// The CUDA device with this ordinal.
    Cuda(usize),
    /// The Metal device with this ordinal.
    Metal(usize),
    /// The WebGPU adapter with this ordinal.
    WebGpu(usize),
    /// The processor.
    Cpu,
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(asked: &str) -> Result<Self> {
        let unknown = || Error::UnknownDevice {
            asked: crate::error::bounded(asked),
        };
        let (kind, ordinal) = match asked.split_once(':') {
            Some((kind, ordinal)) => (kind, Some(ordinal.parse().map_err(|_| unknown())?)),
            None => (asked, None),
        };
        match (kind, ordinal) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            ("cuda", ordinal) => Ok(Self::Cuda(ordinal.unwrap_or(0))),
            ("metal", ordinal) => Ok(Self::Metal(ordinal.unwrap_or(0))),
            ("webgpu", ordinal) => Ok(Self::WebGpu(ordinal.unwrap_or(0))),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Metal(ordinal) => write!(f, "metal:{ordinal}"),
            Self::WebGpu(ordinal) => write!(f, "webgpu:{ordinal}"),
            Self::Cpu => f.write_str("cpu"),
        }
    }
}

/// A choice that was made, from which every guest gets another device.
///
/// Two guests on one GPU then have separate queues, memory and faults: what one breaks, the other does not notice.
#[derive(Clone, Debug)]
pub struct Devices {
    choice: DeviceChoice,
    passed_over: Vec<(&'static str, String)>,
}

impl Devices {
    /// Looks for the device. `auto` always finds one, the CPU if nothing else; any other choice is that device or an error.
    ///
    /// # Errors
    /// [`Error::Device`] if the device that was named cannot be opened.
    pub fn choose(choice: DeviceChoice) -> Result<Self> {
        if choice != DeviceChoice::Auto {
            let devices = Self {
                choice,
                passed_over: Vec::new(),
            };
            devices.open()?;
            return Ok(devices);
        }
        let probes = Device::probe();
        let best = Device::best_of(&probes).map_err(|err| failed(choice, &err))?;
        let passed_over = probes
            .iter()
            .map_while(|probe| Some((probe.name, reason(probe, &best)?)))
            .collect();
        let choice = match best.location() {
            DeviceLocation::Cpu => DeviceChoice::Cpu,
            DeviceLocation::Cuda { gpu_id } => DeviceChoice::Cuda(gpu_id),
            DeviceLocation::Metal { gpu_id } => DeviceChoice::Metal(gpu_id),
            #[cfg(feature = "webgpu")]
            DeviceLocation::WebGpu { gpu_id } => DeviceChoice::WebGpu(gpu_id),
        };
        Ok(Self {
            choice,
            passed_over,
        })
    }

    /// The device that was chosen; never `auto`.
    pub fn choice(&self) -> DeviceChoice {
        self.choice
    }

    /// The better backends that `auto` passed over, and why.
    pub fn passed_over(&self) -> &[(&'static str, String)] {
        &self.passed_over
    }

    /// Another handle for another guest. It blocks while the device is opened, some 10 to 300 ms on a GPU.
    ///
    /// # Errors
    /// [`Error::Device`] if it cannot be opened.
    pub fn open(&self) -> Result<Device> {
        match self.choice {
            DeviceChoice::Auto => Device::best_available(),
            DeviceChoice::Cuda(ordinal) => Device::new_cuda_with_stream(ordinal),
            DeviceChoice::Metal(ordinal) => Device::new_metal(ordinal),
            DeviceChoice::WebGpu(ordinal) => Device::new_webgpu(ordinal),
            DeviceChoice::Cpu => Ok(Device::Cpu),
        }
        .map_err(|err| failed(self.choice, &err))
    }
}

fn failed(asked: DeviceChoice, err: &candle_core::Error) -> Error {
    Error::Device {
        asked: asked.to_string(),
        reason: line(err),
    }
}

/// The reason why the best device is not this one; `None` if it is.
fn reason(probe: &DeviceProbe, best: &Device) -> Option<String> {
    match &probe.found {
        Err(err) => Some(line(err)),
        Ok(device) if device.same_device(best) => None,
        Ok(device) if device.is_software_gpu() => {
            Some(format!("{} runs on the CPU, slower than cpu", name(device)))
        }
        Ok(device) => Some(format!("{} is slower", name(device))),
    }
}

/// The device in words, such as `webgpu:0 (NVIDIA H200)`.
pub(crate) fn name(device: &Device) -> String {
    #[cfg(feature = "webgpu")]
    if let Some(gpu) = device.as_wgpu() {
        let kind = if device.is_metal() { "metal" } else { "webgpu" };
        return format!("{kind} ({})", gpu.name());
    }
    #[cfg(feature = "cuda")]
    if let (Ok(card), DeviceLocation::Cuda { gpu_id }) =
        (device.as_cuda_device(), device.location())
    {
        return format!("cuda:{gpu_id} ({})", card.name());
    }
    match device {
        Device::Cpu => "cpu".to_string(),
        other => format!("{:?}", other.location()),
    }
}

/// Every backend, present or the reason why not, with the names that `--device` takes: a report of several lines.
pub(crate) fn report() -> String {
    let probes = Device::probe();
    let mut text = String::new();
    for probe in &probes {
        match &probe.found {
            Err(err) => text += &format!("{:<8} absent: {}\n", probe.name, line(err)),
            Ok(device) => {
                text += &format!("{:<8} present\n", probe.name);
                for (ordinal, about) in devices_of(device) {
                    text += &format!("  {:<10} {about}\n", format!("{}:{ordinal}", probe.name));
                }
            }
        }
    }
    if let Ok(best) = Device::best_of(&probes) {
        text += &format!("auto is {}\n", name(&best));
    }
    text
}

/// The ordinals of a backend, and what is behind each. The CPU has none.
fn devices_of(first: &Device) -> Vec<(usize, String)> {
    #[cfg(feature = "webgpu")]
    if first.is_webgpu() {
        let adapters = candle_core::webgpu_backend::adapters().into_iter();
        return adapters
            .map(|a| {
                (
                    a.ordinal,
                    format!("{} ({}, {})", a.name, a.backend, a.device_type),
                )
            })
            .collect();
    }
    #[cfg(feature = "cuda")]
    if first.is_cuda() {
        let cards = candle_core::cuda_backend::cards().unwrap_or_default();
        let about = |card: candle_core::cuda_backend::CardReport| {
            let (major, minor) = card.capability;
            format!("{} ({major}.{minor}, {} MiB)", card.name, card.memory >> 20)
        };
        return cards.into_iter().map(about).enumerate().collect();
    }
    if first.is_cpu() {
        Vec::new()
    } else {
        vec![(0, name(first))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda", DeviceChoice::Cuda(0)),
            ("cuda:3", DeviceChoice::Cuda(3)),
            ("metal", DeviceChoice::Metal(0)),
            ("webgpu:1", DeviceChoice::WebGpu(1)),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap(), choice);
        }
        for text in [
            "", "gpu", "cpu:0", "auto:1", "cuda:", "cuda:x", "cuda:-1", "CUDA",
        ] {
            let err = text.parse::<DeviceChoice>().unwrap_err();
            assert!(matches!(err, Error::UnknownDevice { .. }), "{text}");
        }
    }

    #[test]
    fn auto_names_a_device_and_says_why_not_a_better_one() {
        let devices = Devices::choose(DeviceChoice::Auto).unwrap();
        assert_ne!(devices.choice(), DeviceChoice::Auto);
        let order = ["cuda", "metal", "webgpu"];
        let names: Vec<_> = devices
            .passed_over()
            .iter()
            .map(|(name, _)| *name)
            .collect();
        assert_eq!(names, order[..names.len()]);
        assert_eq!(names.len() == 3, devices.choice() == DeviceChoice::Cpu);
        assert!(devices.passed_over().iter().all(|(_, why)| !why.is_empty()));
        devices.open().unwrap();
    }

    /// Needs an adapter, which may be a software one.
    #[cfg(feature = "webgpu")]
    #[test]
    fn every_guest_gets_another_gpu() {
        let Ok(devices) = Devices::choose(DeviceChoice::WebGpu(0)) else {
            return;
        };
        let (first, second) = (devices.open().unwrap(), devices.open().unwrap());
        assert!(!first.same_device(&second));
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error_that_names_it() {
        let err = Devices::choose(DeviceChoice::WebGpu(1000)).unwrap_err();
        let text = err.to_string();
        assert!(text.contains("webgpu:1000"), "{text}");
        assert!(text.contains("wasi-gpu devices"), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}
