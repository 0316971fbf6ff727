//! The devices by name, and how each is opened.

use candle_core::Device;
#[cfg(feature = "cuda")]
use candle_core::DeviceLocation;
use serde::Serialize;

/// A kind of device that models can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// An NVIDIA GPU through CUDA.
    Cuda,
    /// An Apple GPU through Metal.
    Metal,
    /// Any GPU through WebGPU (natively Vulkan, Metal or DX12).
    WebGpu,
    /// The processor.
    Cpu,
}

impl DeviceKind {
    /// Every kind, best first: the order in which `--device auto` tries them, and that of
    /// [`Device::best_available`].
    pub const ALL: [Self; 4] = [Self::Cuda, Self::Metal, Self::WebGpu, Self::Cpu];

    /// The name, as `--device` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Metal => "metal",
            Self::WebGpu => "webgpu",
            Self::Cpu => "cpu",
        }
    }

    /// Opens the first device of this kind.
    ///
    /// # Errors
    /// The backend's reason, if it is not compiled in or finds no device.
    pub fn open(self) -> candle_core::Result<Device> {
        self.open_nth(0)
    }

    /// Opens the device of this kind with this number, from 0 on. There is one processor, whatever the number is.
    ///
    /// # Errors
    /// As [`DeviceKind::open`].
    pub fn open_nth(self, ordinal: usize) -> candle_core::Result<Device> {
        match self {
            Self::Cuda => Device::new_cuda(ordinal),
            Self::Metal => Device::new_metal(ordinal),
            Self::WebGpu => Device::new_webgpu(ordinal),
            Self::Cpu => Ok(Device::Cpu),
        }
    }
}

/// The device in words: its kind, and for a GPU its name.
pub fn describe(device: &Device) -> String {
    #[cfg(feature = "webgpu")]
    if let Some(gpu) = device.as_wgpu() {
        let kind = if device.is_metal() {
            DeviceKind::Metal
        } else {
            DeviceKind::WebGpu
        };
        return match gpu.name() {
            // As browsers have it.
            "" => kind.name().to_string(),
            name => format!("{}: {name}", kind.name()),
        };
    }
    #[cfg(feature = "cuda")]
    if let (Ok(card), DeviceLocation::Cuda { gpu_id }) =
        (device.as_cuda_device(), device.location())
    {
        return format!("cuda:{gpu_id}: {}", card.name());
    }
    match device {
        Device::Cpu => DeviceKind::Cpu.name().to_string(),
        other => format!("{:?}", other.location()),
    }
}

/// Several devices in words.
pub fn describe_all(devices: &[Device]) -> String {
    match devices {
        [one] => describe(one),
        devices => {
            let mut names: Vec<String> = devices.iter().map(describe).collect();
            names.dedup();
            format!("{} ranks on {}", devices.len(), names.join(", "))
        }
    }
}

/// The value of `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum DeviceChoice {
    /// Best available device: CUDA, then Metal, then WebGPU on a GPU, then the CPU
    #[default]
    Auto,
    /// CPU
    Cpu,
    /// NVIDIA GPU through CUDA: the first, or the one with the ordinal in `cuda:1`
    Cuda,
    /// The CUDA device with this ordinal, as the driver counts: `cuda:1`.
    #[cfg_attr(feature = "clap", value(skip))]
    CudaCard(usize),
    /// Apple GPU through Metal
    Metal,
    /// Any GPU through WebGPU
    #[cfg_attr(feature = "clap", value(name = "webgpu"))]
    WebGpu,
}

impl DeviceChoice {
    /// The requested kind, or `None` for the best one that is present.
    pub fn kind(self) -> Option<DeviceKind> {
        match self {
            Self::Auto => None,
            Self::Cpu => Some(DeviceKind::Cpu),
            Self::Cuda | Self::CudaCard(_) => Some(DeviceKind::Cuda),
            Self::Metal => Some(DeviceKind::Metal),
            Self::WebGpu => Some(DeviceKind::WebGpu),
        }
    }
}

impl DeviceChoice {
    /// The device's index among those of its kind.
    pub fn ordinal(self) -> usize {
        match self {
            Self::CudaCard(ordinal) => ordinal,
            _ => 0,
        }
    }

    /// Parses the values of `--device`: the names, and `cuda:N`.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda),
            "metal" => Some(Self::Metal),
            "webgpu" => Some(Self::WebGpu),
            name => {
                let ordinal = name.strip_prefix("cuda:")?;
                ordinal.parse().ok().map(Self::CudaCard)
            }
        }
    }
}

/// Reads [`DeviceChoice`] from the command line, which clap would take by its names alone.
#[cfg(feature = "clap")]
#[derive(Clone)]
pub struct DeviceParser;

#[cfg(feature = "clap")]
impl clap::builder::TypedValueParser for DeviceParser {
    type Value = DeviceChoice;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<DeviceChoice, clap::Error> {
        if let Some(choice) = value.to_str().and_then(DeviceChoice::parse) {
            return Ok(choice);
        }
        clap::builder::EnumValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(
        &self,
    ) -> Option<Box<dyn Iterator<Item = clap::builder::PossibleValue> + '_>> {
        use clap::ValueEnum;
        let values = DeviceChoice::value_variants().iter();
        Some(Box::new(values.filter_map(ValueEnum::to_possible_value)))
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::CudaCard(ordinal) => write!(f, "cuda:{ordinal}"),
            named => f.write_str(named.kind().map_or("auto", DeviceKind::name)),
        }
    }
}

/// The element type that weights are held and computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum FloatType {
    /// 32-bit floats
    F32,
    /// 16-bit IEEE floats
    F16,
    /// 16-bit brain floats
    Bf16,
}

impl FloatType {
    /// The tensor library's name for it.
    pub fn dtype(self) -> candle_core::DType {
        match self {
            Self::F32 => candle_core::DType::F32,
            Self::F16 => candle_core::DType::F16,
            Self::Bf16 => candle_core::DType::BF16,
        }
    }
}
