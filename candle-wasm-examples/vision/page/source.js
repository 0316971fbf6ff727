// Which files a form asks for: weights, and where the classes' names may be.
import { fromBlob, fromUrl, hub } from "../candle-wasm/files.js";

const WEIGHTS = ["safetensors", "pth", "pt"];
/** What may have the names of classes, beside the weights. */
const BESIDE = ["labels.txt", "config.json"];

const endsIn = (name, endings) => endings.includes(name.split(".").pop());

/** The weights, and functions that open files with labels: `chosen` by somebody, or those of the web, which may be missing. */
export async function filesOf({ source, address, files, labels }, hooks) {
    if (source === "files") {
        const weights = files.filter(({ name }) => endsIn(name, WEIGHTS));
        const others = files.filter(({ name }) => endsIn(name, ["txt", "json"]));
        if (weights.length !== 1 || others.length > 1) {
            const found = files.map(({ name }) => name).join(", ");
            throw new Error(
                "these files are not a model of pictures: choose one .safetensors, .pth or .pt file, and one with labels, .txt or .json, if "
                + `there is one (found: ${found})`,
            );
        }
        const open = file => fromBlob(file, file.name, hooks);
        return { weights: open(weights[0]), labels: others.map(file => async () => open(file)), chosen: others.length > 0 };
    }
    let url = new URL(hub(address.trim(), WEIGHTS), globalThis.location?.href);
    if (!endsIn(url.pathname, WEIGHTS)) {
        if (!url.pathname.endsWith("/")) url = new URL(`${url.href}/`);
        url = new URL("model.safetensors", url);
    }
    const places = labels ? [labels] : BESIDE.map(name => new URL(name, url).href);
    return { weights: await fromUrl(url.href, hooks), labels: places.map(place => () => fromUrl(place, hooks)), chosen: false };
}

/**
 * Names the classes of a model that has numbers only, by the first of the files that is there and has labels. Without the network the model is
 * of use with numbers: `onNotice` says so. A file that is no list of labels is an error.
 */
export async function nameClasses(model, { labels, chosen }, onNotice) {
    for (const open of chosen || model.task === "classify" ? labels : []) {
        let file;
        try {
            file = await open();
        } catch (error) {
            if (error.status !== 404) onNotice(`The names of the classes are missing, so they are shown by number: ${error.message}`);
            continue;
        }
        await model.read_labels(file);
        if (model.has_labels) return;
    }
}
