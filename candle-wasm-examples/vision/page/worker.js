// The model, beside the page's thread.
import { answer, checked, fetched, from, hooks, place } from "../worker.js";
import { pixelsOf } from "./pixels.js";
import { filesOf, nameClasses } from "./source.js";

const wasm = fetched(from(new URL("wasm/", import.meta.url)));
let model = null;

function loaded() {
    if (!model) throw new Error("no model loaded: load one first");
    return model;
}

answer({
    async load(request) {
        const module = await wasm();
        const opened = await checked(async () => {
            const files = await filesOf(request, hooks);
            const opened = await module.WasmVision.open(files.weights);
            try {
                await nameClasses(opened, files, hooks.onNotice);
            } catch (error) {
                opened.free();
                throw error;
            }
            return opened;
        });
        // The memory of the model before is free for this one.
        model?.free();
        model = null;
        const placed = await place(module, opened, request);
        model = opened;
        return { ...placed, task: model.task, name: model.name };
    },

    async look({ picture }) {
        const view = loaded().view(picture.width, picture.height);
        const pixels = pixelsOf(picture, view);
        picture.close();
        const start = performance.now();
        const seen = await model.look(pixels, view.columns, view.rows);
        return { ...seen, view, milliseconds: performance.now() - start };
    },

    async mask({ points }) {
        const start = performance.now();
        const mask = await loaded().mask(points.flat());
        return { ...mask, milliseconds: performance.now() - start };
    },
});
