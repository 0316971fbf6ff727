// A file on a server, read in blocks: those that come next are on their way while one is used, and what came is kept meanwhile.
import { BLOCK, nameOf } from "./store.js";
import { describe, fetchPart } from "./transport.js";

/** How many blocks are asked for before they are needed: browsers open six connections to a server. */
const AHEAD = 5;
/** How many blocks may wait to be kept. */
const WRITES = 4;

export class Blocks {
    #store;
    #hooks;
    #name;
    #about = null;
    /** Blocks by their index, or promises of them, the one that was used last at the end. */
    #held = new Map();
    #writes = new Set();
    #read = new Set();
    #last = -1;

    constructor(store, hooks) {
        this.#store = store;
        this.#hooks = hooks;
        this.#name = nameOf(new URL(store.address));
    }

    /** The file, once its size is known: the interface `PartFile`. */
    async open() {
        this.#about = await describe(this.#name, this.#store);
        return { name: this.#name, size: this.#about.size, read: (start, length) => this.#part(start, length) };
    }

    get #count() {
        return Math.ceil(this.#about.size / BLOCK);
    }

    async #part(start, length) {
        const end = Math.min(start + length, this.#about.size);
        const first = Math.floor(start / BLOCK);
        if (end <= (first + 1) * BLOCK) {
            return (await this.#block(first)).subarray(start - first * BLOCK, end - first * BLOCK);
        }
        const whole = new Uint8Array(end - start);
        for (let at = start; at < end;) {
            const index = Math.floor(at / BLOCK);
            const bytes = await this.#block(index);
            const until = Math.min(end, (index + 1) * BLOCK);
            whole.set(bytes.subarray(at - index * BLOCK, until - index * BLOCK), at - start);
            at = until;
        }
        return whole;
    }

    async #block(index) {
        const bytes = this.#ask(index);
        // Who reads one block after another gets the next ones sooner; who looks here and there, only those.
        if (index === this.#last + 1) {
            for (let next = index + 1; next < Math.min(this.#count, index + 1 + AHEAD); next++) this.#ask(next);
        }
        this.#last = index;
        const found = await bytes;
        if (!this.#read.has(index)) {
            this.#read.add(index);
            this.#hooks.onProgress?.(this.#name, Math.min(this.#read.size * BLOCK, this.#about.size), this.#about.size);
            // Whoever has the whole file may close the page.
            if (this.#read.size === this.#count) await Promise.all(this.#writes);
        }
        return found;
    }

    /** A promise of a block, which is on its way from now on. */
    #ask(index) {
        const held = this.#held.get(index) ?? this.#bring(index);
        this.#held.delete(index);
        this.#held.set(index, held);
        for (const [old] of this.#held) {
            if (this.#held.size <= AHEAD + 2) break;
            this.#held.delete(old);
        }
        return held;
    }

    #bring(index) {
        const bytes = this.#bytes(index);
        // One that failed is asked for anew by who needs it; one that nobody needs fails nobody.
        bytes.catch(() => {
            if (this.#held.get(index) === bytes) this.#held.delete(index);
        });
        return bytes;
    }

    async #bytes(index) {
        const start = index * BLOCK;
        const length = Math.min(BLOCK, this.#about.size - start);
        const key = `${this.#about.tag}-${this.#about.size}-${index}`;
        const kept = await this.#store.get(key);
        if (kept?.length === length) return kept;
        const bytes = await fetchPart(this.#store, this.#name, start, length);
        while (this.#writes.size >= WRITES) await Promise.race(this.#writes);
        const write = this.#store.put(key, bytes).finally(() => this.#writes.delete(write));
        this.#writes.add(write);
        return bytes;
    }
}
