//! Selects an adapter and opens a device on it, or reports the reason for failing.

use super::limits::WINDOW_ALIGN;
use crate::{Error, Result};
use wgpu::Features;

/// Options for opening a device, in addition to the environment.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Maximum size of a binding in bytes, a multiple of 256, unless the adapter's limit is smaller. Larger tensors are processed in
    /// windows.
    pub max_binding: Option<u64>,
    /// Maximum size of a buffer in bytes, a multiple of 256. Larger tensors are stored in several buffers.
    pub max_buffer: Option<u64>,
    /// The folder for compiled pipelines, instead of `CANDLE_WEBGPU_PIPELINE_CACHE`.
    pub pipeline_cache: Option<std::path::PathBuf>,
    /// Optional features to disable, to test the kernels for adapters that lack them: a comma-separated list of `-f16`, `-subgroups`,
    /// `-coop` (cooperative matrices), `-coop-attention` (their use in attention's own kernel), `-int8` (products of few rows with
    /// quantised weights that quantise the rows to 8 bits) and `-timestamps`.
    pub without: String,
}

/// An adapter and its capabilities, as `candle-dvm devices` prints them.
#[derive(Debug, Clone)]
pub struct AdapterReport {
    /// The ordinal for `Device::new_webgpu`.
    pub ordinal: usize,
    /// The GPU's name.
    pub name: String,
    /// The driver's name.
    pub driver: String,
    /// The driver's version, as the driver reports it.
    pub driver_info: String,
    /// `Vulkan`, `Metal`, `Dx12` or `BrowserWebGpu`.
    pub backend: String,
    /// `DiscreteGpu`, `IntegratedGpu`, `VirtualGpu`, `Cpu` or `Other`.
    pub device_type: String,
    /// Whether `Device::new_webgpu(0)` opens this adapter.
    pub chosen: bool,
    /// Optional features that the adapter has and this backend uses.
    pub features: Vec<String>,
    /// The limits that matter to tensors, by name.
    pub limits: Vec<(&'static str, u64)>,
}

/// The capabilities that kernels can use.
#[derive(Debug, Clone, Default)]
pub(super) struct Caps {
    pub(super) limits: wgpu::Limits,
    /// The subgroup size, if subgroups are supported and all have the same size.
    pub(super) subgroup: Option<u32>,
    /// 16x16x16 matrices of f16 with f32 sums, one per subgroup.
    pub(super) cooperative: bool,
    /// Whether attention has a fused kernel for them, in addition to their use in its products.
    pub(super) cooperative_attention: bool,
    /// Products of four 8-bit integers in one instruction, for products of few rows with quantised blocks.
    pub(super) int8: bool,
    /// 64-bit floats, and 64-bit integers to access their bits.
    pub(super) f64: bool,
    /// Timestamps at the boundaries of compute passes.
    pub(super) timestamps: bool,
}

/// An opened adapter.
pub(super) struct Opened {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) info: wgpu::AdapterInfo,
    pub(super) caps: Caps,
}

/// Lists every usable adapter, GPUs first and software last; empty in a browser, which cannot list adapters.
pub fn adapters() -> Vec<AdapterReport> {
    list(Asked::WebGpu)
        .iter()
        .enumerate()
        .map(|(ordinal, adapter)| report(ordinal, adapter))
        .collect()
}

fn report(ordinal: usize, adapter: &wgpu::Adapter) -> AdapterReport {
    let info = adapter.get_info();
    let limits = adapter.limits();
    let features = wanted_features() & adapter.features();
    AdapterReport {
        ordinal,
        name: info.name,
        driver: info.driver,
        driver_info: info.driver_info,
        backend: format!("{:?}", info.backend),
        device_type: format!("{:?}", info.device_type),
        chosen: ordinal == 0,
        features: features
            .iter_names()
            .map(|(name, _)| name.to_string())
            .collect(),
        limits: vec![
            ("max_buffer_size", limits.max_buffer_size),
            (
                "max_storage_buffer_binding_size",
                limits.max_storage_buffer_binding_size,
            ),
            (
                "max_storage_buffers_per_shader_stage",
                limits.max_storage_buffers_per_shader_stage.into(),
            ),
            (
                "max_compute_workgroup_storage_size",
                limits.max_compute_workgroup_storage_size.into(),
            ),
            (
                "max_compute_invocations_per_workgroup",
                limits.max_compute_invocations_per_workgroup.into(),
            ),
            (
                "max_compute_workgroups_per_dimension",
                limits.max_compute_workgroups_per_dimension.into(),
            ),
            ("subgroup_min_size", info.subgroup_min_size.into()),
            ("subgroup_max_size", info.subgroup_max_size.into()),
        ],
    }
}

