// What the page shows. All work is done in worker.js.
import { ModelForm } from "../model.js";
import { SENTENCE_MODELS } from "../models.js";
import { at, Tasks } from "../shared.js";

const FIRST = [
    "A man is eating food.",
    "A man eats a piece of bread.",
    "The girl is carrying a baby.",
    "WebGPU runs models in the browser.",
];

let loaded = false;

const form = new ModelForm(at("model"), SENTENCE_MODELS, load);
const tasks = new Tasks(new URL("worker.js", import.meta.url), ModelForm.receive, () => {
    loaded = false;
    form.lost();
    return "Load the model again";
});

function busy(yes) {
    at("load").disabled = yes;
    at("compare").disabled = yes || !loaded;
    document.body.ariaBusy = String(yes);
}

async function load() {
    loaded = false;
    busy(true);
    at("text-error").textContent = "";
    const ready = await form.load(tasks);
    loaded = ready !== null;
    if (ready?.output === "words") {
        at("notice").textContent = "This model (BertForMaskedLM) gives each sentence words with weights, not a vector: the table compares the "
            + "weights. The page Search shows the words.";
    }
    busy(false);
    if (loaded) await compare();
}

async function compare() {
    const texts = [...at("texts").querySelectorAll("input")].map(input => input.value.trim()).filter(text => text);
    at("text-error").textContent = "";
    at("matrix").hidden = true;
    busy(true);
    try {
        if (texts.length < 2) throw new Error("enter at least two sentences");
        const { matrix, milliseconds } = await tasks.ask({ kind: "compare", texts });
        show(texts, matrix);
        at("speed").textContent = milliseconds < 1000 ? `${milliseconds.toFixed(0)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
    } catch (error) {
        at("speed").textContent = "";
        at("text-error").textContent = error.message;
    }
    busy(false);
}

function show(texts, matrix) {
    const head = document.createElement("tr");
    head.append(document.createElement("td"), ...texts.map((text, i) => cell("th", String(i + 1), text)));
    head.firstChild.style.background = "none";
    at("matrix").tHead.replaceChildren(head);
    at("matrix").tBodies[0].replaceChildren(...texts.map((text, i) => {
        const row = document.createElement("tr");
        row.append(cell("th", `${i + 1} ${text}`));
        for (let j = 0; j < texts.length; j++) {
            const value = matrix[i * texts.length + j];
            const td = cell("td", value.toFixed(2), `${text} / ${texts[j]}: ${value.toFixed(5)}`);
            td.style.setProperty("--alike", Math.max(0, Math.min(1, value)));
            td.dataset.value = value;
            row.append(td);
        }
        return row;
    }));
    at("matrix").hidden = false;
}

function cell(kind, text, title = text) {
    return Object.assign(document.createElement(kind), { textContent: text, title });
}

function addText(text = "") {
    const item = document.createElement("li");
    const box = document.createElement("div");
    const input = Object.assign(document.createElement("input"), { type: "text", value: text, ariaLabel: "Sentence" });
    const remove = Object.assign(document.createElement("button"), { type: "button", textContent: "×", ariaLabel: "Remove the sentence" });
    remove.onclick = () => item.remove();
    box.append(input, remove);
    item.append(box);
    at("texts").append(item);
    return input;
}

at("text-form").onsubmit = event => {
    event.preventDefault();
    if (loaded) compare();
};
at("add").onclick = () => addText().focus();

FIRST.forEach(text => addText(text));
