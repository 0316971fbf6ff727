// The model, beside the page's thread.
import { load } from "../candle-wasm/index.js";
import { answer, sourceOf } from "../worker.js";

const module = load(new URL("wasm/", import.meta.url));
let model = null;

answer({
    async load(request) {
        const { Embedder } = await module;
        // The memory of the model before is free for this one.
        model?.free();
        model = null;
        const source = await sourceOf(request);
        const start = performance.now();
        model = await Embedder.load(source, request.device === "cpu");
        return { device: model.device, reason: model.cpu_reason ?? null, seconds: (performance.now() - start) / 1000 };
    },

    async compare({ texts }) {
        if (!model) throw new Error("no model loaded: load one first");
        const start = performance.now();
        const matrix = await model.similarities(texts);
        return { matrix, milliseconds: performance.now() - start };
    },
});
