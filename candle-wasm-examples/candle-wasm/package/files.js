// Where a model's bytes come from. None of these functions holds more than a few blocks of a file.

/** What is asked of a server at a time, and kept in the cache. */
const BLOCK = 4 << 20;
const CACHE = "candle-models";
const ATTEMPTS = 3;
/** How long nothing may come, of a server or of the cache, in milliseconds. */
const PATIENCE = 20_000;

const INDEX = "model.safetensors.index.json";

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
    const name = decodeURIComponent(new URL(address).pathname.split("/").pop());
    const store = await Store.open(address, hooks);
    const about = await describe(address, name, store);
    const read = new Set();
    let last = { index: -1, bytes: null };

    const block = async index => {
        if (last.index === index) return last.bytes;
        const start = index * BLOCK;
        const length = Math.min(BLOCK, about.size - start);
        const key = `${about.tag}-${about.size}-${index}`;
        let bytes = await store.get(key);
        if (bytes?.length !== length) {
            bytes = await fetchPart(address, name, start, length);
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
    address = address.trim();
    if (/^[\w.-]+\/[\w.-]+$/.test(address) && !address.endsWith(".gguf")) {
        address = `https://huggingface.co/${address}/resolve/main/`;
    }
    const path = new URL(address, globalThis.location?.href).pathname;
    if (path.endsWith(".gguf")) return { gguf: await fromUrl(address, hooks) };
    return fromFolder(address, hooks);
}

export async function fromFolder(url, hooks = {}) {
    const base = new URL(url.endsWith("/") ? url : `${url}/`, globalThis.location?.href);
    const at = file => new URL(file, base).href;
    const config = await small(at("config.json"), hooks);
    const tokenizer = await small(at("tokenizer.json"), hooks);
    const generation_config = await small(at("generation_config.json"), hooks, true);
    const index = await small(at(INDEX), hooks, true);
    const names = index ? shards(index) : ["model.safetensors"];
    const weights = [];
    for (const name of names) weights.push(await fromUrl(at(name), hooks));
    return { config, tokenizer, generation_config, weights };
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
        generation_config: byName.has("generation_config.json") ? await bytes("generation_config.json") : undefined,
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
async function describe(address, name, store) {
    let response;
    try {
        response = await request(address, name, 0, 1);
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

async function fetchPart(address, name, start, length) {
    for (let attempt = 1; ; attempt++) {
        try {
            const response = await request(address, name, start, length);
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
async function request(address, name, start, length) {
    let response;
    const stop = new AbortController();
    try {
        const answer = fetch(address, {
            headers: { Range: `bytes=${start}-${start + length - 1}` },
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
    const failed = problem => Object.assign(new Error(`${name}: ${problem}`), { status: response.status });
    if (response.status === 200) {
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

    /** The cache knows whole answers only, so that each block gets an address of its own. */
    key(key) {
        const url = new URL(this.address);
        url.hash = "";
        url.searchParams.set("candle-block", key);
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
