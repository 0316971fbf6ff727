// What the browser keeps of models: blocks of files in the Cache API.
import { within } from "./transport.js";

/** What is asked of a server at a time, and kept in the cache. */
export const BLOCK = 4 << 20;
const CACHE = "candle-models";
/** The cache knows whole answers only, so that each block gets an address of its own, with this parameter. */
const BLOCK_NAME = "candle-block";

export const nameOf = url => decodeURIComponent(url.pathname.split("/").pop());

/** The files that the browser has kept, with how many bytes it has of each: `[{ url, name, bytes, size }]`. */
export async function keptFiles() {
    if (!globalThis.caches || !await caches.has(CACHE)) return [];
    const files = new Map();
    for (const { url: key } of await (await caches.open(CACHE)).keys()) {
        const url = new URL(key);
        const [, size, index] = /-(\d+)-(\d+)$/.exec(url.searchParams.get(BLOCK_NAME) ?? "") ?? [];
        if (size === undefined) continue;
        url.searchParams.delete(BLOCK_NAME);
        const file = files.get(url.href) ?? { url: url.href, name: nameOf(url), bytes: 0, size: Number(size) };
        file.bytes += Math.min(BLOCK, size - index * BLOCK);
        files.set(url.href, file);
    }
    return [...files.values()];
}

/** Deletes what was kept of a file. */
export async function deleteKept(url) {
    const cache = await caches.open(CACHE);
    for (const key of await cache.keys()) {
        const address = new URL(key.url);
        address.searchParams.delete(BLOCK_NAME);
        if (address.href === url) await cache.delete(key);
    }
}

/** Blocks of one file in the Cache API. Without it, or without room in it, nothing is kept. */
export class Store {
    static async open(address, hooks) {
        let cache = null;
        try {
            if (globalThis.caches) cache = await within(caches.open(CACHE), "the browser's cache");
        } catch {
            // Some browsers refuse it in private windows.
        }
        return new Store(address, hooks, cache);
    }

    constructor(address, hooks, cache) {
        Object.assign(this, { address, hooks, cache });
    }

    key(key) {
        const url = new URL(this.address);
        url.hash = "";
        url.searchParams.set(BLOCK_NAME, key);
        return url.href;
    }

    async get(key) {
        try {
            const kept = this.cache && await within(this.cache.match(this.key(key)), "the browser's cache");
            return kept && new Uint8Array(await within(kept.arrayBuffer(), "the browser's cache"));
        } catch (error) {
            this.leave(error);
        }
    }

    async put(key, bytes) {
        try {
            if (this.cache) await within(this.cache.put(this.key(key), new Response(bytes)), "the browser's cache");
        } catch (error) {
            this.leave(error);
        }
    }

    /** Goes on without the cache. */
    leave(error) {
        this.cache = null;
        this.hooks.onNotice?.(
            error.name === "QuotaExceededError"
                ? "The browser has no space to cache the model: it runs, but must be downloaded again next time. To free space, clear other "
                + "sites' data in the browser's settings."
                : `The browser cannot cache the model (${error.message}): it runs, but must be downloaded again next time.`,
        );
    }
}
