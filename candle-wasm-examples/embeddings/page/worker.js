// The model, beside the page's thread.
import { answer, checked, fetched, from, sourceOf } from "../worker.js";

const module = fetched(from(new URL("wasm/", import.meta.url)));
let model = null;

answer({
    async load(request) {
        const { Embedder } = await module();
        const start = performance.now();
        // Models of this kind are small: there is room for this one beside the one before.
        const loaded = await checked(async () => Embedder.load(await sourceOf(request), request.device === "cpu"));
        model?.free();
        model = loaded;
        return { device: model.device, reason: model.cpu_reason ?? null, seconds: (performance.now() - start) / 1000 };
    },

    async compare({ texts }) {
        if (!model) throw new Error("no model loaded: load one first");
        const start = performance.now();
        const matrix = await model.similarities(texts);
        return { matrix, milliseconds: performance.now() - start };
    },
});
