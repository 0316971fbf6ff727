// What the page shows. The list runs in worker.js.
import { at, Tasks } from "../shared.js";

const MARKS = { passed: "✓", unsupported: "–", failed: "✗", undefined: "" };
/** What of a cell's layouts counts most. */
const WORST = ["failed", "unsupported", "passed", "undefined"];

let about = null;
let records = [];
/** Those of layers of candle-nn. */
let layers = [];
let stopped = false;
let seconds = 0;

const tasks = new Tasks(new URL("worker.js", import.meta.url), {
    progress({ done, size }) {
        const of = size ? ` of ${(size / 1e6).toFixed(1)}` : "";
        if (about === null) at("adapter").textContent = `Loading … ${(done / 1e6).toFixed(1)}${of} MB`;
    },
    records(message) {
        records.push(...message.records);
        const { ops, dtypes, layouts } = about.list;
        at("progress").value = records.length / (ops.length * dtypes.length * layouts.length);
    },
    layer({ record }) {
        layers.push(record);
    },
}, () => "Reload the page");

async function start() {
    try {
        about = await tasks.ask({ kind: "open" });
        const { info, features, limits } = about.adapter;
        const words = [info.vendor, info.architecture, info.device, info.description].filter(word => word);
        at("adapter").textContent = words.join(" · ") || "The browser does not identify the adapter.";
        at("features").textContent = features.length ? `Features: ${features.join(", ")}` : "No optional features";
        at("limits").tBodies[0].replaceChildren(...Object.entries(limits).map(([name, value]) => row(name, value.toLocaleString("en"))));
        at("more").hidden = false;
        at("run").disabled = false;
    } catch (error) {
        at("adapter").textContent = error.lost ? "The WebAssembly module could not be loaded" : "No GPU to run on";
        at("adapter-error").textContent = error.message;
    }
}

async function run() {
    records = [];
    layers = [];
    stopped = false;
    for (const id of ["run-error", "copied"]) at(id).textContent = "";
    for (const id of ["failed", "unsupported", "table", "legend", "json", "layers"]) at(id).hidden = true;
    busy(true);
    const begin = performance.now();
    try {
        for (const dtype of about.list.dtypes) {
            at("summary").textContent = `Running ${dtype} …`;
            await tasks.ask({ kind: "check", dtype });
        }
        at("summary").textContent = "Running layers …";
        await tasks.ask({ kind: "layers" });
    } catch (error) {
        if (!stopped) at("run-error").textContent = error.message;
    }
    seconds = (performance.now() - begin) / 1000;
    busy(false);
    show();
}

function busy(running) {
    at("run").disabled = running || stopped;
    at("stop").disabled = !running;
    at("copy").disabled = running;
    at("progress").hidden = !running;
    at("progress").value = 0;
    document.body.ariaBusy = String(running);
}

const counts = () => {
    const counts = { passed: 0, failed: 0, unsupported: 0, undefined: 0 };
    for (const { outcome } of [...records, ...layers]) counts[outcome.is]++;
    return counts;
};

/** The records of an op and a dtype as one. */
function cell(op, dtype) {
    const all = records.filter(record => record.op === op && record.dtype === dtype);
    const is = WORST.find(is => all.some(record => record.outcome.is === is));
    const milliseconds = all.reduce((sum, record) => sum + record.milliseconds, 0);
    return { is, milliseconds, why: all.find(record => record.outcome.is === is)?.outcome.why };
}

