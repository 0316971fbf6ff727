// What the scripts of all pages share.

export const at = id => document.getElementById(id);

/** A worker that is asked for one thing after another; worker.js has its side. */
export class Tasks {
    /**
     * `receive` takes, by `kind`, the messages that are no answers. When a worker had to be replaced `onLost` hears it; it gives what to
     * do now.
     */
    constructor(url, receive = {}, onLost = () => "Try again") {
        Object.assign(this, { url, receive, onLost, answers: new Map(), nextId: 0 });
        this.start();
    }

    start() {
        this.worker = new Worker(this.url, { type: "module" });
        this.worker.onmessage = ({ data }) => this.hear(data);
        this.worker.onerror = event => this.restart(event.message || "the worker cannot be started: reload the page");
    }

    /** Resolves with the worker's result. */
    ask(message) {
        const id = this.nextId++;
        return new Promise((resolve, reject) => {
            this.answers.set(id, { resolve, reject });
            this.worker.postMessage({ ...message, id });
        });
    }

    /** Says something that has no answer. */
    tell(message) {
        this.worker.postMessage(message);
    }

    /** A worker that is not to be used again is replaced; what it was asked fails. */
    restart(message) {
        this.worker.terminate();
        this.start();
        const advice = this.onLost();
        for (const { reject } of this.answers.values()) reject(new Error(`${message}. ${advice}`));
        this.answers.clear();
    }

    hear(data) {
        const answer = this.answers.get(data.id);
        if (data.kind !== "done" && data.kind !== "failed") return this.receive[data.kind]?.(data);
        if (data.fatal) return this.restart(data.message);
        this.answers.delete(data.id);
        if (data.kind === "done") answer?.resolve(data.result);
        else answer?.reject(new Error(data.message));
    }
}

/** Loads the model that a page's form asks for, and shows how that goes. Gives whether there is one now. */
export async function loadModel(tasks, source, files) {
    for (const id of ["model-error", "text-error", "notice", "device-line"]) at(id).textContent = "";
    at("progress").replaceChildren();
    at("state").textContent = "Loading …";
    try {
        if (source === "url" && !at("url").value.trim()) throw new Error("give the address of a model");
        if (source === "files" && files.length === 0) throw new Error("choose or drop a model's files");
        const request = { kind: "load", source, address: at("url").value, files, device: at("device").value };
        const { device, reason, seconds } = await tasks.ask(request);
        at("progress").replaceChildren();
        at("state").textContent = `Ready: loaded in ${seconds.toFixed(1)} s`;
        at("device-line").textContent = deviceLine(device, reason);
        return true;
    } catch (error) {
        at("state").textContent = "No model is loaded";
        at("model-error").textContent = error.message;
        return false;
    }
}

/** Where a model runs. A browser need not name its GPU; `reason` is null where it runs on one. */
function deviceLine(device, reason) {
    if (reason !== null) return `On the CPU: ${reason}`;
    return `On ${device.replace(/: *$/, ", a GPU that the browser does not name")}`;
}

const megabytes = bytes => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

/** A bar in `box` for each file that is on its way. */
export function showProgress(box, { name, done, size }) {
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