/// The requested kind of device: selects the adapters, and the device's name in errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// `Device::WebGpu`, on any interface.
    WebGpu,
    /// `Device::Metal`.
    #[cfg(feature = "metal")]
    Metal,
}

impl Asked {
    /// The device's name in errors about ops.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::WebGpu => "webgpu",
            #[cfg(feature = "metal")]
            Self::Metal => "metal",
        }
    }

    /// The name of the interface.
    fn title(self) -> &'static str {
        match self {
            Self::WebGpu => "WebGPU",
            #[cfg(feature = "metal")]
            Self::Metal => "Metal",
        }
    }

    fn backends(self) -> wgpu::Backends {
        match self {
            #[cfg(feature = "metal")]
            Self::Metal if cfg!(target_vendor = "apple") => wgpu::Backends::METAL,
            // GL is excluded: on systems that also offer Vulkan it is the same hardware with fewer features.
            _ => wgpu::Backends::PRIMARY,
        }
    }
}

/// Whether Metal's adapters can be requested: on Apple's systems, and for tests if the environment enables substitutes.
#[cfg(feature = "metal")]
pub(crate) fn has_metal() -> bool {
    cfg!(target_vendor = "apple") || crate::watch::switch("CANDLE_METAL_EMULATED").unwrap_or(false)
}

fn instance(backends: wgpu::Backends) -> wgpu::Instance {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    descriptor.flags = wgpu::InstanceFlags::from_env_or_default();
    wgpu::Instance::new(descriptor)
}

#[cfg(not(target_arch = "wasm32"))]
fn list(asked: Asked) -> Vec<wgpu::Adapter> {
    let backends = asked.backends();
    let wanted = std::env::var("CANDLE_WEBGPU_ADAPTER").unwrap_or_default();
    let mut found: Vec<_> = pollster::block_on(instance(backends).enumerate_adapters(backends))
        .into_iter()
        .filter(|adapter| adapter.get_info().name.contains(&wanted))
        .collect();
    use wgpu::DeviceType;
    found.sort_by_key(|adapter| match adapter.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    });
    found
}

#[cfg(target_arch = "wasm32")]
fn list(_: Asked) -> Vec<wgpu::Adapter> {
    Vec::new()
}

fn browser_limits() -> bool {
    std::env::var("CANDLE_WEBGPU_LIMITS").is_ok_and(|value| value == "browser")
}

/// Whether WGSL has products of packed integers. Natively naga always supports them, and computes them from several instructions on
/// adapters without one; browsers report support.
fn packed_dot_products(asked: Asked) -> bool {
    let packed = wgpu::WgslLanguageFeatures::Packed4x8IntegerDotProduct;
    cfg!(not(target_arch = "wasm32"))
        || instance(asked.backends())
            .wgsl_language_features()
            .contains(packed)
}

/// Features that tensors of f64 need.
const F64: Features = Features::SHADER_F64.union(Features::SHADER_INT64);

/// Features that can be disabled, by their names in `CANDLE_WEBGPU_FEATURES`.
const FEATURES: [(&str, LeftOut); 6] = [
    ("f16", LeftOut::of(Features::SHADER_F16)),
    (
        "subgroups",
        LeftOut::of(Features::SUBGROUP.union(Features::EXPERIMENTAL_COOPERATIVE_MATRIX)),
    ),
    (
        "coop",
        LeftOut::of(Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
    ),
    (
        "coop-attention",
        LeftOut {
            cooperative_attention: true,
            ..LeftOut::of(Features::empty())
        },
    ),
    (
        "int8",
        LeftOut {
            int8: true,
            ..LeftOut::of(Features::empty())
        },
    ),
    ("timestamps", LeftOut::of(Features::TIMESTAMP_QUERY)),
];

/// The disabled features of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LeftOut {
    features: Features,
    cooperative_attention: bool,
    int8: bool,
}

impl LeftOut {
    const fn of(features: Features) -> Self {
        Self {
            features,
            cooperative_attention: false,
            int8: false,
        }
    }

