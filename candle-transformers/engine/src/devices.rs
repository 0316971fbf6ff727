//! The `devices` report: every backend, present or the reason why not, with what there is to know about it.

use crate::registry::{BackendEntry, BackendRegistry};
use crate::DeviceKind;
use serde::Serialize;
use std::collections::BTreeMap;

/// One backend.
#[derive(Clone, Debug, Serialize)]
pub struct BackendReport {
    /// Its name, as `--device` takes it.
    pub name: &'static str,
    /// The reason for its absence; `None` if it is present.
    pub absent: Option<String>,
    /// The processor, for the CPU backend.
    pub cpu: Option<CpuReport>,
    /// Every card that CUDA's driver shows, by ordinal.
    pub cards: Vec<CardReport>,
    /// NVIDIA's libraries, in a build with CUDA.
    pub libraries: Vec<LibraryReport>,
    /// Every adapter that WebGPU finds, the one in use marked as chosen.
    pub adapters: Vec<AdapterReport>,
}

/// The processor.
#[derive(Clone, Debug, Serialize)]
pub struct CpuReport {
    /// Hardware threads that this process may use.
    pub cores: usize,
    /// The vector extensions that it has, of those that matter for arithmetic on tensors.
    pub simd: Vec<&'static str>,
}

/// One CUDA device.
#[derive(Clone, Debug, Serialize)]
pub struct CardReport {
    /// Its index in the list, as `--device cuda:1` takes it.
    pub ordinal: usize,
    /// The GPU's name.
    pub name: String,
    /// Its compute capability, such as `9.0`.
    pub capability: String,
    /// The newest CUDA version that the driver serves, such as `13.0`.
    pub driver: String,
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of memory.
    pub memory: usize,
}

/// One of NVIDIA's libraries.
#[derive(Clone, Debug, Serialize)]
pub struct LibraryReport {
    /// Its name.
    pub name: &'static str,
    /// The path or the name that it was opened by; `None` if it is absent.
    pub path: Option<String>,
}

/// One WebGPU adapter.
#[derive(Clone, Debug, Serialize)]
pub struct AdapterReport {
    /// Its index in the list, as `Device::new_webgpu` takes it.
    pub ordinal: usize,
    /// The GPU's name.
    pub name: String,
    /// The driver's name.
    pub driver: String,
    /// The driver's version.
    pub driver_info: String,
    /// The interface below: Vulkan, Metal or DX12.
    pub backend: String,
    /// Discrete or integrated GPU, or a CPU (software adapter).
    pub device_type: String,
    /// Whether this is the one that `--device webgpu` uses.
    pub chosen: bool,
    /// The features that it offers.
    pub features: Vec<String>,
    /// Its limits.
    pub limits: BTreeMap<&'static str, u64>,
}

/// Asks every backend of the registry.
pub fn report(registry: &BackendRegistry) -> Vec<BackendReport> {
    registry.entries().iter().map(describe).collect()
}

fn describe(entry: &BackendEntry) -> BackendReport {
    let kind = entry.kind();
    BackendReport {
        name: kind.name(),
        absent: entry.device().err().map(str::to_string),
        cpu: (kind == DeviceKind::Cpu).then(cpu),
        cards: if kind == DeviceKind::Cuda {
            cards()
        } else {
            Vec::new()
        },
        libraries: if kind == DeviceKind::Cuda {
            libraries()
        } else {
            Vec::new()
        },
        adapters: if kind == DeviceKind::WebGpu {
            adapters()
        } else {
            Vec::new()
        },
    }
}

#[cfg(feature = "cuda")]
fn cards() -> Vec<CardReport> {
    // Without a driver there are none, and the entry says why.
    let cards = candle_core::cuda_backend::cards().unwrap_or_default();
    let report = |(ordinal, card): (usize, candle_core::cuda_backend::CardReport)| CardReport {
        ordinal,
        name: card.name,
        capability: format!("{}.{}", card.capability.0, card.capability.1),
        driver: format!(
            "{}.{}",
            card.driver_version / 1000,
            card.driver_version % 1000 / 10
        ),
        multiprocessors: card.multiprocessors,
        memory: card.memory,
    };
    cards.into_iter().enumerate().map(report).collect()
}

