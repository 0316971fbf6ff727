// The form that a model is loaded with, the same on every page that has one.
import { at } from "./shared.js";

const choice = (value, label) => `<label class="choice"><input type="radio" name="source" value="${value}"> ${label}</label>`;

/** `own`, where the page comes with a model, tells of it; `url` and `files` tell of the other two places. */
const form = ({ own, url, files }) => `
<form id="model-form">
    <fieldset class="row">
        <legend class="hint">Where it comes from</legend>
        ${own ? choice("default", "Included small model") : ""}
        ${choice("url", "Web")}
        ${choice("files", "Disk")}
    </fieldset>
    <p class="hint" id="default-hint">${own ?? ""}</p>
    <div id="url-box">
        <label for="url">${url.label}</label>
        <input type="text" id="url" inputmode="url" autocomplete="off" spellcheck="false" value="${url.value ?? ""}">
        <p class="hint">${url.hint}</p>
    </div>
    <div id="files-box">
        <label for="files">${files}</label>
        <div id="drop">
            <input type="file" id="files" multiple>
            <p class="hint" id="chosen">or drop them here</p>
        </div>
    </div>
    <div class="row" id="load-row">
        <label class="choice" for="device">Run on</label>
        <select id="device">
            <option value="auto">the GPU, if there is one</option>
            <option value="cpu">the CPU</option>
        </select>
        <button type="submit" class="${own ? "" : "main"}" id="load">Load</button>
    </div>
</form>
<div id="progress" aria-live="off"></div>
<p id="state" role="status">No model loaded</p>
<p id="device-line" class="hint"></p>
<p class="notice" id="notice" role="status"></p>
<p class="error" id="model-error" role="alert"></p>
`;

/** What is said of language models from the web and from disk. */
export const LANGUAGE_MODELS = {
    own: "A 12 MB model with 5.8 million parameters, trained on Rust code.",
    url: {
        label: "URL of a GGUF file or a folder, or a Hugging Face name such as owner/model",
        hint: "Llama models. The browser caches large ones, so your next visit needs no download.",
    },
    files: "A .gguf file, or config.json, tokenizer.json and .safetensors files together",
};

export class ModelForm {
    /** `texts` as in `form` above; `onLoad` is called when somebody wants a model. */
    constructor(box, texts, onLoad) {
        box.insertAdjacentHTML("beforeend", form(texts));
        this.files = [];
        const element = at("model-form");
        element.querySelector("input[name=source]").checked = true;
        element.onchange = () => this.choose();
        element.onsubmit = event => {
            event.preventDefault();
            onLoad();
        };
        takeFiles(at("files"), at("drop"), list => {
            this.files = list;
            at("chosen").textContent = list.map(file => file.name).join(", ") || "or drop them here";
        });
        this.choose();
    }

    get source() {
        return new FormData(at("model-form")).get("source");
    }

    choose() {
        at("default-hint").hidden = this.source !== "default";
        at("url-box").hidden = this.source !== "url";
        at("files-box").hidden = this.source !== "files";
    }

    /** What a worker may say while it loads. */
    static receive = {
        progress: message => showProgress(at("progress"), message),
        notice: ({ message }) => { at("notice").textContent = message; },
    };

    /** Has the worker load what the form asks for, and shows how that goes. Gives whether there is a model now. */
    async load(tasks) {
        for (const id of ["model-error", "notice", "device-line"]) at(id).textContent = "";
        at("progress").replaceChildren();
        at("state").textContent = "Loading …";
        const { source, files } = this;
        try {
            if (source === "url" && !at("url").value.trim()) throw new Error("enter the URL or name of a model");
            if (source === "files" && files.length === 0) throw new Error("choose or drop a model's files");
            const request = { kind: "load", source, address: at("url").value, files, device: at("device").value };
            const { device, reason, seconds } = await tasks.ask(request);
            at("progress").replaceChildren();
            at("state").textContent = `Ready: loaded in ${seconds.toFixed(1)} s`;
            at("device-line").textContent = deviceLine(device, reason);
            return true;
        } catch (error) {
            this.lost(error.message);
            return false;
        }
    }

    /** There is no model any more, or none yet. */
    lost(message = "") {
        at("state").textContent = "No model loaded";
        at("model-error").textContent = message;
    }
}

/** Where a model runs. A browser need not name its GPU; `reason` is null where it runs on one. */
function deviceLine(device, reason) {
    if (reason !== null) return `Running on the CPU: ${reason}`;
    return `Running on ${device.replace(/: *$/, ", a GPU the browser does not name")}`;
}

const megabytes = bytes => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

/** A bar in `box` for each file that is on its way. */
function showProgress(box, { name, done, size }) {
    const id = `progress-${name}`;
    let bar = document.getElementById(id);
    if (!bar) {
        const label = document.createElement("label");
        label.htmlFor = id;
        bar = Object.assign(document.createElement("progress"), { id });
        label.append(document.createElement("span"));
        box.append(label, bar);
    }
    bar.max = size;
    bar.value = done;
    bar.previousElementSibling.textContent = `${name} · ${megabytes(done)} of ${megabytes(size)}`;
}

/** Files from `input`, or dropped on `drop`; `onChoose` gets a list of them. */
function takeFiles(input, drop, onChoose) {
    input.onchange = () => onChoose([...input.files]);
    // A file that misses the field must not replace the page.
    document.ondragover = event => event.preventDefault();
    document.ondrop = event => event.preventDefault();
    drop.ondragover = () => drop.classList.add("over");
    drop.ondragleave = () => drop.classList.remove("over");
    drop.ondrop = event => {
        drop.classList.remove("over");
        onChoose([...event.dataTransfer.files]);
    };
}
