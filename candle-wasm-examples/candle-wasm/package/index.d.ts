export * from "./simd/candle.js";
/** Loads the WebAssembly that this browser can run, and gives its exports. */
export function load(): Promise<typeof import("./simd/candle.js")>;
/** Loads one of the builds. */
export function loadBuild(build: "simd" | "plain"): Promise<typeof import("./simd/candle.js")>;
