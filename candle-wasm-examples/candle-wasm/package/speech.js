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
