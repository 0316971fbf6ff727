// Runs the list beside the page's thread.
import { answer, fetched, from } from "../worker.js";

const module = fetched(from(new URL("wasm/", import.meta.url)));
let checker = null;

/** What the browser tells of the adapter, for a report. */
async function adapter() {
    const adapter = await navigator.gpu?.requestAdapter();
    if (!adapter) return null;
    const { vendor, architecture, device, description } = adapter.info;
    const limits = {};
    for (const name in adapter.limits) limits[name] = adapter.limits[name];
    return { info: { vendor, architecture, device, description }, features: [...adapter.features].sort(), limits };
}

answer({
    async open() {
        const { Checker, list } = await module();
        const about = { list: JSON.parse(list()), adapter: await adapter() };
        checker = await Checker.open();
        return about;
    },

    async layers() {
        await checker.layers(json => postMessage({ kind: "layer", record: JSON.parse(json) }));
    },

    async check({ dtype }) {
        await checker.check(dtype, json => postMessage({ kind: "records", records: JSON.parse(json) }));
    },
});
