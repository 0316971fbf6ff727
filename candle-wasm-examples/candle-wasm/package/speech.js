// Speech to text: a separate module, so that the one of language models stays small.
import { loadFrom } from "./wasm.js";

/** The builds, in the words that bundlers follow to their files. */
const BUILDS = {
    simd: async () => [await import("./speech/simd/candle.js"), new URL("./speech/simd/candle_bg.wasm", import.meta.url)],
    threads: async () => [
        await import("./speech/threads/candle.js"),
        new URL("./speech/threads/candle_bg.wasm", import.meta.url),
        () => new Worker(new URL("./speech-thread.js", import.meta.url), { type: "module" }),
    ],
    plain: async () => [await import("./speech/plain/candle.js"), new URL("./speech/plain/candle_bg.wasm", import.meta.url)],
};

/** What a Whisper hears: samples of one channel at this rate. */
export const SAMPLE_RATE = 16_000;

/** Loads the WebAssembly that this browser can run, and gives its exports. */
export const loadSpeech = options => loadFrom(BUILDS, options);

/** Where `vadBytes` gets Silero VAD: silero_vad_16k.safetensors (MIT) at a version of its repository. */
export const VAD_ADDRESS = "https://cdn.jsdelivr.net/gh/snakers4/silero-vad@v6.2.1/src/silero_vad/data/silero_vad_16k.safetensors";
/** The same file is in the Python package. */
const VAD_HASH = "sha256-xZJxwoSunIM115XWDgv9txqqzuxXjZvZ/8G4FTwxnqE=";

/** The bytes of Silero VAD, as `WasmVad.open` takes them: of an address, a file, or bytes that are there already. */
export async function vadBytes(source = VAD_ADDRESS) {
    if (source instanceof Uint8Array) return source;
    if (source instanceof Blob) return new Uint8Array(await source.arrayBuffer());
    const address = new URL(source, globalThis.location?.href);
    // What the address of a version gave once, it always gives.
    const options = address.href === VAD_ADDRESS ? { cache: "force-cache", integrity: VAD_HASH } : {};
    const name = `${address.pathname.split("/").pop()} from ${address.host}`;
    const advice = "use silero_vad_16k.safetensors of the Python package silero-vad instead";
    const response = await fetch(address, options).catch(error => {
        throw new Error(`${name}: ${error.message}: check the network, or ${advice}`);
    });
    if (!response.ok) throw new Error(`${name}: the server answered ${response.status}: ${advice}`);
    return new Uint8Array(await response.arrayBuffer());
}

/** The samples of a sound file, or of a recording, as `transcribe` takes them. Only in a page: workers cannot decode sound. */
export async function samplesOf(blob) {
    const bytes = await blob.arrayBuffer();
    const name = blob.name ?? "the recording";
    if (bytes.byteLength === 0) throw new Error(`${name} is empty`);
    // It gives sound at its own rate, and is not asked for any.
    const context = new OfflineAudioContext(1, 1, SAMPLE_RATE);
    const sound = await context.decodeAudioData(bytes).catch(() => {
        throw new Error(`${name}: the browser cannot decode it as sound: convert it to WAV, MP3 or FLAC`);
    });
    const samples = new Float32Array(sound.length);
    for (let channel = 0; channel < sound.numberOfChannels; channel++) {
        const of = sound.getChannelData(channel);
        for (let i = 0; i < samples.length; i++) samples[i] += of[i] / sound.numberOfChannels;
    }
    return samples;
}
