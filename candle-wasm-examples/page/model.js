// The form that a model is loaded with, the same on every page that has one.
import { keepModels, KeptModels } from "./kept.js";
import { at, megabytes } from "./shared.js";

const choice = (value, label) => `<label class="choice"><input type="radio" name="source" value="${value}"> ${label}</label>`;

/** `models`, where the page knows some, and `own`, where it comes with one, tell of them; `url` and `files` of the other two places. */
const form = ({ models, own, url, files }) => `
<form id="model-form">
    <fieldset class="row">
        <legend class="hint">Where it comes from</legend>
        ${models ? choice("list", "Suggested") : ""}
        ${own ? choice("default", "Included small model") : ""}
        ${choice("url", "Web")}
        ${choice("files", "Disk")}
    </fieldset>
    <div id="list-box">
        <label for="known">Model</label>
        <select id="known"></select>
        <p class="hint" id="known-hint"></p>
    </div>
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
        <button type="submit" class="${own && !models ? "" : "main"}" id="load">Load</button>
    </div>
</form>
<div id="progress" aria-live="off"></div>
<p id="state" role="status">No model loaded</p>
<p id="device-line" class="hint"></p>
<p class="notice" id="notice" role="status"></p>
<p class="error" id="model-error" role="alert"></p>
<details id="kept">
    <summary>Stored models</summary>
    <ul id="kept-list"></ul>
    <p class="hint" id="kept-state" role="status"></p>
</details>
`;

/** What is said of language models from the web and from disk. */
export const LANGUAGE_MODELS = {
    own: "A 12 MB model with 5.8 million parameters, trained on Rust code.",
    url: {
        label: "URL of a GGUF file or a folder, or a Hugging Face name: owner/model, or owner/model:file.gguf",
        hint: "Llama, Qwen, Gemma, Phi, Mistral, Granite and other families. The browser stores them, so your next visit needs no download.",
    },
    files: "A .gguf file, or config.json, tokenizer.json and .safetensors files together",
};

export class ModelForm {
    /** `texts` as in `form` above; `onLoad` is called when somebody wants a model. */
    constructor(box, texts, onLoad) {
        box.insertAdjacentHTML("beforeend", form(texts));
        this.files = [];
        this.models = texts.models ?? [];
        this.ready = null;
        const element = at("model-form");
        element.querySelector("input[name=source]").checked = true;
        at("known").append(...this.models.map(({ name, bytes }, i) => new Option(`${name} · ${megabytes(bytes)}`, i)));
        element.onchange = () => this.choose();
        element.onsubmit = event => {
            event.preventDefault();
            onLoad();
        };
        takeFiles(at("files"), at("drop"), list => {
            this.files = list;
            at("chosen").textContent = list.map(file => file.name).join(", ") || "or drop them here";
        });
        this.kept = new KeptModels(at("kept"), at("kept-list"), at("kept-state"));
        this.choose();
    }

    get source() {
        return new FormData(at("model-form")).get("source");
    }

    choose() {
        const known = this.models[at("known").value];
        at("list-box").hidden = this.source !== "list";
        at("known-hint").textContent = known
            ? `${known.about}. Licence: ${known.licence}. Downloaded from Hugging Face (${known.address.split(":")[0]}) and stored in this browser.`
            : "";
        at("default-hint").hidden = this.source !== "default";
        at("url-box").hidden = this.source !== "url";
        at("files-box").hidden = this.source !== "files";
    }

    /** What the form asks for, as a worker takes it. */
    request() {
        const { source, files } = this;
        const device = at("device").value;
        if (source === "list") return { kind: "load", source: "url", address: this.models[at("known").value].address, files: [], device };
        return { kind: "load", source, address: at("url").value, files, device };
    }

    /** The model of the list that is asked for, if it is one. */
    known({ source, address }) {
        return source === "url" ? this.models.find(model => model.address === address) : undefined;
    }

    /** What to call the model that is asked for. */
    nameOf(request) {
        const { source, address, files } = request;
        if (source === "default") return "the included model";
        if (source === "files" && files.length > 1) return "the chosen files";
        const path = source === "files" ? files[0].name : address.trim().replace(/\/$/, "");
        return this.known(request)?.name ?? path.split(/[/:]/).pop();
    }

    /** What a worker may say while it loads. */
    static receive = {
        progress: message => showProgress(at("progress"), message),
        notice: ({ message }) => { at("notice").textContent = message; },
    };

    /**
     * Has the worker load what the form asks for, and shows how that goes. Gives what the worker says of the model that is there now: of
     * the one before where the new one's files are no model; `null` without one. `more` is what a page's worker wants to know besides.
     */
    async load(tasks, more = {}) {
        for (const id of ["model-error", "notice", "device-line"]) at(id).textContent = "";
        at("state").textContent = "Loading …";
        const request = { ...this.request(), ...more };
        const { source, address, files } = request;
        try {
            if (source === "url" && !address.trim()) throw missing("enter the URL or name of a model");
            if (source === "files" && files.length === 0) throw missing("choose or drop a model's files");
            this.show(await tasks.ask(request));
            if (source === "url") keepModels();
        } catch (error) {
            if (!error.kept || !this.ready) this.lost();
            else this.show(this.ready, "The previous model is still loaded");
            at("model-error").textContent = error.message;
        }
        at("progress").replaceChildren();
        this.kept.list();
        return this.ready;
    }

    show(ready, state = `Ready: loaded in ${ready.seconds.toFixed(1)} s`) {
        this.ready = ready;
        at("state").textContent = state;
        at("device-line").textContent = deviceLine(ready);
    }

    /** There is no model any more, or none yet. */
    lost(message = "") {
        this.ready = null;
        at("state").textContent = "No model loaded";
        at("device-line").textContent = "";
        at("model-error").textContent = message;
    }
}

/** What the form lacks; the model before is not touched. */
const missing = what => Object.assign(new Error(what), { kept: true });

/** Where a model runs. A browser need not name its GPU; `reason` is null where it runs on one. */
function deviceLine({ device, reason, threads }) {
    if (reason !== null) {
        if (!threads) return `Running on the CPU: ${reason}`;
        const count = threads.count > 1 ? `on ${threads.count} threads` : `on one thread, because ${threads.reason ?? "this build has no more"}`;
        return `Running on the CPU: ${reason}; ${count}`;
    }
    return `Running on ${device.replace(/^webgpu$/, "webgpu, a GPU the browser does not name")}`;
}

/** Files below this size are there before a bar can be read. */
const SMALL = 1e6;

/** A bar in `box` for each file that is on its way. */
function showProgress(box, { name, done, size }) {
    if (size < SMALL) return;
    const id = `progress-${name}`;
    let bar = document.getElementById(id);
    if (done >= size) return bar?.parentElement.remove();
    const of = size ? ` of ${megabytes(size)}` : "";
    if (!bar) {
        const label = document.createElement("label");
        bar = Object.assign(document.createElement("progress"), { id });
        label.append(document.createElement("span"), bar);
        box.append(label);
    }
    if (size) Object.assign(bar, { max: size, value: done });
    bar.previousElementSibling.textContent = `${name} · ${megabytes(done)}${of}`;
}

/** Files from `input`, or dropped on `drop`; `onChoose` gets a list of them. */
export function takeFiles(input, drop, onChoose) {
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
