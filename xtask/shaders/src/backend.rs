//! What wgpu 30's backends give shaders, and the options with which they have naga write them.

use naga::back::{hlsl, msl};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::Capabilities;
use naga::{AddressSpace, Module, ResourceBinding, StorageAccess};

/// naga's name of a capability, and wgpu's name of the feature that enables it.
pub const FEATURES: [(Capabilities, &str); 7] = [
    (Capabilities::FLOAT64, "SHADER_F64"),
    (Capabilities::SHADER_FLOAT16, "SHADER_F16"),
    (Capabilities::SHADER_INT64, "SHADER_INT64"),
    (Capabilities::SUBGROUP, "SUBGROUP"),
    (Capabilities::SUBGROUP_BARRIER, "SUBGROUP_BARRIER"),
    (
        Capabilities::COOPERATIVE_MATRIX,
        "EXPERIMENTAL_COOPERATIVE_MATRIX",
    ),
    (Capabilities::SHADER_FLOAT32_ATOMIC, "SHADER_FLOAT32_ATOMIC"),
];

/// `pack2x16float` and its like, which every adapter has.
const ALWAYS: Capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;

/// The language that a backend hands on.
pub enum Language {
    /// By version.
    Msl(u8, u8),
    Hlsl(hlsl::ShaderModel),
}

/// One of wgpu's backends on one kind of system.
pub struct Backend {
    pub name: &'static str,
    pub language: Language,
    /// The capabilities of the backend's best adapter. A shader that needs any other is never created there: its feature is not offered.
    has: &'static [Capabilities],
}

/// macOS 12 and 26; DX12 where dxcompiler.dll is found, and where it is not.
pub const BACKENDS: [Backend; 4] = [
    Backend {
        name: "Metal 2.4",
        language: Language::Msl(2, 4),
        has: METAL,
    },
    Backend {
        name: "Metal 4.0",
        language: Language::Msl(4, 0),
        has: METAL,
    },
    Backend {
        name: "DX12 with DXC",
        language: Language::Hlsl(hlsl::ShaderModel::V6_8),
        has: &[
            Capabilities::SHADER_FLOAT16,
            Capabilities::SHADER_INT64,
            Capabilities::SUBGROUP,
        ],
    },
    Backend {
        name: "DX12 with FXC",
        language: Language::Hlsl(hlsl::ShaderModel::V5_1),
        has: &[],
    },
];

const METAL: &[Capabilities] = &[
    Capabilities::SHADER_FLOAT16,
    Capabilities::SHADER_INT64,
    Capabilities::SUBGROUP,
    Capabilities::SUBGROUP_BARRIER,
    Capabilities::COOPERATIVE_MATRIX,
    Capabilities::SHADER_FLOAT32_ATOMIC,
];

impl Backend {
    pub fn capabilities(&self) -> Capabilities {
        self.has.iter().fold(ALWAYS, |all, one| all | *one)
    }
}

/// Whether a storage buffer is bound as read only, which decides its kind of slot.
fn read_only(space: AddressSpace) -> bool {
    matches!(space, AddressSpace::Storage { access } if !access.contains(StorageAccess::STORE))
}

/// The buffers of the only bind group, in the order of its layout.
fn bindings(module: &Module) -> Vec<(ResourceBinding, AddressSpace)> {
    let buffers = module.global_variables.iter();
    let mut buffers: Vec<_> = buffers
        .filter_map(|(_, variable)| Some((variable.binding?, variable.space)))
        .collect();
    buffers.sort_by_key(|(binding, _)| (binding.group, binding.binding));
    buffers
}

/// As `wgpu_hal::metal::Device::load_shader` has them; `checks` as in `wgpu::ShaderRuntimeChecks`, `zeros` for the workgroups' memory.
pub fn msl_options(
    module: &Module,
    entry_point: &str,
    lang_version: (u8, u8),
    checks: bool,
    zeros: bool,
) -> msl::Options {
    let mut resources = msl::EntryPointResources::default();
    let mut slot = 0;
    for (binding, space) in bindings(module) {
        let target = msl::BindTarget {
            buffer: Some(slot),
            mutable: matches!(space, AddressSpace::Storage { .. }) && !read_only(space),
            ..Default::default()
        };
        resources.resources.insert(binding, target);
        slot += 1;
    }
    resources.sizes_buffer = Some(slot);
    let policy = if checks {
        BoundsCheckPolicy::Restrict
    } else {
        BoundsCheckPolicy::Unchecked
    };
    msl::Options {
        lang_version,
        per_entry_point_map: [(entry_point.to_string(), resources)].into(),
        inline_samplers: Vec::new(),
        spirv_cross_compatibility: false,
        fake_missing_bindings: false,
        bounds_check_policies: BoundsCheckPolicies {
            index: policy,
            buffer: policy,
            image_load: policy,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        zero_initialize_workgroup_memory: zeros,
        force_loop_bounding: checks,
        task_dispatch_limits: None,
        mesh_shader_primitive_indices_clamp: checks,
        emit_int_div_checks: checks,
        ray_query_initialization_tracking: checks,
    }
}

/// As `wgpu_hal::dx12::Device::create_pipeline_layout` has them.
pub fn hlsl_options(
    module: &Module,
    shader_model: hlsl::ShaderModel,
    checks: bool,
    zeros: bool,
) -> hlsl::Options {
    let mut options = hlsl::Options {
        shader_model,
        fake_missing_bindings: false,
        zero_initialize_workgroup_memory: zeros,
        restrict_indexing: checks,
        force_loop_bounding: checks,
        ray_query_initialization_tracking: checks,
        mesh_shader_primitive_indices_clamp: checks,
        ..Default::default()
    };
    let (mut constants, mut read, mut written) = (0, 0, 0);
    for (binding, space) in bindings(module) {
        // candle-core's uniforms have dynamic offsets.
        let uniform = matches!(space, AddressSpace::Uniform);
        let register = match (uniform, read_only(space)) {
            (true, _) => &mut constants,
            (_, true) => &mut read,
            (_, false) => &mut written,
        };
        let target = hlsl::BindTarget {
            register: *register,
            restrict_indexing: uniform,
            ..Default::default()
        };
        *register += 1;
        options.binding_map.insert(binding, target);
    }
    // After the uniforms: the number of workgroups, which HLSL does not know.
    options.special_constants_binding = Some(hlsl::BindTarget {
        register: constants,
        ..Default::default()
    });
    options
}
