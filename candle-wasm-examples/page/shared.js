// What the scripts of all pages share.

export const at = id => document.getElementById(id);

export const megabytes = bytes => bytes < 1e9 ? `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;

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

    /** The worker, which is made where there is none: after a restart only when it is asked, as it may not start at all. */
    start() {
        if (this.worker) return this.worker;
        // What a page's address asks for, such as `?threads=4`, is for its worker too.
        const url = Object.assign(new URL(this.url), { search: location.search });
        this.worker = new Worker(url, { type: "module" });
        this.worker.onmessage = ({ data }) => this.hear(data);
        this.worker.onerror = event => this.restart(event.message || "cannot start the worker: check the network");
        return this.worker;
    }

    /** Resolves with the worker's result. */
    ask(message) {
        const id = this.nextId++;
        return new Promise((resolve, reject) => {
            this.answers.set(id, { resolve, reject });
            this.start().postMessage({ ...message, id });
        });
    }

    /** Says something that has no answer. */
    tell(message) {
        this.start().postMessage(message);
    }

    /** A worker that is not to be used again is replaced; what it was asked fails. */
    restart(message) {
        this.worker?.terminate();
        this.worker = null;
        const advice = this.onLost();
        for (const { reject } of this.answers.values()) reject(Object.assign(new Error(`${message}. ${advice}`), { lost: true }));
        this.answers.clear();
    }

    hear(data) {
        const answer = this.answers.get(data.id);
        if (data.kind !== "done" && data.kind !== "failed") return this.receive[data.kind]?.(data);
        if (data.fatal) return this.restart(data.message);
        this.answers.delete(data.id);
        if (data.kind === "done") answer?.resolve(data.result);
        else answer?.reject(Object.assign(new Error(data.message), { kept: data.kept }));
    }
}

/** A field that is not valid may lie in closed `details`, where no browser can show it: they are opened, and `box` says what is wrong. */
export function revealInvalid(form, box) {
    form.addEventListener("invalid", ({ target }) => {
        const details = target.closest("details");
        if (details) details.open = true;
        const label = target.labels[0]?.firstChild.textContent.trim() ?? target.id;
        box.textContent = `${label}: ${target.validationMessage}`;
    }, true);
}
