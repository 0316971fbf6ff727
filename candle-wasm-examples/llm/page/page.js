// What the page shows. All work is done in worker.js.
const at = id => document.getElementById(id);
const answers = new Map();
let worker;
let nextId = 0;
let loaded = false;
let files = [];

function start() {
    worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }) => receive[data.kind](data);
    worker.onerror = event => fail(event.message || "the worker cannot be started: reload the page");
}

/** Asks the worker; resolves with its result. */
function ask(message) {
    const id = nextId++;
    return new Promise((resolve, reject) => {
        answers.set(id, { resolve, reject });
        worker.postMessage({ ...message, id });
    });
}

/** A worker that is not to be used again is replaced; what it was asked fails. */
function fail(message) {
    worker.terminate();
    start();
    loaded = false;
    for (const { reject } of answers.values()) reject(new Error(`${message}. Load the model again`));
    answers.clear();
}

const receive = {
    progress: ({ name, done, size }) => showProgress(name, done, size),
    notice: ({ message }) => { at("notice").textContent = message; },
    piece: ({ piece }) => { at("made").textContent += piece; },
    done({ id, result }) {
        answers.get(id)?.resolve(result);
        answers.delete(id);
    },
    failed({ id, message, fatal }) {
        if (fatal) return fail(message);
        answers.get(id)?.reject(new Error(message));
        answers.delete(id);
    },
};

function showProgress(name, done, size) {
    const id = `progress-${name}`;
    let bar = document.getElementById(id);
    if (!bar) {
        const label = document.createElement("label");
        label.htmlFor = id;
        bar = Object.assign(document.createElement("progress"), { id });
        const text = document.createElement("span");
        label.append(text);
        at("progress").append(label, bar);
    }
    bar.max = size;
    bar.value = done;
    bar.previousElementSibling.textContent = `${name} · ${megabytes(done)} of ${megabytes(size)}`;
}

const megabytes = bytes => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

function busy(what) {
    at("load").disabled = what !== null;
    at("generate").disabled = what !== null || !loaded;
    at("stop").disabled = what !== "text";
    document.body.ariaBusy = String(what !== null);
}

async function loadModel() {
    const source = new FormData(at("model-form")).get("source");
    for (const id of ["model-error", "text-error", "notice", "device-line"]) at(id).textContent = "";
    at("progress").replaceChildren();
    at("state").textContent = "Loading …";
    loaded = false;
    busy("model");
    try {
        if (source === "url" && !at("url").value.trim()) throw new Error("give the address of a model");
        if (source === "files" && files.length === 0) throw new Error("choose or drop a model's files");
        const request = { kind: "load", source, address: at("url").value, files, device: at("device").value };
        const { device, reason, seconds } = await ask(request);
        loaded = true;
        at("progress").replaceChildren();
        at("state").textContent = `Ready: loaded in ${seconds.toFixed(1)} s`;
        at("device-line").textContent = reason === null ? `On ${device.replace(/: $/, ", a GPU that the browser does not name")}` : `On the CPU: ${reason}`;
    } catch (error) {
        at("state").textContent = "No model is loaded";
        at("model-error").textContent = error.message;
    }
    busy(null);
}

async function generate() {
    const prompt = at("prompt").value;
    at("given").textContent = prompt;
    at("made").textContent = "";
    at("text-error").textContent = "";
    at("speed").textContent = "Working …";
    busy("text");
    const number = id => at(id).valueAsNumber;
    const options = { temperature: number("temperature"), max_tokens: number("max-tokens"), seed: number("seed") };
    if (number("top-p") < 1) options.top_p = number("top-p");
    try {
        const done = await ask({ kind: "generate", prompt, options });
        const ends = { end_of_text: "the text ended", length: "the most tokens are made", cancelled: "stopped" };
        at("speed").textContent = `${done.tokens} tokens, ${done.tokens_per_second.toFixed(1)} a second; ${ends[done.stop_reason]}`;
    } catch (error) {
        at("speed").textContent = "";
        const lost = /the GPU (was lost|reports)/.test(error.message);
        if (lost) loaded = false;
        at("text-error").textContent = error.message + (lost ? ". To go on, load the model again." : "");
        if (!loaded) at("state").textContent = "No model is loaded";
    }
    busy(null);
}

function choose(list) {
    files = [...list];
    at("chosen").textContent = files.map(file => file.name).join(", ") || "or drop them here";
}

at("model-form").onsubmit = event => {
    event.preventDefault();
    loadModel();
};
at("prompt-form").onsubmit = event => {
    event.preventDefault();
    generate();
};
at("stop").onclick = () => worker.postMessage({ kind: "stop" });
at("files").onchange = () => choose(at("files").files);
at("model-form").onchange = () => {
    const source = new FormData(at("model-form")).get("source");
    at("default-hint").hidden = source !== "default";
    at("url-box").hidden = source !== "url";
    at("files-box").hidden = source !== "files";
};
// A file that misses the field must not replace the page.
document.ondragover = event => event.preventDefault();
document.ondrop = event => event.preventDefault();
at("drop").ondragover = () => at("drop").classList.add("over");
at("drop").ondragleave = () => at("drop").classList.remove("over");
at("drop").ondrop = event => {
    at("drop").classList.remove("over");
    choose(event.dataTransfer.files);
};

start();
at("model-form").onchange();
loadModel();
