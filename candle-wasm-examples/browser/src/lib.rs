//! Browser support for all modules: the GPU, files and options from JavaScript, and panics in the console.

#![deny(missing_docs)]

pub mod files;
pub mod gpu;
pub mod options;
pub mod threads;

use wasm_bindgen::prelude::*;

/// Puts a panic's message into the console: without it there is only `unreachable`.
#[wasm_bindgen(start)]
pub fn start() {
    console_error_panic_hook::set_once();
}
