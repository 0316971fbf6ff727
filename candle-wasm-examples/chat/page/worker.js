// The model, beside the page's thread. One request at a time; each answer carries its request's id.
import { load } from "../candle-wasm/index.js";
import { answer, fetched, languageModel } from "../worker.js";

const wasm = fetched(load);
let model = null;
let stop = new AbortController();

answer({
    async load(request) {
        const { WasmModel } = await wasm();
        const loaded = await languageModel(WasmModel, request, () => {
            // The memory of the model before is free for this one.
            model?.free();
            model = null;
        });
        model = loaded.model;
        return loaded.shown;
    },

    async chat({ messages, options }) {
        if (!model) throw new Error("no model loaded: load one first");
        stop = new AbortController();
        const onPiece = piece => postMessage({ kind: "piece", piece });
        return model.chat(messages, { ...options, signal: stop.signal }, onPiece);
    },
}, { stop: () => stop.abort() });