    /// Parses a list of disabled features such as `-subgroups,-coop`.
    fn parse(list: &str) -> Result<Self> {
        let mut found = Self::of(Features::empty());
        for entry in list.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            let named = entry
                .strip_prefix('-')
                .and_then(|name| FEATURES.iter().find(|(known, _)| *known == name));
            let Some((_, named)) = named else {
                let known: Vec<_> = FEATURES.iter().map(|(n, _)| format!("-{n}")).collect();
                return Err(Error::WebGpu(format!(
                    "features to disable: unknown feature {entry:?}; expected {}",
                    known.join(", ")
                ))
                .bt());
            };
            found = found.and(*named);
        }
        Ok(found)
    }

    fn and(self, other: Self) -> Self {
        Self {
            features: self.features | other.features,
            cooperative_attention: self.cooperative_attention || other.cooperative_attention,
            int8: self.int8 || other.int8,
        }
    }
}

/// The optional features that some kernel or tool uses.
fn wanted_features() -> Features {
    if browser_limits() {
        return Features::empty();
    }
    let mut wanted = Features::SHADER_F16 | Features::TIMESTAMP_QUERY;
    if cfg!(not(target_arch = "wasm32")) {
        wanted |= Features::SUBGROUP
            | Features::EXPERIMENTAL_COOPERATIVE_MATRIX
            | Features::PIPELINE_CACHE
            | F64;
    }
    wanted
}

/// Bytes in a binding and in a buffer with `CANDLE_WEBGPU_LIMITS=tiny`: so few that ordinary tests exceed them.
const TINY: (u64, u64) = (16 << 10, 40 << 10);

/// The adapter's own limits, or in browser mode the smaller of WebGPU's defaults and the adapter's.
fn wanted_limits(adapter: &wgpu::Adapter, options: &Options) -> wgpu::Limits {
    let mut limits = if browser_limits() {
        wgpu::Limits::default().or_worse_values_from(&adapter.limits())
    } else {
        adapter.limits()
    };
    let tiny = std::env::var("CANDLE_WEBGPU_LIMITS").is_ok_and(|value| value == "tiny");
    let (binding, buffer) = if tiny { TINY } else { (u64::MAX, u64::MAX) };
    // Windows start at multiples of it, so they have to end at multiples as well.
    let least = |limit: u64, wanted: u64, option: Option<u64>| {
        let limit = limit.min(wanted).min(option.unwrap_or(u64::MAX));
        (limit & !(WINDOW_ALIGN - 1)).max(2 * WINDOW_ALIGN)
    };
    limits.max_storage_buffer_binding_size = least(
        limits.max_storage_buffer_binding_size,
        binding,
        options.max_binding,
    );
    // The queue's own buffers have about 16 KiB.
    limits.max_buffer_size =
        least(limits.max_buffer_size, buffer, options.max_buffer).max(LEAST_BUFFER);
    limits
}

/// Describes the first limit that is below what kernels require.
fn too_small(limits: &wgpu::Limits) -> Option<String> {
    let needed = [
        (
            "max_storage_buffers_per_shader_stage",
            limits.max_storage_buffers_per_shader_stage,
            8,
        ),
        (
            "max_compute_invocations_per_workgroup",
            limits.max_compute_invocations_per_workgroup,
            256,
        ),
        (
            "max_compute_workgroup_storage_size",
            limits.max_compute_workgroup_storage_size,
            16 << 10,
        ),
    ];
    needed
        .iter()
        .find(|(_, found, least)| found < least)
        .map(|(name, found, least)| format!("{name} is {found}, below the minimum of {least}"))
}

/// Minimum buffer size for the queue itself.
const LEAST_BUFFER: u64 = 32 << 10;

async fn choose(asked: Asked, ordinal: usize) -> Result<wgpu::Adapter> {
    if cfg!(target_arch = "wasm32") {
        return instance(asked.backends())
            .request_adapter(&wgpu::RequestAdapterOptions {
                power_preference: wgpu::PowerPreference::HighPerformance,
                ..Default::default()
            })
            .await
            .map_err(|err| Error::WebGpu(format!("the browser offers no WebGPU adapter: {err}")));
    }
    let mut found = list(asked);
    if ordinal < found.len() {
        return Ok(found.swap_remove(ordinal));
    }
    let names: Vec<_> = found.iter().map(|a| a.get_info().name).collect();
    let filter = match std::env::var("CANDLE_WEBGPU_ADAPTER") {
        Ok(text) => format!(" with {text:?} in their name (CANDLE_WEBGPU_ADAPTER)"),
        Err(_) => String::new(),
    };
    let title = asked.title();
    Err(Error::WebGpu(
        if names.is_empty() && asked == Asked::WebGpu {
            format!(
            "no WebGPU adapter{filter} on Vulkan, Metal or DX12; install the GPU's driver (on Debian, mesa-vulkan-drivers has a \
             software adapter)"
        )
        } else if names.is_empty() {
            format!("no {title} adapter{filter} on this system; use Device::Cpu")
        } else {
            format!(
                "no {title} adapter {ordinal}: found {}{filter}: {}",
                names.len(),
                names.join(", ")
            )
        },
    ))
}

