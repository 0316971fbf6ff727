// A language model that serves over Nostr: a separate module, so that the one of language models stays small.
import { loadFrom } from "./wasm.js";

/** The builds, in the words that bundlers follow to their files. */
const BUILDS = {
    simd: async () => [await import("./dvm/simd/candle.js"), new URL("./dvm/simd/candle_bg.wasm", import.meta.url)],
    threads: async () => [
        await import("./dvm/threads/candle.js"),
        new URL("./dvm/threads/candle_bg.wasm", import.meta.url),
        () => new Worker(new URL("./dvm-thread.js", import.meta.url), { type: "module" }),
    ],
    plain: async () => [await import("./dvm/plain/candle.js"), new URL("./dvm/plain/candle_bg.wasm", import.meta.url)],
};

/** Loads the WebAssembly that this browser can run, and gives its exports: those of the module of language models, and `BrowserDvm`. */
export const loadDvm = options => loadFrom(BUILDS, options);
