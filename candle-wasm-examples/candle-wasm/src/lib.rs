//! Language models in a browser: [`WasmModel`], the JavaScript interface.
//!
//! ```js
//! import { load } from "candle-wasm";
//! const { WasmModel } = await load();
//! const model = new WasmModel(new Uint8Array(await file.arrayBuffer()));
//! await model.init_gpu().catch(reason => console.log(`on the CPU: ${reason}`));
//! await model.generate_stream("Once upon a time", { max_tokens: 64 }, piece => console.log(piece));
//! const answer = await model.chat([{ role: "user", content: "What is a borrow checker?" }]);
//! ```

#![deny(missing_docs)]

mod chat;
mod constraint;
mod model;
mod options;
mod report;

pub use model::WasmModel;

use wasm_bindgen::prelude::*;

/// Whether this build has the CPU's vector instructions.
#[wasm_bindgen]
pub fn has_simd() -> bool {
    cfg!(target_feature = "simd128")
}

/// Size of the module's own memory, in bytes; it never shrinks.
#[wasm_bindgen]
pub fn heap_bytes() -> f64 {
    #[cfg(target_arch = "wasm32")]
    return core::arch::wasm32::memory_size(0) as f64 * 65536.0;
    #[cfg(not(target_arch = "wasm32"))]
    return 0.0;
}

/// Types that the generated ones cannot express.
#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
export interface GenerateOptions {
    /** The most tokens to make; 128 if not given, and 1,024 of `chat`. */
    max_tokens?: number;
    /** 0 takes the likeliest token each time; above, tokens are drawn. If not given: 0, or with `chat` the recommended value. */
    temperature?: number;
    /** Draw only from this many of the most likely tokens. */
    top_k?: number;
    /** Draw from the likeliest tokens that together have this probability. */
    top_p?: number;
    /** Draw from tokens that have at least this share of the likeliest one's probability. */
    min_p?: number;
    /** Above 1, recent tokens become less likely. */
    repeat_penalty?: number;
    /** How many tokens are recent; 64 if not given. */
    repeat_last_n?: number;
    /** The seed of the draws, a whole number. */
    seed?: number;
    /** The text ends before the first of these. */
    stop?: string | string[];
    /** How many tokens are guessed from repetitions in the text and checked at once; the text stays the same. 0, as when not given, to 64. */
    prompt_lookup?: number;
    /** Ends the generation early, with the text so far. */
    signal?: AbortSignal;
}

export interface ChatOptions extends GenerateOptions {
    /** Whether a model that thinks does so before it answers; if not given, what its template does. */
    thinking?: boolean;
    /** The most tokens of its thoughts. */
    thinking_budget?: number;
    /** Says which tokens the answer may have; thoughts are free. */
    constraint?: Constraint;
}

/** A constraint on an answer. An error that it throws ends the answer. */
export interface Constraint {
    /** The tokens that may follow, a bit each: bit `id % 32` of word `id / 32`. */
    allowed(): Uint32Array;
    /** Takes the next token. */
    push(token: number): void;
}

/** A model's tokens, as `Vocabulary` of the module `grammar` takes them. */
export interface TokenBytes {
    /** The bytes of all tokens, in the order of their ids; `special` precedes the text of a special token. */
    bytes: Uint8Array;
    /** Number of bytes of each token. */
    lengths: Uint32Array;
    /** The tokens that end an answer. */
    stops: Uint32Array;
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

export interface ChatMessage {
    role: "system" | "user" | "assistant";
    content: string;
}

export interface ChatAnswer {
    /** The answer, without thoughts. */
    text: string;
    /** What the model thought before it; undefined for no thoughts. */
    thoughts?: string;
    stop_reason: "end_of_text" | "stop_sequence" | "length" | "cancelled";
    /**
     * In tokens. `reused_tokens` of the prompt were cached by the previous call; `thought_tokens` of the completion were thoughts and their
     * marks.
     */
    usage: { prompt_tokens: number; completion_tokens: number; total_tokens: number; reused_tokens: number; thought_tokens: number };
    /** Seconds until the first token. */
    prompt_seconds: number;
    /** Tokens a second after the first; 0 if there were none. */
    tokens_per_second: number;
}

export interface ModelInfo {
    name: string;
    /** Size of the weights. */
    bytes: number;
    /** The most tokens of a prompt and its answer together. */
    context_length: number;
    /** Whether `chat` can be used. */
    chat: boolean;
    /** Why not. */
    chat_problem?: string;
    /** Whether its chat template marks thoughts. */
    thinks: boolean;
    /** Recommended settings; undefined where the model's files have none. */
    sampling: Pick<GenerateOptions, "temperature" | "top_k" | "top_p" | "min_p" | "repeat_penalty">;
}
"#;
