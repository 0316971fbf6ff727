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
        this.worker.onerror = event => this.restart(event.message || "cannot start the worker: reload the page");
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
