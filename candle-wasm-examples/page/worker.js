// A worker's side of `Tasks` in shared.js.

/** For the functions of files.js: tells the page how far a file is. */
export const hooks = {
    onProgress: (name, done, size) => postMessage({ kind: "progress", name, done, size }),
    onNotice: message => postMessage({ kind: "notice", message }),
};

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
