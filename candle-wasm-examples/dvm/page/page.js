// What the page shows. All work is done in worker.js.
import { LANGUAGE_MODELS, ModelForm } from "../model.js";
import { at, revealInvalid, Tasks } from "../shared.js";

const KEY = "candle-dvm-key";
const RELAYS = "candle-dvm-relays";
/** Jobs that the table shows; the journal knows all. */
const ROWS = 200;

let loaded = false;
let serving = false;
/** Lets go of what keeps the browser from freezing this tab. */
let letGo = null;

const form = new ModelForm(at("model"), LANGUAGE_MODELS, load);
const tasks = new Tasks(new URL("worker.js", import.meta.url), {
    ...ModelForm.receive,
    event: ({ event }) => happened(event),
}, () => {
    loaded = false;
    form.lost();
    served(false);
    return "Load the model again, then start";
});

function busy(yes) {
    at("load").disabled = yes || serving;
    at("start").disabled = yes || serving || !loaded;
    at("stop").disabled = yes || !serving;
    document.body.ariaBusy = String(yes);
}

async function load() {
    loaded = false;
    busy(true);
    loaded = await form.load(tasks) !== null;
    busy(false);
}

function served(yes) {
    serving = yes;
    if (!yes) {
        at("status").textContent = "Not serving";
        for (const item of at("relay-states").children) item.className = "";
        letGo?.();
        letGo = null;
    }
}

/** What of the storage is kept; a browser may forbid it. */
function keep(name, value) {
    try {
        if (value) localStorage.setItem(name, value);
        else localStorage.removeItem(name);
    } catch (error) {
        at("service-error").textContent = `This browser cannot save data for this page: ${error.message}`;
    }
}

function kept(name) {
    try {
        return localStorage.getItem(name) ?? "";
    } catch {
        return "";
    }
}

async function start() {
    at("service-error").textContent = "";
    busy(true);
    try {
        const relays = at("relays").value.split("\n").map(relay => relay.trim()).filter(relay => relay);
        if (relays.length === 0) throw new Error("Relays: enter at least one address, such as wss://relay.example.com");
        const number = id => {
            const value = at(id).valueAsNumber;
            if (!Number.isInteger(value)) throw new Error(`${at(id).parentElement.firstChild.textContent.trim()}: enter a whole number`);
            return value;
        };
        const settings = {
            name: at("name").value, running: number("running"), "max-tokens": number("max-tokens"), "min-work": number("min-work"),
        };
        const { npub, nsec, journal } = await tasks.ask({ kind: "start", secret: at("secret").value, relays, settings });
        serving = true;
        at("secret").value = nsec;
        keep(KEY, at("keep").checked ? nsec : "");
        keep(RELAYS, at("relays").value);
        at("public-key").textContent = npub;
        at("journal").textContent = journal;
        at("facts").hidden = false;
        at("status").textContent = "Serving";
        stayAwake();
        watch();
    } catch (error) {
        at("service-error").textContent = error.message;
    }
    busy(false);
}

async function stop() {
    busy(true);
    at("status").textContent = "Stopping: waiting for running jobs …";
    try {
        await tasks.ask({ kind: "stop" });
    } catch (error) {
        at("service-error").textContent = error.message;
    }
    served(false);
    busy(false);
}

/** Browsers do not freeze tabs that hold a lock. */
function stayAwake() {
    navigator.locks?.request(`candle-dvm-${crypto.randomUUID()}`, () => new Promise(done => { letGo = done; }));
}

async function watch() {
    while (serving) {
        const status = await tasks.ask({ kind: "status" }).catch(() => null);
        if (serving && status) at("status").textContent = status;
        await new Promise(done => setTimeout(done, 1000));
    }
}

function happened(event) {
    if (event.job) return aboutJob(event);
    if (event.relay) return aboutRelay(event);
    if (event.message === "failed") {
        at("service-error").textContent = `${event.error}. Start the service again`;
        served(false);
        busy(false);
    }
}

function aboutRelay({ relay, message, reason }) {
    if (message !== "connected" && message !== "not connected") return;
    const id = `relay-${relay}`;
    let item = document.getElementById(id);
    if (!item) {
        item = Object.assign(document.createElement("li"), { id });
        at("relay-states").append(item);
    }
    item.className = message === "connected" ? "up" : "";
    item.textContent = reason ? `${relay}: ${reason}` : relay;
}

const CELLS = ["at", "job", "customer", "state", "tokens", "seconds"];

function rowOf(job) {
    const id = `job-${job}`;
    let row = document.getElementById(id);
    if (!row) {
        row = Object.assign(document.createElement("tr"), { id });
        for (const name of CELLS) row.append(Object.assign(document.createElement("td"), { className: name }));
        set(row, "at", new Date().toLocaleTimeString());
        set(row, "job", job.slice(0, 12), job);
        at("jobs").tBodies[0].prepend(row);
        if (at("jobs").tBodies[0].rows.length > ROWS) at("jobs").tBodies[0].lastElementChild.remove();
        at("jobs").hidden = false;
        at("no-jobs").hidden = true;
    }
    return row;
}

function set(row, name, text, title = text) {
    Object.assign(row.cells[CELLS.indexOf(name)], { textContent: text, title });
}

function aboutJob(event) {
    const row = rowOf(event.job);
    const state = (text, kind = "") => {
        set(row, "state", text);
        row.cells[CELLS.indexOf("state")].className = `state ${kind}`;
    };
    if (event.customer) set(row, "customer", event.customer.slice(0, 12), event.customer);
    switch (event.message) {
        case "accepted": return state("accepted");
        case "resumed": return state("resumed");
        case "refused": return state(`refused: ${event.reason}`, "problem");
        case "cancelled by its customer": return state("cancelled");
        case "generated":
            set(row, "tokens", String(event.tokens));
            return set(row, "seconds", event.seconds.toFixed(1));
        case "fails": return lost(event.problem);
        case "answered": return event.is_result ? state("result sent", "result") : state("error sent", "problem");
    }
}

/** Without its GPU the machine would answer all that comes with an error. */
function lost(problem) {
    if (!/the GPU (was lost|reports)/.test(problem) || !serving) return;
    at("service-error").textContent = `${problem}. Load the model again, then start`;
    loaded = false;
    form.lost();
    stop();
}

at("service-form").onsubmit = event => {
    event.preventDefault();
    start();
};
at("stop").onclick = stop;
revealInvalid(at("service-form"), at("service-error"));
onbeforeunload = event => {
    if (serving) event.preventDefault();
};

at("secret").value = kept(KEY);
at("keep").checked = at("secret").value !== "";
at("relays").value = kept(RELAYS);
load();
