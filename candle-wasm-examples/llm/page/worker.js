// The model, beside the page's thread. One request at a time; each answer carries its request's id.
import { load } from "../candle-wasm/index.js";
import { fromAddress, fromFiles, fromFolder } from "../candle-wasm/files.js";
import { answer, hooks } from "../worker.js";

/** The model of the page is held and computed in f32, as its reference texts are. */
const DEFAULT = { folder: new URL("model/", import.meta.url).href, dtype: "f32" };

const wasm = load();
let model = null;
let stop = new AbortController();

async function open({ source, address, files }) {
    if (source === "url") return fromAddress(address, hooks);
    if (source === "files") return fromFiles(files, hooks);
    return fromFolder(DEFAULT.folder, hooks);
}

answer({
    async load(request) {
        const { WasmModel } = await wasm;
        // The memory of the model before is free for this one.
        model?.free();
        model = null;
        const source = await open(request);
        const opened = await WasmModel.open(source);
        let reason = "you chose it";
        if (request.device !== "cpu") {
            reason = await opened.init_gpu().then(() => null, error => error.message);
        }
        const start = performance.now();
        await opened.load(request.source === "default" ? { dtype: DEFAULT.dtype } : {});
        model = opened;
        return { device: model.device, reason, seconds: (performance.now() - start) / 1000 };
    },

    async generate({ prompt, options }) {
        if (!model) throw new Error("no model is loaded: load one first");
        stop = new AbortController();
        const onPiece = piece => postMessage({ kind: "piece", piece });
        return model.generate_stream(prompt, { ...options, signal: stop.signal }, onPiece);
    },
}, { stop: () => stop.abort() });
