// What the page shows. All work is done in worker.js.
import { at, loadModel, showProgress, takeFiles, Tasks } from "../shared.js";

let loaded = false;
let files = [];

const receive = {
    progress: message => showProgress(at("progress"), message),
    notice: ({ message }) => { at("notice").textContent = message; },
    piece: ({ piece }) => { at("made").textContent += piece; },
};
const tasks = new Tasks(new URL("worker.js", import.meta.url), receive, () => {
    loaded = false;
    return "Load the model again";
});

function busy(what) {
    at("load").disabled = what !== null;
    at("generate").disabled = what !== null || !loaded;
    at("stop").disabled = what !== "text";
    document.body.ariaBusy = String(what !== null);
}

async function load() {
    loaded = false;
    busy("model");
    loaded = await loadModel(tasks, new FormData(at("model-form")).get("source"), files);
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
        const done = await tasks.ask({ kind: "generate", prompt, options });
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

at("model-form").onsubmit = event => {
    event.preventDefault();
    load();
};
at("prompt-form").onsubmit = event => {
    event.preventDefault();
    generate();
};
at("stop").onclick = () => tasks.tell({ kind: "stop" });
at("model-form").onchange = () => {
    const source = new FormData(at("model-form")).get("source");
    at("default-hint").hidden = source !== "default";
    at("url-box").hidden = source !== "url";
    at("files-box").hidden = source !== "files";
};
takeFiles(at("files"), at("drop"), list => {
    files = list;
    at("chosen").textContent = files.map(file => file.name).join(", ") || "or drop them here";
});

at("model-form").onchange();
load();
