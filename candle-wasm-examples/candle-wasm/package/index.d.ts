/// <reference lib="esnext.disposable" />
export * from "./simd/candle.js";

/** `simd` and `plain` run on WebGPU or one thread of the CPU; `threads` runs on the CPU alone. */
export type Build = "simd" | "threads" | "plain";

export interface ModuleOptions {
    /** One of the builds; if not given, the one that suits the browser and `device`. */
    build?: Build;
    /** What the model will run on: "auto", the GPU if there is one, or "cpu". */
    device?: "auto" | "cpu";
    /** Number of threads of the build `threads`; if not given, half of what the processor shows, at most 8. */
    threads?: number;
    /** Where `candle_bg.wasm` of that build is, or what is in it; if not given, beside this script. */
    wasm?: string | URL | Response | BufferSource | WebAssembly.Module;
    /** Hears how many bytes of the module are there, and of how many if the server says it. */
    onProgress?(done: number, size: number | undefined): void;
}

/** Loads the WebAssembly that this browser can run, and gives its exports. */
export function load(options?: ModuleOptions): Promise<typeof import("./simd/candle.js")>;
/** Loads one of the builds. */
export function loadBuild(build: Build): Promise<typeof import("./simd/candle.js")>;
/** Why the CPU's ops run on one thread here, or null if they can have `threads`. */
export function whyOneThread(threads?: number): string | null;
/** Whether this browser runs the build with vector instructions. */
export function supportsSimd(): boolean;
