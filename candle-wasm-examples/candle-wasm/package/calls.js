// Calls of functions in a Worker, from both sides.

/** The side that asks. The Worker is started at the first call, and again after it has failed. */
export class Calls {
    #start;
    #worker = null;
    #open = new Map();
    #next = 0;
    #ended = null;

    constructor(start) {
        this.#start = start;
    }

    /** A promise of the result, whose `id` the Worker knows the call by. `hear` takes, by `kind`, what the Worker says meanwhile. */
    ask(message, hear = {}) {
        const id = this.#next++;
        const result = new Promise((resolve, reject) => {
            if (this.#ended) return reject(new Error(this.#ended));
            this.#open.set(id, { resolve, reject, hear });
            this.#running().postMessage({ ...message, id });
        });
        return Object.assign(result, { id });
    }

    /** Says something that has no answer. */
    tell(message) {
        this.#worker?.postMessage(message);
    }

    /** Ends the Worker and fails what it was asked. */
    end(reason) {
        this.#ended = reason;
        this.#lose(reason);
    }

    #running() {
        if (this.#worker) return this.#worker;
        this.#worker = this.#start();
        this.#worker.onmessage = ({ data }) => this.#heard(data);
        this.#worker.onerror = event => this.#lose(event.message || "the Worker's script did not load");
        return this.#worker;
    }

    #lose(reason) {
        this.#worker?.terminate();
        this.#worker = null;
        for (const { reject } of this.#open.values()) reject(new Error(reason));
        this.#open.clear();
    }

    #heard({ id, kind, ...data }) {
        const call = this.#open.get(id);
        if (!call) return;
        if (kind !== "done" && kind !== "failed") return call.hear[kind]?.(data);
        if (data.fatal) return this.#lose(`${data.message}; load the model again`);
        this.#open.delete(id);
        if (kind === "done") call.resolve(data.result);
        else call.reject(Object.assign(new Error(data.message), { kept: data.kept }));
    }
}

/**
 * The side that answers: each message with what the function of its `kind` gives, one after another. `now` has those that do not wait for
 * their turn.
 */
export function answerCalls(functions, now = {}) {
    let turn = Promise.resolve();
    onmessage = ({ data }) => {
        if (now[data.kind]) return now[data.kind](data);
        const say = (kind, more) => postMessage({ id: data.id, kind, ...more });
        turn = turn.then(async () => {
            try {
                say("done", { result: await functions[data.kind](data, say) });
            } catch (error) {
                // After a panic or without memory a module is not to be used again.
                const fatal = error instanceof WebAssembly.RuntimeError || error instanceof RangeError;
                say("failed", { message: error.message ?? String(error), fatal, kept: error.kept });
            }
        });
    };
}