#[cfg(not(feature = "cuda"))]
fn cards() -> Vec<CardReport> {
    Vec::new()
}

#[cfg(feature = "cuda")]
fn libraries() -> Vec<LibraryReport> {
    let found = candle_core::cuda_backend::libraries_report().into_iter();
    found
        .map(|library| LibraryReport {
            name: library.name,
            path: library.path.map(|path| path.display().to_string()),
        })
        .collect()
}

#[cfg(not(feature = "cuda"))]
fn libraries() -> Vec<LibraryReport> {
    Vec::new()
}

#[cfg(feature = "webgpu")]
fn adapters() -> Vec<AdapterReport> {
    let found = candle_core::webgpu_backend::adapters().into_iter();
    found
        .map(|adapter| AdapterReport {
            ordinal: adapter.ordinal,
            name: adapter.name,
            driver: adapter.driver,
            driver_info: adapter.driver_info,
            backend: adapter.backend,
            device_type: adapter.device_type,
            chosen: adapter.chosen,
            features: adapter.features,
            limits: adapter.limits.into_iter().collect(),
        })
        .collect()
}

#[cfg(not(feature = "webgpu"))]
fn adapters() -> Vec<AdapterReport> {
    Vec::new()
}

fn cpu() -> CpuReport {
    CpuReport {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        simd: simd(),
    }
}

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn simd() -> Vec<&'static str> {
    [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
    ]
    .into_iter()
    .filter_map(|(name, present)| present.then_some(name))
    .collect()
}

#[cfg(target_arch = "aarch64")]
fn simd() -> Vec<&'static str> {
    use std::arch::is_aarch64_feature_detected;
    [
        ("neon", is_aarch64_feature_detected!("neon")),
        ("fp16", is_aarch64_feature_detected!("fp16")),
        ("dotprod", is_aarch64_feature_detected!("dotprod")),
        ("sve", is_aarch64_feature_detected!("sve")),
    ]
    .into_iter()
    .filter_map(|(name, present)| present.then_some(name))
    .collect()
}

#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
fn simd() -> Vec<&'static str> {
    Vec::new()
}

impl BackendReport {
    /// The report as lines for a reader.
    pub fn text(&self) -> String {
        let state = match &self.absent {
            None => "present".to_string(),
            Some(reason) => format!("absent: {reason}"),
        };
        let mut lines = vec![format!("{:<8} {state}", self.name)];
        if let Some(cpu) = &self.cpu {
            lines.push(format!("  cores: {}", cpu.cores));
            lines.push(format!("  SIMD:  {}", listed(&cpu.simd)));
        }
        for card in &self.cards {
            lines.extend(card.lines());
        }
        for library in &self.libraries {
            let path = library.path.as_deref().unwrap_or("not found");
            lines.push(format!("  {}: {path}", library.name));
        }
        for adapter in &self.adapters {
            lines.extend(adapter.lines());
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

impl CardReport {
    fn lines(&self) -> Vec<String> {
        vec![
            format!("  card {}: {}", self.ordinal, self.name),
            format!("    capability: {}", self.capability),
            format!("    driver:     CUDA {}", self.driver),
            format!("    processors: {}", self.multiprocessors),
            format!("    memory:     {} MiB", self.memory >> 20),
        ]
    }
}

impl AdapterReport {
    fn lines(&self) -> Vec<String> {
        let chosen = if self.chosen { " (chosen)" } else { "" };
        let mut lines = vec![
            format!("  adapter {}{chosen}: {}", self.ordinal, self.name),
            format!("    driver:   {} {}", self.driver, self.driver_info),
            format!("    backend:  {}", self.backend),
            format!("    type:     {}", self.device_type),
            format!("    features: {}", listed(&self.features)),
            "    limits:".to_string(),
        ];
        let limits = self.limits.iter();
        lines.extend(limits.map(|(name, value)| format!("      {name}: {value}")));
        lines
    }
}

fn listed(names: &[impl AsRef<str>]) -> String {
    if names.is_empty() {
        return "none".to_string();
    }
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    names.join(", ")
}
