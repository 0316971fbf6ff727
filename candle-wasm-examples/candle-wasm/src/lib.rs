//! Language models in a browser: [`WasmModel`], the JavaScript interface, and [`BrowserDvm`], which serves a model over Nostr.
//!
//! ```js
//! import init, { WasmModel } from "candle-wasm";
//! await init();
//! const model = new WasmModel(new Uint8Array(await file.arrayBuffer()));
//! await model.init_gpu().catch(reason => console.log(`on the CPU: ${reason}`));
//! await model.generate_stream("Once upon a time", { max_tokens: 64 }, piece => console.log(piece));
//! ```

#![deny(missing_docs)]

mod dvm;
mod model;
mod options;

pub use dvm::BrowserDvm;
pub use model::WasmModel;

use wasm_bindgen::prelude::*;

/// Whether this build has the CPU's vector instructions.
#[wasm_bindgen]
pub fn has_simd() -> bool {
    cfg!(target_feature = "simd128")
}

/// How large the module's own memory is, in bytes; it never becomes smaller.
#[wasm_bindgen]
pub fn heap_bytes() -> f64 {
    #[cfg(target_arch = "wasm32")]
    return core::arch::wasm32::memory_size(0) as f64 * 65536.0;
    #[cfg(not(target_arch = "wasm32"))]
    return 0.0;
}

/// What the generated types cannot say.
#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
export interface GenerateOptions {
    /** The most tokens to make; 128 if not given. */
    max_tokens?: number;
    /** 0, as when not given, takes the likeliest token each time; above, tokens are drawn. */
    temperature?: number;
    /** Draw only from this many of the most likely tokens. */
    top_k?: number;
    /** Draw from the likeliest tokens that together have this probability. */
    top_p?: number;
    /** Above 1, recent tokens become less likely. */
    repeat_penalty?: number;
    /** The seed of the draws, a whole number. */
    seed?: number;
    /** Ends the generation early, with the text so far. */
    signal?: AbortSignal;
}

export interface Completion {
    text: string;
    /** How many tokens the prompt had. */
    prompt_tokens: number;
    /** How many tokens were made. */
    tokens: number;
    stop_reason: "end_of_text" | "stop_sequence" | "length" | "cancelled";
    /** Seconds until the first token. */
    prompt_seconds: number;
    /** Tokens a second after the first; 0 if there were none. */
    tokens_per_second: number;
}

export interface LoadOptions {
    /** Element type of activations and dense weights; if not given, what the weights are stored as on a GPU, and f32 on the CPU. */
    dtype?: "f32" | "f16" | "bf16";
}
"#;
