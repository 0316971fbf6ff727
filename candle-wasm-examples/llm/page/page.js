// What the page shows. All work is done in worker.js.
import { LANGUAGE_MODELS, ModelForm } from "../model.js";
import { at, revealInvalid, Tasks } from "../shared.js";

let loaded = false;

const form = new ModelForm(at("model"), LANGUAGE_MODELS, load);
const receive = {
    ...ModelForm.receive,
    piece: ({ piece }) => { at("made").textContent += piece; },
};
const tasks = new Tasks(new URL("worker.js", import.meta.url), receive, () => {
    loaded = false;
    return "Load the model again";
});

function busy(what) {
    at("load").disabled = what !== null;
    at("generate").disabled = what !== null || !loaded;
    at("stop").disabled = what !== "text";
    document.body.ariaBusy = String(what !== null);
}

async function load() {
    loaded = false;
    busy("model");
    at("text-error").textContent = "";
    loaded = await form.load(tasks) !== null;
    busy(null);
}

async function generate() {
    const prompt = at("prompt").value;
    at("given").textContent = prompt;
    at("made").textContent = "";
    at("text-error").textContent = "";
    at("speed").textContent = "Working …";
    busy("text");
    const number = id => at(id).valueAsNumber;
    const options = { temperature: number("temperature"), max_tokens: number("max-tokens"), seed: number("seed") };
    if (number("top-p") < 1) options.top_p = number("top-p");
    try {
        const done = await tasks.ask({ kind: "generate", prompt, options });
        const ends = { end_of_text: "end of text", length: "token limit reached", cancelled: "stopped" };
        at("spoken").textContent = done.text;
        at("speed").textContent = `${done.tokens} tokens, ${done.tokens_per_second.toFixed(1)} tokens/s; ${ends[done.stop_reason]}`;
    } catch (error) {
        at("speed").textContent = "";
        const lost = /the GPU (was lost|reports)/.test(error.message);
        if (lost) loaded = false;
        at("text-error").textContent = error.message + (lost ? ". Load the model again to continue." : "");
        if (!loaded) form.lost();
    }
    busy(null);
}

at("prompt-form").onsubmit = event => {
    event.preventDefault();
    generate();
};
revealInvalid(at("prompt-form"), at("text-error"));
at("prompt").onkeydown = event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !at("generate").disabled) at("prompt-form").requestSubmit();
};
at("stop").onclick = () => tasks.tell({ kind: "stop" });

load();