function show() {
    const { passed, failed, unsupported, undefined: none } = counts();
    const { ops, dtypes, layouts } = about.list;
    const all = ops.length * dtypes.length * layouts.length + about.list.layers.length;
    const ran = records.length + layers.length;
    at("summary").textContent = `${ran < all ? `Ran only ${ran} of ${all} checks: ` : ""}${passed} passed, `
        + `${failed} failed, ${unsupported} unsupported here, ${none} not applicable, in ${seconds.toFixed(1)} s`;

    const wrong = failures();
    at("failed").hidden = wrong.length === 0;
    at("failed").querySelector("tbody").replaceChildren(
        ...wrong.map(({ op, dtype, layout, outcome }) => row(op, dtype, layout, outcome.why)),
    );

    const reasons = new Map();
    for (const { op, dtype, outcome } of records) {
        if (outcome.is !== "unsupported") continue;
        // The same reason names each op: told apart are dtypes.
        const key = dtype === "f64" ? "all ops of f64" : `${op} of ${dtype}`;
        if (!reasons.has(key)) reasons.set(key, outcome.why);
    }
    at("unsupported").hidden = reasons.size === 0;
    at("unsupported").querySelector("ul").replaceChildren(...[...reasons].map(([what, why]) => {
        const item = document.createElement("li");
        item.textContent = `${what}: ${why}`;
        return item;
    }));

    at("layers").hidden = layers.length === 0;
    at("layers").querySelector("tbody").replaceChildren(...layers.map(({ layer, outcome, milliseconds }) => {
        const tr = row(layer, MARKS[outcome.is], milliseconds.toFixed(0));
        tr.cells[1].className = outcome.is;
        return tr;
    }));

    at("table").tHead.replaceChildren(row("op", ...dtypes, "ms"));
    const rows = [];
    let family = null;
    for (const op of ops) {
        if (op.family !== family) {
            family = op.family;
            const heading = Object.assign(document.createElement("th"), { textContent: family, colSpan: dtypes.length + 2, scope: "rowgroup" });
            const tr = document.createElement("tr");
            tr.append(heading);
            rows.push(tr);
        }
        const cells = dtypes.map(dtype => cell(op.name, dtype));
        const tr = row(op.name, ...cells.map(({ is }) => MARKS[is] ?? ""), cells.reduce((sum, one) => sum + one.milliseconds, 0).toFixed(0));
        cells.forEach(({ is, why }, i) => {
            const td = tr.cells[i + 1];
            td.className = is ?? "";
            if (is) td.title = why ? `${is}: ${why}` : is === "undefined" ? "no such op" : is;
        });
        rows.push(tr);
    }
    at("table").tBodies[0].replaceChildren(...rows);
    at("table").hidden = at("legend").hidden = false;
}

function row(...texts) {
    const tr = document.createElement("tr");
    for (const text of texts) tr.append(Object.assign(document.createElement("td"), { textContent: text }));
    return tr;
}

/** All that is not as on the CPU. */
const failures = () => [
    ...records.filter(record => record.outcome.is === "failed"),
    ...layers.filter(record => record.outcome.is === "failed")
        .map(({ layer, outcome }) => ({ op: layer, dtype: "f32", layout: "contiguous", outcome })),
];

/** What someone who looks for the fault needs. */
function report() {
    const { ops, dtypes, version } = about.list;
    return {
        page: "candle ops",
        version,
        made: new Date().toISOString(),
        browser: navigator.userAgent,
        adapter: about.adapter,
        seconds,
        counts: counts(),
        failed: failures(),
        layers,
        ops: ops.map(({ name }) => ({
            name,
            dtypes: Object.fromEntries(dtypes.map(dtype => {
                const { is, milliseconds, why } = cell(name, dtype);
                return [dtype, { is, milliseconds, why }];
            })),
        })),
    };
}

at("run").onclick = run;
at("stop").onclick = async () => {
    stopped = true;
    tasks.restart("stopped");
    at("run").disabled = true;
    // The worker that takes its place has to open the GPU again.
    await start();
};
at("copy").onclick = async () => {
    const json = JSON.stringify(report(), null, 1);
    try {
        await navigator.clipboard.writeText(json);
        at("copied").textContent = `Copied, ${(json.length / 1000).toFixed(0)} kB: paste it into a report`;
    } catch {
        at("json").value = json;
        at("json").hidden = false;
        at("json").select();
        at("copied").textContent = "The browser blocks copying: copy the text below";
    }
};

start();