/// Opens the adapter with this ordinal, with all of its features that kernels use except those disabled by `options` and
/// `CANDLE_WEBGPU_FEATURES`.
pub(super) async fn open(asked: Asked, ordinal: usize, options: &Options) -> Result<Opened> {
    let masked = std::env::var("CANDLE_WEBGPU_FEATURES").unwrap_or_default();
    let without = LeftOut::parse(&options.without)?.and(LeftOut::parse(&masked)?);
    let adapter = choose(asked, ordinal).await?;
    let info = adapter.get_info();
    let features = (wanted_features() & adapter.features()).difference(without.features);
    let limits = wanted_limits(&adapter, options);
    if let Some(short) = too_small(&limits) {
        return Err(Error::WebGpu(format!(
            "adapter {ordinal} ({}): its limits are too small: {short}; kernels need WebGPU's default limits, which \
             compatibility mode does not have",
            info.name
        )));
    }
    let (device, queue) = adapter
        .request_device(&wgpu::DeviceDescriptor {
            label: Some("candle"),
            required_features: features,
            required_limits: limits.clone(),
            memory_hints: wgpu::MemoryHints::Performance,
            // SAFETY: the only requested experimental feature is cooperative matrices, used as naga documents them.
            experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
            ..Default::default()
        })
        .await
        .map_err(|err| {
            Error::WebGpu(format!(
                "adapter {ordinal} ({}) cannot open a device: {err}",
                info.name
            ))
        })?;
    let subgroup = (features.contains(Features::SUBGROUP)
        && info.subgroup_min_size == info.subgroup_max_size
        && info.subgroup_min_size.is_power_of_two()
        && info.subgroup_min_size >= 4)
        .then_some(info.subgroup_min_size);
    let cooperative = features
        .contains(Features::EXPERIMENTAL_COOPERATIVE_MATRIX | Features::SHADER_F16)
        && subgroup == Some(32)
        && adapter.cooperative_matrix_properties().iter().any(|p| {
            (p.m_size, p.n_size, p.k_size) == (16, 16, 16)
                && p.ab_type == wgpu::CooperativeScalarType::F16
                && p.cr_type == wgpu::CooperativeScalarType::F32
        });
    Ok(Opened {
        caps: Caps {
            limits,
            subgroup,
            cooperative,
            cooperative_attention: cooperative && !without.cooperative_attention,
            int8: packed_dot_products(asked) && !without.int8,
            f64: features.contains(F64),
            timestamps: features.contains(Features::TIMESTAMP_QUERY),
        },
        device,
        queue,
        info,
    })
}

#[cfg(test)]
mod tests {
    use super::{too_small, Features, LeftOut};

    #[test]
    fn limits_below_the_standards_are_named() {
        let standard = wgpu::Limits::default();
        assert_eq!(too_small(&standard), None);
        let four = wgpu::Limits {
            max_storage_buffers_per_shader_stage: 4,
            ..standard
        };
        let line = too_small(&four).unwrap();
        assert!(
            line.contains("max_storage_buffers_per_shader_stage is 4"),
            "{line}"
        );
    }

    #[test]
    fn features_are_left_out_by_name() {
        let left_out = |list| LeftOut::parse(list).unwrap().features;
        assert_eq!(left_out(""), Features::empty());
        assert_eq!(left_out(" -f16 ,"), Features::SHADER_F16);
        // Cooperative matrices require subgroups.
        let both = Features::SUBGROUP | Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        assert_eq!(left_out("-subgroups"), both);
        assert_eq!(
            left_out("-f16,-coop"),
            Features::SHADER_F16 | Features::EXPERIMENTAL_COOPERATIVE_MATRIX
        );
        let attention = LeftOut::parse("-coop-attention,-f16").unwrap();
        assert!(attention.cooperative_attention);
        assert_eq!(attention.features, Features::SHADER_F16);
        assert!(!LeftOut::parse("-coop").unwrap().cooperative_attention);
        let int8 = LeftOut::parse("-int8,-f16").unwrap();
        assert!(int8.int8 && !attention.int8);
        assert_eq!(int8.features, Features::SHADER_F16);
        for wrong in ["f16", "-f17", "-subgroups -coop"] {
            let line = LeftOut::parse(wrong).unwrap_err().to_string();
            assert!(
                line.contains(wrong) && line.contains("-timestamps"),
                "{line}"
            );
        }
    }
}
