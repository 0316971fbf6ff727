// A language model in a Worker of its own, asked in the words of OpenAI's API.
import { Calls } from "./calls.js";

/** The names of a request that go to the model as they are. */
const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "repeat_last_n", "seed", "stop", "prompt_lookup"];
/** Names that a request may have with the one value that changes nothing. */
const NEUTRAL = { n: 1, logprobs: false, presence_penalty: 0, frequency_penalty: 0 };
const COMMON = [...SAMPLING, "model", "max_tokens", "max_completion_tokens", "stream", "stream_options", "signal"];

const FINISH = { end_of_text: "stop", stop_sequence: "stop", length: "length", cancelled: "abort" };

/**
 * Loads a model: its address, as `fromAddress` of files.js takes it, or a list of files. `options`: `device` ("auto" or "cpu"), `threads`,
 * `dtype`, `onProgress` and `onNotice`.
 */
export async function createEngine(model, options = {}) {
    const engine = new Engine();
    try {
        await engine.reload(model, options);
    } catch (error) {
        engine.terminate();
        throw error;
    }
    return engine;
}

class Engine {
    #calls = new Calls(() => new Worker(new URL("./engine-worker.js", import.meta.url), { type: "module" }));
    #running = new Set();
    #name = "";
    /** Hears of a module that an answer needs, as of those that the model needed. */
    #progress = undefined;

