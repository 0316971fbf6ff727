// What the page shows. All work is done in the worker of `embeddings`, whose module this page has too.
import { ModelForm, takeFiles } from "../model.js";
import { SENTENCE_MODELS } from "../models.js";
import { at, Tasks } from "../shared.js";
import { QUESTION, TEXT } from "./example.js";
import { passages, sentences } from "./passages.js";

/** Passages that are shown. */
const MOST = 5;

let loaded = null;
/** The passages whose vectors are known: `{ texts, vectors }`. */
let known = null;

const form = new ModelForm(at("model"), SENTENCE_MODELS, load);
const tasks = new Tasks(new URL("../embeddings/worker.js", import.meta.url), {
    ...ModelForm.receive,
    embedded: ({ done, of }) => { at("embedding").value = done / of; },
}, () => {
    loaded = known = null;
    form.lost();
    return "Load the model again";
});

function busy(yes) {
    at("load").disabled = at("search").disabled = yes;
    document.body.ariaBusy = String(yes);
}

/** Whether there is a model now. */
async function load() {
    busy(true);
    const request = form.request();
    const ready = await form.load(tasks);
    if (ready !== loaded) {
        known = null;
        at("model-name").textContent = ready ? `${form.nameOf(request)} · on the ${ready.reason === null ? "GPU" : "CPU"}` : "";
        at("model-box").open = !ready;
    }
    loaded = ready;
    busy(false);
    return loaded !== null;
}

const vectors = texts => tasks.ask({ kind: "vectors", texts });
/** The cosine of their angle: both have length 1. */
const likeness = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

async function search() {
    at("search-error").textContent = at("status").textContent = "";
    at("results").replaceChildren();
    const texts = passages(at("document").value);
    const question = at("question").value.trim();
    if (texts.length === 0 || !question) {
        at("search-error").textContent = texts.length ? "Enter a question" : "Paste a text to search in";
        return;
    }
    if (!loaded) {
        at("status").textContent = "Loading the model …";
        const ready = await load();
        at("status").textContent = ready ? "" : "Load a model, then search again.";
        if (!ready) return;
    }
    busy(true);
    const start = performance.now();
    try {
        if (known?.texts.join("\n") !== texts.join("\n")) {
            at("embedding").value = 0;
            at("embedding").hidden = false;
            known = { texts, vectors: await vectors(texts) };
        }
        const [asked] = await vectors([question]);
        const found = texts.map((text, i) => ({ text, score: likeness(asked, known.vectors[i]) }));
        found.sort((a, b) => b.score - a.score);
        await show(asked, found.slice(0, MOST));
        const seconds = (performance.now() - start) / 1000;
        at("status").textContent = `The best ${Math.min(MOST, texts.length)} of ${texts.length} passages, in ${seconds.toFixed(1)} s`;
    } catch (error) {
        at("search-error").textContent = error.message;
    }
    at("embedding").hidden = true;
    busy(false);
}

/** Shows passages, with the sentence of each that is nearest to the question marked. */
async function show(asked, found) {
    const parts = found.map(({ text }) => sentences(text));
    const all = await vectors(parts.flat().map(part => part.trim() || "."));
    let first = 0;
    at("results").replaceChildren(...found.map(({ text, score }, i) => {
        const scores = all.slice(first, first += parts[i].length).map(vector => likeness(asked, vector));
        const best = parts[i].length > 1 ? scores.indexOf(Math.max(...scores)) : -1;
        const item = document.createElement("li");
        const head = Object.assign(document.createElement("div"), { className: "score" });
        const meter = Object.assign(document.createElement("meter"), { min: 0, max: 1, value: Math.max(0, score) });
        meter.ariaHidden = "true";
        head.append(meter, `${score.toFixed(2)}`);
        const body = document.createElement("p");
        body.append(...parts[i].map((part, j) => j === best ? Object.assign(document.createElement("mark"), { textContent: part.trim() }) : part)
            .flatMap((part, j) => j === best && j < parts[i].length - 1 ? [part, " "] : [part]));
        item.dataset.score = score;
        item.append(head, body);
        item.title = text.length > 400 ? "" : `Similarity to the question: ${score.toFixed(4)}`;
        return item;
    }));
}

function count() {
    const { length } = passages(at("document").value);
    at("count").textContent = length === 1 ? "1 passage" : `${length.toLocaleString("en")} passages`;
}

at("question-form").onsubmit = event => {
    event.preventDefault();
    if (!at("search").disabled) search();
};
at("document").oninput = count;
takeFiles(at("document-file"), at("document"), async ([file]) => {
    if (!file) return;
    at("document").value = await file.text();
    count();
});
at("document").value = TEXT;
at("question").value = QUESTION;
count();
