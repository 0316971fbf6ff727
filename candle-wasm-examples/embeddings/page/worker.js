// The model, beside the page's thread.
import { answer, checked, fetched, from, sourceOf } from "../worker.js";

const module = fetched(from(new URL("wasm/", import.meta.url)));
/** Texts that the model takes at once. */
const BATCH = 16;
let model = null;

/** Results of `of` for each text, from a batch at a time: the page hears how far it is. */
async function each(texts, of) {
    if (!model) throw new Error("no model loaded: load one first");
    const made = [];
    for (let first = 0; first < texts.length; first += BATCH) {
        made.push(...await of(texts.slice(first, first + BATCH)));
        postMessage({ kind: "embedded", done: made.length, of: texts.length });
    }
    return made;
}

answer({
    async load(request) {
        const { Embedder } = await module();
        const start = performance.now();
        // Models of this kind are small: there is room for this one beside the one before.
        const loaded = await checked(async () => Embedder.load(await sourceOf(request), request.device === "cpu"));
        model?.free();
        model = loaded;
        const { device, output, cpu_reason: reason = null } = model;
        return { device, output, reason, seconds: (performance.now() - start) / 1000 };
    },

    /** Vectors of length 1. */
    vectors: ({ texts }) => each(texts, async some => {
        const flat = await model.vectors(some);
        const length = flat.length / some.length;
        return some.map((_, i) => flat.slice(i * length, (i + 1) * length));
    }),

    /** Weights by word, heaviest first. */
    words: ({ texts }) => each(texts, async some =>
        (await model.words(some)).map(words => new Map(words.map(({ word, weight }) => [word, weight])))),

    async compare({ texts }) {
        if (!model) throw new Error("no model loaded: load one first");
        const start = performance.now();
        const matrix = await model.similarities(texts);
        return { matrix, milliseconds: performance.now() - start };
    },
});