    /** What the model's files say, and where it runs; null without a model. */
    info = null;
    chat = { completions: { create: request => this.#create(CHAT, request) } };
    completions = { create: request => this.#create(TEXT, request) };

    /** Loads another model in place of the one before, which stays if the new one's files are not readable. */
    async reload(model, { device = "auto", threads, dtype, onProgress, onNotice, ...others } = {}) {
        refuse("options", others);
        this.interrupt();
        const hear = { progress: onProgress, notice: onNotice };
        this.#progress = onProgress;
        try {
            const files = typeof model === "string" ? model : [...model];
            this.info = await this.#calls.ask({ kind: "load", model: files, device, threads, dtype }, hear);
        } catch (error) {
            if (!error.kept) this.info = null;
            throw error;
        }
        this.#name = this.info.name;
    }

    /** Frees the model's memory. */
    async unload() {
        this.interrupt();
        this.info = null;
        await this.#calls.ask({ kind: "unload" });
    }

    /** Ends all answers that are being made, with the text so far. */
    interrupt() {
        for (const stop of this.#running) stop();
    }

    /** Ends the Worker; the engine is not to be used again. */
    terminate() {
        this.info = null;
        this.#calls.end("the engine was terminated");
    }

    async #create(kind, request) {
        const { stream, stream_options, signal, options, subject } = kind.read(request);
        if (!this.info) throw new Error("no model loaded: call reload first");
        signal?.throwIfAborted();
        const about = { id: `${kind.prefix}-${crypto.randomUUID()}`, created: Math.floor(Date.now() / 1000), model: this.#name };
        const pieces = new Pieces();
        const hear = { piece: heard => pieces.push(heard), progress: this.#progress };
        const done = this.#calls.ask({ kind: kind.asks, subject, options }, hear);
        const stop = () => this.#calls.tell({ kind: "stop", of: done.id });
        this.#running.add(stop);
        signal?.addEventListener("abort", stop);
        const finished = done.finally(() => {
            this.#running.delete(stop);
            signal?.removeEventListener("abort", stop);
        });
        finished.then(answer => pieces.end(answer), error => pieces.fail(error));
        if (stream) return chunks(kind, about, pieces, stop, stream_options?.include_usage === true);
        const { text, thoughts, stop_reason, usage } = await finished;
        return { ...about, object: kind.object, choices: [kind.choice(text, FINISH[stop_reason], thoughts)], usage: usageOf(usage) };
    }
}

/** The two kinds of request. */
const CHAT = {
    asks: "chat", prefix: "chatcmpl", object: "chat.completion", chunk: "chat.completion.chunk",
    read(request) {
        const asked = read(request, "messages", ["response_format", "chat_template_kwargs", "thinking_budget"]);
        const { enable_thinking, ...others } = request.chat_template_kwargs ?? {};
        refuse("chat_template_kwargs", others, ["enable_thinking"]);
        if (enable_thinking != null) asked.options.thinking = enable_thinking;
        if (request.thinking_budget != null) asked.options.thinking_budget = request.thinking_budget;
        const schema = schemaOf(request.response_format);
        if (schema !== undefined) asked.options.schema = schema;
        return asked;
    },
    choice(content, finish_reason, reasoning_content) {
        const message = { role: "assistant", content, ...(reasoning_content === undefined ? {} : { reasoning_content }) };
        return { index: 0, message, finish_reason, logprobs: null };
    },
    first: () => ({ role: "assistant", content: "" }),
    delta: (delta, finish_reason) => ({ index: 0, delta, finish_reason, logprobs: null }),
    piece: ({ piece, thought }) => thought ? { reasoning_content: piece } : { content: piece },
    last: {},
};
const TEXT = {
    asks: "complete", prefix: "cmpl", object: "text_completion", chunk: "text_completion",
    read: request => read(request, "prompt", []),
    choice: (text, finish_reason) => ({ index: 0, text, finish_reason, logprobs: null }),
    first: () => null,
    delta: (text, finish_reason) => ({ index: 0, text, finish_reason, logprobs: null }),
    piece: ({ piece }) => piece,
    last: "",
};

/** A request's parts, once its names are known to be right. */
function read(request, subject, others) {
    const { signal, stream = false, stream_options } = request;
    const known = [subject, ...COMMON, ...others, ...Object.keys(NEUTRAL)];
    refuse("request", Object.fromEntries(Object.entries(request).filter(([name]) => !known.includes(name))), known);
    for (const [name, neutral] of Object.entries(NEUTRAL)) {
        const found = request[name] ?? neutral;
        if (found !== neutral) throw new Error(`request: ${name} is ${JSON.stringify(found)}; in a browser it can only be ${neutral}`);
    }
    const options = Object.fromEntries(SAMPLING.filter(name => request[name] != null).map(name => [name, request[name]]));
    const most = request.max_completion_tokens ?? request.max_tokens;
    if (most != null) options.max_tokens = most;
    return { stream, stream_options, signal, options, subject: request[subject] };
}

/** The JSON schema that an answer has to keep to; undefined where any text will do. */
function schemaOf(format) {
    if (format == null) return undefined;
    const { type, json_schema, ...others } = format;
    refuse("response_format", others, ["type", "json_schema"]);
    if (type !== "json_schema" && json_schema !== undefined) {
        throw new Error(`response_format: json_schema is given, but type is ${JSON.stringify(type)}; expected "json_schema"`);
    }
    if (type === "text") return undefined;
    if (type === "json_object") return { type: "object" };
    if (type !== "json_schema") {
        throw new Error(`response_format: type is ${JSON.stringify(type)}; expected "text", "json_object" or "json_schema"`);
    }
    // A name for logs; and a schema is always kept to.
    const { schema, name, description, strict, ...more } = json_schema ?? {};
    refuse("response_format.json_schema", more, ["schema", "name", "description", "strict"]);
    if (schema === null || typeof schema !== "object") {
        throw new Error(`response_format.json_schema: schema is ${JSON.stringify(schema)}; expected a JSON schema`);
    }
    return schema;
}

function refuse(what, others, known) {
    const [name] = Object.keys(others);
    if (name === undefined) return;
    throw new Error(`${what}: \`${name}\` is unknown${known ? `; expected one of ${known.join(", ")}` : ""}`);
}

const usageOf = ({ prompt_tokens, completion_tokens, total_tokens, reused_tokens, thought_tokens }) => ({
    prompt_tokens, completion_tokens, total_tokens,
    prompt_tokens_details: { cached_tokens: reused_tokens }, completion_tokens_details: { reasoning_tokens: thought_tokens },
});

/** The answer as it comes. Who leaves the loop ends it. */
async function* chunks(kind, about, pieces, stop, withUsage) {
    const chunk = choices => ({ ...about, object: kind.chunk, choices, ...(withUsage ? { usage: null } : {}) });
    let whole = false;
    try {
        const first = kind.first();
        if (first !== null) yield chunk([kind.delta(first, null)]);
        for (;;) {
            const { answer, ...piece } = await pieces.next();
            if (answer) {
                whole = true;
                yield chunk([kind.delta(kind.last, FINISH[answer.stop_reason])]);
                if (withUsage) yield { ...chunk([]), usage: usageOf(answer.usage) };
                return;
            }
            yield chunk([kind.delta(kind.piece(piece), null)]);
        }
    } finally {
        if (!whole) stop();
    }
}

/** Pieces of a text, from the Worker to whoever iterates. */
class Pieces {
    #waiting = [];
    #taker = null;

    push({ piece, thought }) { this.#put(Promise.resolve({ piece, thought })); }

    end(answer) { this.#put(Promise.resolve({ answer })); }

    fail(error) {
        const failed = Promise.reject(error);
        // An answer that is not streamed throws it elsewhere.
        failed.catch(() => {});
        this.#put(failed);
    }

    next() {
        if (this.#waiting.length > 0) return this.#waiting.shift();
        return new Promise(resolve => { this.#taker = resolve; });
    }

    #put(item) {
        if (!this.#taker) return this.#waiting.push(item);
        this.#taker(item);
        this.#taker = null;
    }
}
