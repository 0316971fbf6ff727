// The Worker of engine.js.
import { answerCalls } from "./calls.js";
import { fromAddress, fromFiles } from "./files.js";
import { Grammars } from "./grammar.js";
import { load } from "./index.js";
import { whyOneThread } from "./threads.js";
import { modulesOf } from "./wasm.js";

let model = null;
const moduleFor = modulesOf(load);
const grammars = new Grammars();
/** What ends each answer that is asked for, by its call. */
const stops = new Map();

/** Runs `make` with the model and a signal that `stop` aborts. */
async function answer({ id }, make) {
    if (!model) throw new Error("no model loaded: call reload first");
    const stop = stops.get(id) ?? new AbortController();
    stops.set(id, stop);
    try {
        return await make(stop.signal);
    } finally {
        stops.delete(id);
    }
}

answerCalls({
    async load({ model: wanted, device, threads, dtype }, say) {
        const onProgress = (name, loaded, total) => say("progress", { name, loaded, total });
        const onNotice = message => say("notice", { message });
        const module = await moduleFor(device, threads, (loaded, total) => onProgress("WebAssembly module", loaded, total));
        let opened, info;
        try {
            const hooks = { onProgress, onNotice };
            opened = await module.WasmModel.open(await (typeof wanted === "string" ? fromAddress(wanted, hooks) : fromFiles(wanted, hooks)));
            info = await opened.info();
        } catch (error) {
            throw Object.assign(error, { kept: true });
        }
        // The memory of the model before is free for this one.
        model?.free();
        model = null;
        let reason = "selected";
        if (device !== "cpu") reason = await opened.init_gpu().then(() => null, error => error.message);
        await opened.load(dtype ? { dtype } : {}, (loaded, total) => onProgress("weights", loaded, total));
        model = opened;
        const one = reason !== null && module.threads() === 1 ? whyOneThread(threads) : null;
        return { ...info, device: model.device, cpu_reason: reason, threads: module.threads(), one_thread_reason: one };
    },

    unload() {
        model?.free();
        model = null;
    },

    chat: (call, say) => answer(call, async signal => {
        const { schema, ...options } = call.options;
        const onProgress = (loaded, total) => say("progress", { name: "grammar module", loaded, total });
        const constraint = schema === undefined ? undefined : await grammars.guide(model, schema, onProgress);
        try {
            return await model.chat(call.subject, { ...options, constraint, signal }, (piece, thought) => say("piece", { piece, thought }));
        } finally {
            constraint?.free();
        }
    }),

    complete: (call, say) => answer(call, async signal => {
        const made = await model.generate_stream(call.subject, { ...call.options, signal }, piece => say("piece", { piece }));
        const { text, prompt_tokens, tokens, stop_reason } = made;
        const usage = { prompt_tokens, completion_tokens: tokens, total_tokens: prompt_tokens + tokens, reused_tokens: 0, thought_tokens: 0 };
        return { text, stop_reason, usage };
    }),
}, {
    stop({ of }) {
        // One that waits for its turn ends when it begins.
        if (!stops.has(of)) stops.set(of, new AbortController());
        stops.get(of).abort();
    },
});
