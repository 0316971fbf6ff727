/// <reference lib="esnext.disposable" />
import type { ModuleOptions } from "./index.js";
export * from "./speech/simd/candle.js";

/** What a Whisper hears: samples of one channel at this rate. */
export const SAMPLE_RATE: 16000;
/** Loads the WebAssembly that this browser can run, and gives its exports. */
export function loadSpeech(options?: ModuleOptions): Promise<typeof import("./speech/simd/candle.js")>;
/** Where `vadBytes` gets Silero VAD: silero_vad_16k.safetensors (1.2 MB, MIT) of its repository, on cdn.jsdelivr.net. */
export const VAD_ADDRESS: string;
/** The bytes of Silero VAD, as `WasmVad.open` takes them: of an address, `VAD_ADDRESS` by default, a file, or bytes that are there already. */
export function vadBytes(source?: string | URL | Blob | Uint8Array): Promise<Uint8Array>;
/** The samples of a sound file, or of a recording, as `transcribe` takes them. Only in a page: workers cannot decode sound. */
export function samplesOf(blob: Blob): Promise<Float32Array>;
