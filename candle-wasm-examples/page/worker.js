// A worker's side of `Tasks` in shared.js, and of `ModelForm` in model.js.
import { fromAddress, fromFiles, fromFolder } from "./candle-wasm/files.js";

/** The model that comes with the pages is held and computed in f32, as its reference texts are. */
const OWN = { folder: new URL("llm/model/", import.meta.url).href, dtype: "f32", name: "candle-embedded" };

/** For the functions of files.js: tells the page how far a file is. */
const hooks = {
    onProgress: (name, done, size) => postMessage({ kind: "progress", name, done, size }),
    onNotice: message => postMessage({ kind: "notice", message }),
};

/** Where the model that a form asks for is read from. */
export async function sourceOf({ source, address, files }) {
    if (source === "url") return fromAddress(address, hooks);
    if (source === "files") return fromFiles(files, hooks);
    return fromFolder(OWN.folder, hooks);
}

/** Loads the language model that a form asks for. Gives it and, for the page, where it runs. */
export async function languageModel(WasmModel, request) {
    const source = await sourceOf(request);
    const model = await WasmModel.open(source);
    let reason = "selected by you";
    if (request.device !== "cpu") {
        reason = await model.init_gpu().then(() => null, error => error.message);
    }
    const start = performance.now();
    await model.load(request.source === "default" ? { dtype: OWN.dtype } : {});
    return { model, shown: { device: model.device, reason, seconds: (performance.now() - start) / 1000 } };
}

/** Where the model that a form asks for comes from: an address, or a file's name. */
export function originOf({ source, address, files }) {
    if (source === "default") return OWN.name;
    return source === "url" ? address.trim() : files[0].name;
}

/** Answers each request with what the handler of its `kind` gives; `told` takes what wants no answer. */
export function answer(handlers, told = {}) {
    onmessage = async ({ data }) => {
        if (told[data.kind]) return told[data.kind](data);
        try {
            postMessage({ kind: "done", id: data.id, result: await handlers[data.kind](data) });
        } catch (error) {
            // After a panic or without memory the module is not to be used again.
            const fatal = error instanceof WebAssembly.RuntimeError || error instanceof RangeError;
            postMessage({ kind: "failed", id: data.id, message: error.message ?? String(error), fatal });
        }
    };
}
