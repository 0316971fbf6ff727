// What the page shows. All work is done in the worker of `embeddings`, whose module this page has too.
import { ModelForm, takeFiles } from "../model.js";
import { SEARCH_MODELS } from "../models.js";
import { at, Tasks } from "../shared.js";
import { QUESTION, TEXT } from "./example.js";
import { commonWords, LIKENESS } from "./likeness.js";
import { passages, sentences } from "./passages.js";

/** Passages that are shown. */
const MOST = 5;
/** Words of the question that are shown, and those that a passage shares. */
const [MOST_ASKED, MOST_COMMON] = [20, 8];

/** The worker's report of the loaded model; `output` is `vectors` or `words`. */
let loaded = null;
/** The passages whose meanings are known: `{ texts, meanings }`. */
let known = null;

const form = new ModelForm(at("model"), SEARCH_MODELS, load);
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

/** Vectors, or words, of each text. */
const meanings = texts => tasks.ask({ kind: loaded.output, texts });

async function search() {
    at("search-error").textContent = at("status").textContent = "";
    at("results").replaceChildren();
    at("asked").hidden = true;
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
            known = { texts, meanings: await meanings(texts) };
        }
        const [asked] = await meanings([question]);
        const found = texts.map((text, i) => ({ text, meaning: known.meanings[i], score: LIKENESS[loaded.output].of(asked, known.meanings[i]) }));
        found.sort((a, b) => b.score - a.score);
        if (loaded.output === "words") showWords(question, asked);
        await show(asked, found.slice(0, MOST));
        const seconds = (performance.now() - start) / 1000;
        at("status").textContent = `The best ${Math.min(MOST, texts.length)} of ${texts.length} passages, in ${seconds.toFixed(1)} s`;
    } catch (error) {
        at("search-error").textContent = error.message;
    }
    at("embedding").hidden = true;
    busy(false);
}

/** A list of words with numbers; `isNew` marks those of which it is true. */
function wordList(words, label, isNew = () => false) {
    const list = Object.assign(document.createElement("ul"), { className: "words", ariaLabel: label });
    list.append(...words.map(([word, weight]) => {
        const item = Object.assign(document.createElement("li"), { className: isNew(word) ? "new" : "" });
        // Parts of words, as the vocabulary has them.
        item.append(word.replace(/^##/, "…"), Object.assign(document.createElement("small"), { textContent: ` ${weight.toFixed(2)}` }));
        Object.assign(item.dataset, { word, weight });
        return item;
    }));
    return list;
}

/** Shows the words that the question is about. */
function showWords(question, asked) {
    const said = question.toLowerCase();
    const wordsOf = new Set(said.match(/[\p{L}\p{N}]+/gu));
    const isNew = word => word.startsWith("##") ? !said.includes(word.slice(2)) : !wordsOf.has(word);
    at("asked-words").replaceChildren(wordList([...asked].slice(0, MOST_ASKED), "Words of the question, with their weights", isNew));
    at("asked").hidden = false;
}

/** Shows passages, with the sentence of each that is nearest to the question marked. */
async function show(asked, found) {
    const parts = found.map(({ text }) => sentences(text));
    const all = await meanings(parts.flat().map(part => part.trim() || "."));
    const { of, largest = found[0].score || 1 } = LIKENESS[loaded.output];
    let first = 0;
    at("results").replaceChildren(...found.map(({ text, meaning, score }, i) => {
        const scores = all.slice(first, first += parts[i].length).map(part => of(asked, part));
        const best = parts[i].length > 1 ? scores.indexOf(Math.max(...scores)) : -1;
        const item = document.createElement("li");
        const head = Object.assign(document.createElement("div"), { className: "score" });
        const meter = Object.assign(document.createElement("meter"), { min: 0, max: largest, value: Math.max(0, score) });
        meter.ariaHidden = "true";
        head.append(meter, `${score.toFixed(2)}`);
        if (loaded.output === "words") head.append(wordList(commonWords(asked, meaning).slice(0, MOST_COMMON), "Words that it shares with the question"));
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
