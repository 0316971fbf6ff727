// Where a model's bytes come from. None of these functions holds more than a few blocks of a file.
import { Blocks } from "./blocks.js";
import { Store } from "./store.js";

export { deleteKept, keptFiles } from "./store.js";

const INDEX = "model.safetensors.index.json";
/** Files that a folder may have: how tokens are chosen, and the chat template in either place. */
const OTHERS = ["generation_config.json", "tokenizer_config.json", "chat_template.jinja"];
const fieldOf = name => name.split(".")[0];

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
    return new Blocks(await Store.open(address, hooks), hooks).open();
}

export async function fromAddress(address, hooks = {}) {
    address = hub(address.trim());
    const path = new URL(address, globalThis.location?.href).pathname;
    if (path.endsWith(".gguf")) return { gguf: await fromUrl(address, hooks) };
    return fromFolder(address, hooks);
}

/** `owner/name`, with a revision and a file if they are given, in any of the forms that name a model on the Hub. */
const HUB = /^(?!\.)(?:https:\/\/huggingface\.co\/|hf\.co\/)?([\w.-]+\/[\w.-]+)(?:@([\w.-]+))?(?::(.+))?$/;

/** The address of a model on the Hugging Face Hub, or of its file of one of `endings`; what is no name of one stays as it is. */
export function hub(address, endings = ["gguf"]) {
    const [, name, revision = "main", file] = HUB.exec(address) ?? [];
    if (!name || (file === undefined && endings.includes(name.split(".").pop()))) return address;
    if (file !== undefined && !(/^[\w./-]+$/.test(file) && endings.includes(file.split(".").pop()))) {
        throw new Error(`${address}: found \`${file}\` after the name, expected a file: owner/name:file.${endings[0]}`);
    }
    return `https://huggingface.co/${name}/resolve/${revision}/${file ?? ""}`;
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
