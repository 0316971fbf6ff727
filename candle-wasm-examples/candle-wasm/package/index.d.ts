/// <reference lib="esnext.disposable" />
export * from "./simd/candle.js";

export interface ModuleOptions {
    /** One of the builds; if not given, the one that this browser can run. */
    build?: "simd" | "plain";
    /** Where `candle_bg.wasm` of that build is, or what is in it; if not given, beside this script. */
    wasm?: string | URL | Response | BufferSource | WebAssembly.Module;
    /** Hears how many bytes of the module are there, and of how many if the server says it. */
    onProgress?(done: number, size: number | undefined): void;
}

/** Loads the WebAssembly that this browser can run, and gives its exports. */
export function load(options?: ModuleOptions): Promise<typeof import("./simd/candle.js")>;
/** Loads one of the builds. */
export function loadBuild(build: "simd" | "plain"): Promise<typeof import("./simd/candle.js")>;
/** Whether this browser runs the build with vector instructions. */
export function supportsSimd(): boolean;
