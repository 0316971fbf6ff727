// The models, beside the page's thread.
import { loadSpeech } from "../candle-wasm/speech.js";
import { answer, checked, fetched, place, sourceOf } from "../worker.js";

const wasm = fetched(loadSpeech);
let model = null;
let stop = new AbortController();
/** Silero VAD, and the phrases that it finds in the current recording. */
let detector = null;
let phrases = null;

async function openVad(bytes) {
    const module = await wasm();
    const opened = await module.WasmVad.open(bytes);
    detector?.free();
    detector = opened;
}

/** The parts of a recording in which somebody speaks; none if `signal` ends the detection. */
async function speechIn(samples, vad, signal) {
    if (!detector) await openVad(vad);
    return detector.speech(samples, { signal }).catch(error => {
        if (signal.aborted) return [];
        throw error;
    });
}

answer({
    async load(request) {
        const module = await wasm(request.device);
        const opened = await checked(async () => module.WasmSpeech.open(await sourceOf(request)));
        // The memory of the model before is free for this one.
        model?.free();
        model = null;
        const placed = await place(module, opened, request);
        model = opened;
        return { ...placed, languages: model.languages };
    },

    /** Whether these bytes are Silero VAD: an error if not. */
    vad: ({ vad }) => openVad(vad),

    /** Takes the next samples of a recording; `vad` comes with the first. */
    async hear({ samples, vad, end }) {
        if (vad) {
            if (!detector) await openVad(vad);
            phrases?.free();
            phrases = detector.phrases();
        }
        const found = phrases.hear(samples);
        return { phrases: end ? [...found, ...phrases.end()] : found, speaking: phrases.speaking };
    },

    /** With `vad`, only of the speech that it finds. */
    async transcribe({ samples, options, vad }) {
        if (!model) throw new Error("no model loaded: load one first");
        stop = new AbortController();
        const { signal } = stop;
        const start = performance.now();
        const speech = vad && await speechIn(samples, vad, signal);
        const transcript = await model.transcribe(samples, {
            ...options,
            signal,
            speech,
            onSegment: segment => postMessage({ kind: "segment", segment }),
            onText: text => postMessage({ kind: "draft", text }),
        });
        const stopped = transcript.stopped || signal.aborted;
        return { ...transcript, stopped, speech, seconds: (performance.now() - start) / 1000 };
    },
}, { stop: () => stop.abort() });
