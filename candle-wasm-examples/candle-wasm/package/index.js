// A module with one vector instruction: `i8x16.splat` of 0, dropped.
const VECTORS = new Uint8Array([
    0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 9, 1, 7, 0, 65, 0, 253, 15, 26, 11,
]);

/** Loads the WebAssembly that this browser can run, and gives its exports. */
export async function load() {
    const build = WebAssembly.validate(VECTORS) ? "simd" : "plain";
    return loadBuild(build);
}

/** Loads one of the builds: "simd" or "plain". */
export async function loadBuild(build) {
    const module = await import(`./${build}/candle.js`);
    await module.default({ module_or_path: new URL(`./${build}/candle_bg.wasm`, import.meta.url) });
    return module;
}
