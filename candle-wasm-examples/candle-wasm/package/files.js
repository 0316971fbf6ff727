// Where a model's bytes come from. None of these functions holds more than a few blocks of a file.

/** What is asked of a server at a time, and kept in the cache. */
const BLOCK = 4 << 20;
const CACHE = "candle-models";
/** The cache knows whole answers only, so that each block gets an address of its own, with this parameter. */
const BLOCK_NAME = "candle-block";
const ATTEMPTS = 3;
/** How long nothing may come, of a server or of the cache, in milliseconds. */
const PATIENCE = 20_000;

const INDEX = "model.safetensors.index.json";
/** Files that a folder may have: how tokens are chosen, and the chat template in either place. */
const OTHERS = ["generation_config.json", "tokenizer_config.json", "chat_template.jinja"];
const fieldOf = name => name.split(".")[0];

const nameOf = url => decodeURIComponent(url.pathname.split("/").pop());

export function fromBlob(blob, name = blob.name ?? "file", hooks = {}) {
    let done = 0;
    return {
        name,
        size: blob.size,
        async read(start, length) {
            const bytes = new Uint8Array(await blob.slice(start, start + length).arrayBuffer());
            done = Math.max(done, start + bytes.length);
            hooks.onProgress?.(name, done, blob.size);
            return bytes;
        },
    };
}

export async function fromUrl(url, hooks = {}) {
    const address = new URL(url, globalThis.location?.href).href;
    const name = nameOf(new URL(address));
    const store = await Store.open(address, hooks);
    const about = await describe(name, store);
    const read = new Set();
    let last = { index: -1, bytes: null };

    const block = async index => {
        if (last.index === index) return last.bytes;
        const start = index * BLOCK;
        const length = Math.min(BLOCK, about.size - start);
        const key = `${about.tag}-${about.size}-${index}`;
        let bytes = await store.get(key);
        if (bytes?.length !== length) {
            bytes = await fetchPart(store, name, start, length);
            await store.put(key, bytes);
        }
        last = { index, bytes };
        if (!read.has(index)) {
            read.add(index);
            hooks.onProgress?.(name, Math.min(read.size * BLOCK, about.size), about.size);
        }
        return bytes;
    };

    return {
        name,
        size: about.size,
        async read(start, length) {
            const end = Math.min(start + length, about.size);
            const first = Math.floor(start / BLOCK);
            if (end <= (first + 1) * BLOCK) {
                return (await block(first)).subarray(start - first * BLOCK, end - first * BLOCK);
            }
            const whole = new Uint8Array(end - start);
            for (let at = start; at < end;) {
                const index = Math.floor(at / BLOCK);
                const bytes = await block(index);
                const until = Math.min(end, (index + 1) * BLOCK);
                whole.set(bytes.subarray(at - index * BLOCK, until - index * BLOCK), at - start);
                at = until;
            }
            return whole;
        },
    };
}

export async function fromAddress(address, hooks = {}) {
    address = hub(address.trim());
    const path = new URL(address, globalThis.location?.href).pathname;
    if (path.endsWith(".gguf")) return { gguf: await fromUrl(address, hooks) };
    return fromFolder(address, hooks);
}

/** `owner/name`, with a revision and a file if they are given, in any of the forms that name a model on the Hub. */
const HUB = /^(?!\.)(?:https:\/\/huggingface\.co\/|hf\.co\/)?([\w.-]+\/[\w.-]+)(?:@([\w.-]+))?(?::(.+))?$/;

/** The address of a model on the Hugging Face Hub; what is no name of one stays as it is. */
function hub(address) {
    const [, name, revision = "main", file] = HUB.exec(address) ?? [];
    if (!name || (file === undefined && name.endsWith(".gguf"))) return address;
    if (file !== undefined && !/^[\w./-]+\.gguf$/.test(file)) {
        throw new Error(`${address}: found \`${file}\` after the name, expected a file: owner/name:file.gguf`);
    }
    return `https://huggingface.co/${name}/resolve/${revision}/${file ?? ""}`;
}

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

/**
 * Asks the browser not to throw away what is kept when it needs room. Gives whether it will not; a browser may ask the user. Only in a page:
 * workers have no such function.
 */
export const persist = async () => await navigator.storage?.persist?.() ?? false;

export async function fromFolder(url, hooks = {}) {
    const base = new URL(url.endsWith("/") ? url : `${url}/`, globalThis.location?.href);
    const at = file => new URL(file, base).href;
    const config = await small(at("config.json"), hooks);
    const tokenizer = await small(at("tokenizer.json"), hooks);
    const others = await Promise.all(OTHERS.map(async name => [fieldOf(name), await small(at(name), hooks, true)]));
    const index = await small(at(INDEX), hooks, true);
    const names = index ? shards(index) : ["model.safetensors"];
    const weights = [];
    for (const name of names) weights.push(await fromUrl(at(name), hooks));
    return { config, tokenizer, ...Object.fromEntries(others), weights };
}

export async function fromFiles(files, hooks = {}) {
    const byName = new Map([...files].map(file => [file.name, file]));
    const gguf = [...byName.keys()].filter(name => name.endsWith(".gguf"));
    if (gguf.length > 1) throw new Error(`choose one GGUF file: found ${gguf.join(", ")}`);
    if (gguf.length === 1) return { gguf: fromBlob(byName.get(gguf[0]), gguf[0], hooks) };
    const bytes = async name => new Uint8Array(await byName.get(name).arrayBuffer());
    const missing = ["config.json", "tokenizer.json"].filter(name => !byName.has(name));
    const weights = [...byName.keys()].filter(name => name.endsWith(".safetensors")).sort();
    if (weights.length === 0) missing.push("model.safetensors");
    if (missing.length > 0) {
        throw new Error(
            `these files are not a model: choose one .gguf file, or config.json, tokenizer.json and model.safetensors together `
            + `(missing: ${missing.join(", ")})`,
        );
    }
    return {
        config: await bytes("config.json"),
        tokenizer: await bytes("tokenizer.json"),
        ...Object.fromEntries(await Promise.all(
            OTHERS.filter(name => byName.has(name)).map(async name => [fieldOf(name), await bytes(name)]),
        )),
        weights: weights.map(name => fromBlob(byName.get(name), name, hooks)),
    };
}

