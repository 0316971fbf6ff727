// The models that the browser keeps for the next visit.
import { deleteKept, keptFiles, persist } from "./candle-wasm/files.js";
import { megabytes } from "./shared.js";

/** Has the browser keep them also when it needs room, if it or its user agrees. */
export function keepModels() {
    // Without it they are kept as long as there is room.
    persist().catch(() => {});
}

/** A list of them in `details`, each with its size and a button that deletes it. */
export class KeptModels {
    constructor(details, box, state) {
        Object.assign(this, { details, box, state });
        details.ontoggle = () => this.list();
    }

    async list() {
        if (!this.details.open) return;
        try {
            const files = await keptFiles();
            const sum = files.reduce((sum, { bytes }) => sum + bytes, 0);
            this.box.replaceChildren(...files.sort((a, b) => b.bytes - a.bytes).map(file => this.item(file)));
            const stays = await navigator.storage?.persisted?.();
            this.state.textContent = files.length === 0 ? "None yet" : `${megabytes(sum)} in all. `
                + (stays ? "They stay until you delete them." : "The browser may delete them when it needs space.");
        } catch (error) {
            this.state.textContent = `The browser's cache cannot be read: ${error.message}`;
        }
    }

    item(file) {
        const { url, name, bytes, size } = file;
        const item = document.createElement("li");
        const part = bytes < size ? `${megabytes(bytes)} of ${megabytes(size)}` : megabytes(size);
        const text = Object.assign(document.createElement("span"), { textContent: `${name} · ${part}`, title: url });
        const remove = document.createElement("button");
        Object.assign(remove, { type: "button", textContent: "Delete", ariaLabel: `Delete ${name}` });
        remove.onclick = async () => {
            remove.disabled = true;
            await deleteKept(url).catch(error => { this.state.textContent = `${name} was not deleted: ${error.message}`; });
            await this.list();
        };
        item.append(text, remove);
        return item;
    }
}
