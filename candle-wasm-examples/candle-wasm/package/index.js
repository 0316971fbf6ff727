import { fetchWasm, supportsSimd } from "./wasm.js";

export { supportsSimd };

/** The builds, in the words that bundlers follow to their files. */
const BUILDS = {
    simd: async () => [await import("./simd/candle.js"), new URL("./simd/candle_bg.wasm", import.meta.url)],
    plain: async () => [await import("./plain/candle.js"), new URL("./plain/candle_bg.wasm", import.meta.url)],
};

/** Loads the WebAssembly that this browser can run, and gives its exports. */
export async function load({ build = supportsSimd() ? "simd" : "plain", wasm, onProgress } = {}) {
    if (!Object.hasOwn(BUILDS, build)) throw new Error(`build: found ${build}, expected simd or plain`);
    const [module, address] = await BUILDS[build]();
    await module.default({ module_or_path: await fetchWasm(wasm ?? address, onProgress) });
    return module;
}

/** Loads one of the builds: "simd" or "plain". */
export const loadBuild = build => load({ build });
