import { whyOneThread } from "./threads.js";
import { loadFrom, supportsSimd } from "./wasm.js";

export { supportsSimd, whyOneThread };

/** The builds, in the words that bundlers follow to their files. */
const BUILDS = {
    simd: async () => [await import("./simd/candle.js"), new URL("./simd/candle_bg.wasm", import.meta.url)],
    threads: async () => [
        await import("./threads/candle.js"),
        new URL("./threads/candle_bg.wasm", import.meta.url),
        () => new Worker(new URL("./thread.js", import.meta.url), { type: "module" }),
    ],
    plain: async () => [await import("./plain/candle.js"), new URL("./plain/candle_bg.wasm", import.meta.url)],
};

/** Loads the WebAssembly that this browser can run, and gives its exports. */
export const load = options => loadFrom(BUILDS, options);

/** Loads one of the builds: "simd", "threads" or "plain". */
export const loadBuild = build => load({ build });
