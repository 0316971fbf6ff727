// A module with one vector instruction: `i8x16.splat` of 0, dropped.
const VECTORS = new Uint8Array([
    0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 9, 1, 7, 0, 65, 0, 253, 15, 26, 11,
]);

/** Loads the WebAssembly that this browser can run, and gives its exports. `folder` has the builds, if it is another one than this. */
export async function load(folder) {
    return loadBuild(WebAssembly.validate(VECTORS) ? "simd" : "plain", folder);
}

/** Loads one of the builds: "simd" or "plain". */
export async function loadBuild(build, folder = new URL("./", import.meta.url)) {
    const module = await import(new URL(`${build}/candle.js`, folder));
    await module.default({ module_or_path: new URL(`${build}/candle_bg.wasm`, folder) });
    return module;
}
