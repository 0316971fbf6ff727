// A worker's side of `Tasks` in shared.js, and of `ModelForm` in model.js.
import { fromAddress, fromFiles, fromFolder } from "./candle-wasm/files.js";
import { whyOneThread } from "./candle-wasm/threads.js";
import { fetchWasm, modulesOf, supportsSimd } from "./candle-wasm/wasm.js";

/** The model that comes with the pages is held and computed in f32, as its reference texts are. */
const OWN = { folder: new URL("llm/model/", import.meta.url).href, dtype: "f32", name: "candle-embedded" };

/** `?threads=4` in the page's address: how many threads the CPU's ops take, in place of what suits the machine. */
const THREADS = Number(new URLSearchParams(location.search).get("threads")) || undefined;

/**
 * The module that `load` brings for a device, "auto" if none is named. That one is asked for at once, so that it is there when it is
 * needed.
 */
export function fetched(load) {
    const onProgress = (done, size) => postMessage({ kind: "progress", name: "WebAssembly module", done, size });
    const modules = modulesOf(load);
    const bring = device => modules(device, THREADS, onProgress);
    // What is wrong with it is told to whoever needs it. A browser need not fetch it again for this worker, but does for another one.
    bring("auto").catch(() => {});
    return (device = "auto") => bring(device).catch(error => {
        throw Object.assign(error, { fatal: true });
    });
}

/** As `load` of the package, of another module: the one in a folder. */
export const from = folder => async ({ onProgress }) => {
    const build = new URL(supportsSimd() ? "simd/" : "plain/", folder);
    const module = await import(new URL("candle.js", build));
    await module.default({ module_or_path: await fetchWasm(new URL("candle_bg.wasm", build), onProgress, module.wasmSize) });
    return module;
};

/** For the functions of files.js: tells the page how far a file is. */
export const hooks = {
    onProgress: (name, done, size) => postMessage({ kind: "progress", name, done, size }),
    onNotice: message => postMessage({ kind: "notice", message }),
};

/** Where the model that a form asks for is read from. */
export async function sourceOf({ source, address, files }) {
    if (source === "url") return fromAddress(address, hooks);
    if (source === "files") return fromFiles(files, hooks);
    return fromFolder(OWN.folder, hooks);
}

/**
 * Loads the language model that a form asks for. Gives it and, for the page, where it runs. `free` lets go of the one before, when the new
 * one's files are known to be good.
 */
export async function languageModel(module, request, free) {
    const model = await checked(async () => module.WasmModel.open(await sourceOf(request)));
    const info = await model.info();
    free();
    const placed = await place(module, model, request, request.source === "default" ? { dtype: OWN.dtype } : {});
    return { model, shown: { ...placed, info } };
}

/** Brings an opened model to the device that a form asks for; says for the page where it runs. */
export async function place(module, model, { device }, options = {}) {
    let reason = "selected by you";
    if (device !== "cpu") {
        reason = await model.init_gpu().then(() => null, error => error.message);
    }
    const start = performance.now();
    await model.load(options);
    const threads = { count: module.threads(), reason: whyOneThread(THREADS) };
    return { device: model.device, reason, threads, seconds: (performance.now() - start) / 1000 };
}

/** What `open` gives; its errors tell the page that the model before is still there. */
export async function checked(open) {
    try {
        return await open();
    } catch (error) {
        throw Object.assign(error, { kept: true });
    }
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
            const fatal = error.fatal || error instanceof WebAssembly.RuntimeError || error instanceof RangeError;
            postMessage({ kind: "failed", id: data.id, message: error.message ?? String(error), fatal, kept: error.kept });
        }
    };
}

/**
 * A worker with one language model, which `load` of the package opens. `kinds`: for each kind of request a function of the model, the request
 * and what hears the pieces of the text; its `options` have the signal that ends the text.
 */
export function textWorker(load, kinds) {
    const wasm = fetched(load);
    let model = null;
    let stop = new AbortController();
    const handlers = {
        async load(request) {
            const loaded = await languageModel(await wasm(request.device), request, () => {
                // The memory of the model before is free for this one.
                model?.free();
                model = null;
            });
            model = loaded.model;
            return loaded.shown;
        },
    };
    for (const [kind, text] of Object.entries(kinds)) {
        handlers[kind] = async request => {
            if (!model) throw new Error("no model loaded: load one first");
            stop = new AbortController();
            const onPiece = (piece, thought = false) => postMessage({ kind: "piece", piece, thought });
            return text(model, { ...request, options: { ...request.options, signal: stop.signal } }, onPiece);
        };
    }
    answer(handlers, { stop: () => stop.abort() });
}
