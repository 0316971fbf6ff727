// The model, beside the page's thread.
import { answer, checked, fetched, from, sourceOf } from "../worker.js";

const module = fetched(from(new URL("wasm/", import.meta.url)));
/** Texts that the model takes at once. */
const BATCH = 16;
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

    /** Vectors of length 1, of a batch of texts at a time: the page hears how far it is. */
    async vectors({ texts }) {
        if (!model) throw new Error("no model loaded: load one first");
        const vectors = [];
        for (let first = 0; first < texts.length; first += BATCH) {
            const some = texts.slice(first, first + BATCH);
            const flat = await model.vectors(some);
            const length = flat.length / some.length;
            for (let i = 0; i < some.length; i++) vectors.push(flat.slice(i * length, (i + 1) * length));
            postMessage({ kind: "embedded", done: vectors.length, of: texts.length });
        }
        return vectors;
    },

    async compare({ texts }) {
        if (!model) throw new Error("no model loaded: load one first");
        const start = performance.now();
        const matrix = await model.similarities(texts);
        return { matrix, milliseconds: performance.now() - start };
    },
});
