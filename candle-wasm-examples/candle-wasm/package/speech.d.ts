/// <reference lib="esnext.disposable" />
import type { ModuleOptions } from "./index.js";
export * from "./speech/simd/candle.js";

/** What a Whisper hears: samples of one channel at this rate. */
export const SAMPLE_RATE: 16000;
/** Loads the WebAssembly that this browser can run, and gives its exports. */
export function loadSpeech(options?: ModuleOptions): Promise<typeof import("./speech/simd/candle.js")>;
/** The samples of a sound file, or of a recording, as `transcribe` takes them. Only in a page: workers cannot decode sound. */
export function samplesOf(blob: Blob): Promise<Float32Array>;
