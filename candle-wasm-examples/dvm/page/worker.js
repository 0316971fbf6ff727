// The machine, beside the page's thread: browsers slow the timers of hidden tabs down, and those of their workers less.
import { loadDvm } from "../candle-wasm/dvm.js";
import { answer, fetched, languageModel, originOf } from "../worker.js";

const wasm = fetched(loadDvm);
let loaded = null;
let dvm = null;

async function stop() {
    const stopping = dvm;
    dvm = null;
    try {
        await stopping?.stop();
    } finally {
        stopping?.free();
    }
}

answer({
    async load(request) {
        const module = await wasm(request.device);
        if (dvm) throw new Error("the service is running: stop it first");
        const { model, shown } = await languageModel(module, request, () => {
            // The memory of the model before is free for this one.
            loaded?.model.free();
            loaded = null;
        });
        loaded = { module, model, origin: originOf(request) };
        return shown;
    },

    async start({ secret, relays, settings }) {
        if (!loaded) throw new Error("no model loaded: load one first");
        if (dvm) throw new Error("the service is already running");
        const made = new loaded.module.BrowserDvm(secret || undefined);
        try {
            made.on_event(event => postMessage({ kind: "event", event }));
            await made.use_model(loaded.model, loaded.origin);
            await made.start(relays, settings);
        } catch (error) {
            made.free();
            throw error;
        }
        dvm = made;
        return { npub: dvm.public_key, nsec: dvm.secret_key(), journal: dvm.journal };
    },

    stop,

    async status() {
        return dvm?.status ?? null;
    },
});
