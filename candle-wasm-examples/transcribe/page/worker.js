// The model, beside the page's thread.
import { loadSpeech } from "../candle-wasm/speech.js";
import { answer, checked, fetched, place, sourceOf } from "../worker.js";

const wasm = fetched(loadSpeech);
let model = null;
let stop = new AbortController();

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

    async transcribe({ samples, options }) {
        if (!model) throw new Error("no model loaded: load one first");
        stop = new AbortController();
        const start = performance.now();
        const transcript = await model.transcribe(samples, {
            ...options,
            signal: stop.signal,
            onSegment: segment => postMessage({ kind: "segment", segment }),
            onText: text => postMessage({ kind: "draft", text }),
        });
        return { ...transcript, seconds: (performance.now() - start) / 1000 };
    },
}, { stop: () => stop.abort() });
