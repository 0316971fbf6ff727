//! The interface document's example for guests in Rust, as a component: `snippet.rs` is the text that is printed there, unchanged.
//!
//! The text expects the WIT files in a folder that this repository does not have, and it keeps what it reads to itself. So the module
//! `wit_bindgen` here has the real macro with the right folder, and `buffer_read` is one that remembers.

#![allow(unsafe_code)]
// The example takes labels and makes a list of indices, and uses neither.
#![allow(unused_variables)]

/// The example's `wit_bindgen`.
mod wit_bindgen {
    macro_rules! generate {
        ({ world: "ml-compute", path: "../wasi-gpu/wit", }) => {
            mod host {
                bindgen::generate!({
                    world: "ml-compute",
                    path: "../../wit/0.1",
                    runtime_path: "bindgen::rt",
                });
            }
            mod wasi {
                pub mod gpu {
                    pub mod compute {
                        pub use crate::host::wasi::gpu::compute::*;
                        pub(crate) use crate::memory::buffer_read;
                    }
                    pub use crate::host::wasi::gpu::ml_kernels;
                }
            }
        };
    }
    pub(crate) use generate;
}

include!("snippet.rs");

/// The example's `buffer_read`.
mod memory {
    use std::cell::RefCell;

    use crate::host::wasi::gpu::compute::{self, BufferId, GpuError};

    thread_local! {
        static LAST: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    /// The host's, and keeps what it gave.
    pub(crate) fn buffer_read(
        buffer: BufferId,
        offset: u64,
        size: u32,
    ) -> Result<Vec<u8>, GpuError> {
        let bytes = compute::buffer_read(buffer, offset, size)?;
        LAST.set(bytes.clone());
        Ok(bytes)
    }

    /// The bytes of the last read.
    pub(crate) fn last() -> Vec<u8> {
        LAST.take()
    }
}

mod world {
    bindgen::generate!({
        world: "example",
        path: "../wit/example.wit",
        runtime_path: "bindgen::rt",
        pub_export_macro: true,
    });
}

use world::Guest;

struct Component;

world::export!(Component with_types_in world);

impl Guest for Component {
    fn run() -> Result<Vec<u32>, String> {
        let rows = 10_000;
        train_tree(&vec![1.0; rows], &vec![0.0; rows]);
        let bytes = memory::last();
        let words = bytes.chunks_exact(4);
        Ok(words
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect())
    }
}