/** A file that is small enough to be read at once; `undefined` if it may be missing, and is. */
async function small(url, hooks, optional = false) {
    let file;
    try {
        file = await fromUrl(url, hooks);
    } catch (error) {
        if (optional && error.status === 404) return undefined;
        throw error;
    }
    return file.read(0, file.size);
}

/** The shards that an index names. They have to be plain names: an index must not reach outside of its folder. */
function shards(index) {
    let map;
    try {
        map = JSON.parse(new TextDecoder().decode(index)).weight_map;
    } catch (error) {
        throw new Error(`${INDEX}: ${error.message}`);
    }
    const names = [...new Set(Object.values(map ?? {}))].sort();
    if (names.length === 0) throw new Error(`${INDEX}: field \`weight_map\`: names no tensor`);
    const outside = names.find(name => typeof name !== "string" || !/^[\w.-]+$/.test(name) || name.startsWith("."));
    if (outside !== undefined) {
        throw new Error(`${INDEX}: field \`weight_map\`: expected file names in the same folder, found ${outside}`);
    }
    return names;
}

/** Size and version of a file. Without a network, what was kept of an earlier visit. */
async function describe(name, store) {
    let response;
    try {
        response = await request(store, name, 0, 1);
    } catch (error) {
        // Without a network, a file that was not there is not there.
        if (error.status === 404) await store.put("about", encode({ missing: true }));
        const kept = error.status === undefined && await store.get("about");
        const about = kept ? JSON.parse(new TextDecoder().decode(kept)) : {};
        if (about.missing) error.status = 404;
        if (about.size === undefined) throw error;
        return about;
    }
    const size = Number(response.headers.get("Content-Range")?.split("/")[1] ?? NaN);
    // Reading the byte lets the connection be used again.
    await response.arrayBuffer();
    if (!Number.isSafeInteger(size)) {
        throw new Error(
            `${name}: the server does not report the file's size (no readable Content-Range header): download the file and drop it `
            + `on the page`,
        );
    }
    const tag = response.headers.get("ETag") ?? response.headers.get("Last-Modified") ?? "";
    const about = { size, tag };
    await store.put("about", encode(about));
    return about;
}

const encode = value => new TextEncoder().encode(JSON.stringify(value));

async function fetchPart(store, name, start, length) {
    for (let attempt = 1; ; attempt++) {
        try {
            const response = await request(store, name, start, length);
            const bytes = await readAll(response, name);
            if (bytes.length === length) return bytes;
            throw new Error(`${name}: requested ${length} bytes at ${start}, but received ${bytes.length}`);
        } catch (error) {
            // What the server refuses it will refuse again.
            if (error.status !== undefined || attempt === ATTEMPTS) throw error;
            await new Promise(done => setTimeout(done, 300 * attempt));
        }
    }
}

/** A body's bytes, or an error when none has come for a while: a connection can stay open and silent. */
async function readAll(response, name) {
    const reader = response.body.getReader();
    const pieces = [];
    for (;;) {
        const { done, value } = await within(reader.read(), name).catch(error => {
            reader.cancel().catch(() => {});
            throw error;
        });
        if (done) break;
        pieces.push(value);
    }
    const bytes = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
    let at = 0;
    for (const piece of pieces) {
        bytes.set(piece, at);
        at += piece.length;
    }
    return bytes;
}

/** What a promise gives, or an error when it takes too long. */
function within(promise, what) {
    let timer;
    const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`${what}: no data for ${PATIENCE / 1000} s`)), PATIENCE);
    });
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** An answer to a range request; every other answer is an error that says what to do. */
async function request({ address, cache }, name, start, length) {
    let response;
    const stop = new AbortController();
    try {
        const answer = fetch(address, {
            headers: { Range: `bytes=${start}-${start + length - 1}` },
            // What is kept in one cache needs no room in the other.
            cache: cache ? "no-store" : "default",
            signal: stop.signal,
        });
        response = await within(answer, name);
    } catch (error) {
        stop.abort();
        throw new Error(
            `${name}: cannot load it from ${address} (${error.message}): check the URL and the network, and that the server allows `
            + `cross-origin requests (CORS)`,
        );
    }
    if (response.status === 206) return response;
    stop.abort();
    const failed = (problem, status = response.status) => Object.assign(new Error(`${name}: ${problem}`), { status });
    if (response.status === 200) {
        // Servers of apps have one for every address that they do not know.
        const isPage = response.headers.get("Content-Type")?.startsWith("text/html");
        if (isPage) throw failed(`the server returned an HTML page for ${address}, so the file does not exist: check the URL`, 404);
        throw failed("the server does not support HTTP range requests: download the file and drop it on the page");
    }
    if (response.status === 416) throw failed("the file is empty or was truncated");
    throw failed(`the server returned ${response.status} ${response.statusText} for ${address}: check the URL`);
}

/** Blocks of one file in the Cache API. Without it, or without room in it, nothing is kept. */
class Store {
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
            return kept && await readAll(kept, "the browser's cache");
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
