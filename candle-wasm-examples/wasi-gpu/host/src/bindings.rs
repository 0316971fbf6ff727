//! The interface as Rust's types, made from the WIT files.

wasmtime::component::bindgen!({
    path: "../wit/0.1",
    world: "ml-compute",
    imports: {
        // They wait for the device.
        "wasi:gpu/compute.buffer-read": async | trappable,
        "wasi:gpu/compute.sync": async | trappable,
        // They may compute in the call, see `Gpu::kernel`.
        "wasi:gpu/ml-kernels": async | trappable,
    },
});

/// Spin's interface of language models.
#[cfg(feature = "llm")]
pub(crate) mod spin {
    wasmtime::component::bindgen!({
        path: "../wit/spin-2.0",
        world: "language",
        imports: { default: async | trappable },
    });
}
