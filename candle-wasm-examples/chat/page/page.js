// What the page shows. The model is in worker.js; the conversation outlives a reload.
import { LANGUAGE_MODELS, ModelForm } from "../model.js";
import { CHAT_MODELS } from "../models.js";
import { at, revealInvalid, Tasks } from "../shared.js";
import { Conversation } from "./conversation.js";
import { button, Message } from "./view.js";

const IDEAS = ["What is the capital of France?", "Write a haiku about the sea.", "Explain recursion to a child."];
/** Where neither a model's files nor its makers say how tokens are chosen. */
const SAMPLING = { temperature: 0.7, top_p: 0.95, top_k: 0 };

const conversation = new Conversation(message => { at("text-error").textContent = message; });
/** The boxes of the conversation's messages. */
let shown = [];
/** What is loaded: `{ name, info }`. */
let loaded = null;
let busy = null;
let editing = false;
let cleared = null;
/** The box of the answer that is being made. */
let current = null;
let drawn = 0;

const form = new ModelForm(at("model"), { ...LANGUAGE_MODELS, models: CHAT_MODELS }, load);
const tasks = new Tasks(new URL("worker.js", import.meta.url), {
    ...ModelForm.receive,
    piece: heard,
}, () => {
    form.lost();
    lost();
    return "Load the model again";
});

function update() {
    at("load").disabled = busy !== null;
    at("send").hidden = busy === "answer";
    at("send").disabled = busy !== null;
    at("stop").hidden = busy !== "answer";
    at("clear").disabled = busy !== null || conversation.messages.length === 0;
    at("empty").hidden = conversation.messages.length > 0;
    document.body.ariaBusy = String(busy !== null);
    const last = shown.length - 1;
    shown.forEach((box, i) => {
        if (box === current) return box.actions();
        const { role, content } = box.message;
        const buttons = [button("Copy", () => copy(content, box), role === "user" ? "Copy your message" : "Copy the answer")];
        if (busy === null && role === "assistant" && i === last) buttons.push(button("Regenerate", regenerate));
        if (busy === null && role === "user" && i === last) buttons.push(button("Answer", regenerate, "Let the model answer"));
        if (busy === null && i === conversation.lastOfUser) buttons.push(button("Edit", edit, "Edit your message"));
        box.actions(...buttons);
    });
}

// The model

async function load() {
    busy = "model";
    update();
    const request = form.request();
    const shown = await form.load(tasks);
    busy = null;
    if (shown && shown !== loaded?.shown) {
        loaded = { shown, name: form.nameOf(request), info: shown.info };
        const { info } = loaded;
        const where = shown.reason === null ? "GPU" : "CPU";
        at("model-name").textContent = `${loaded.name} · on the ${where} · ${info.context_length.toLocaleString("en")} tokens of context`;
        at("model-box").open = !info.chat;
        at("no-template").hidden = info.chat;
        at("thinks").hidden = !info.thinks;
        sampling({ ...SAMPLING, ...form.known(request)?.sampling, ...given(info.sampling) });
        if (!info.chat) noTemplate(info.chat_problem);
    } else if (!shown) {
        lost();
    }
    update();
    return loaded !== null;
}

const given = options => Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));

function sampling({ temperature, top_p, top_k }) {
    // What a file has in 32 bits is not shown with all of their digits.
    const short = number => String(Number(number.toPrecision(4)));
    at("temperature").value = short(temperature);
    at("top-p").value = short(top_p ?? 1);
    at("top-k").value = String(top_k ?? 0);
}

function noTemplate(problem) {
    const link = Object.assign(document.createElement("a"), { href: "../llm/", textContent: "Language model" });
    at("no-template").replaceChildren(`${problem}. The page `, link, " continues texts with it; for a conversation, load another one here.");
}

function lost() {
    loaded = null;
    at("thinks").hidden = true;
    at("model-name").textContent = "";
    at("no-template").hidden = true;
    at("model-box").open = true;
}

// The conversation

async function send() {
    const text = at("message").value.trim();
    if (busy !== null || text === "") return;
    at("text-error").textContent = "";
    if (!at("settings-form").reportValidity()) return;
    if (loaded === null && !await load()) {
        at("text-error").textContent = "The model was not loaded; see the error above.";
        return;
    }
    if (!loaded.info.chat) {
        at("text-error").textContent = "This model cannot chat; see above.";
        return;
    }
    if (editing) cut(conversation.lastOfUser);
    edited(false);
    forget();
    at("message").value = "";
    grow();
    append(conversation.add("user", text));
    await answer();
}

async function answer() {
    busy = "answer";
    at("text-error").textContent = "";
    const messages = conversation.prompt;
    const message = conversation.add("assistant", "");
    current = append(message);
    current.show(true);
    update();
    at("keys").hidden = true;
    at("working").textContent = "Reading …";
    follow(true);
    const settings = options();
    try {
        const done = await tasks.ask({ kind: "chat", messages, options: settings });
        message.content = done.text;
        message.thoughts = done.thoughts;
        message.note = noteOf(done);
        const { total_tokens } = done.usage;
        const { context_length } = loaded.info;
        at("context").textContent = `Context: ${total_tokens.toLocaleString("en")} of ${context_length.toLocaleString("en")} tokens`;
        at("spoken").textContent = done.text.trim() || "The model gave no answer.";
    } catch (error) {
        // Whatever there is of it was not finished, and is no answer.
        if (message.content === "" && !message.thoughts) cut(conversation.messages.indexOf(message));
        else message.note = "not finished";
        failed(error.message);
    }
    cancelAnimationFrame(drawn);
    drawn = 0;
    const box = current;
    current = null;
    box.show();
    conversation.save();
    busy = null;
    at("keys").hidden = false;
    at("working").textContent = "";
    update();
    follow();
    if (document.activeElement === document.body || document.activeElement === at("stop")) at("message").focus();
}

function options() {
    const number = id => at(id).valueAsNumber;
    const seed = number("seed");
    const options = {
        temperature: number("temperature"), top_p: number("top-p"), max_tokens: number("max-tokens"),
        seed: Number.isNaN(seed) ? Math.floor(Math.random() * 2 ** 32) : seed,
    };
    // A model that does not think has no such switch.
    if (loaded.info.thinks) options.thinking = at("thinking").checked;
    const top_k = number("top-k");
    // Without one, that of the model's files would be taken.
    options.top_k = top_k > 0 ? top_k : 1e6;
    return options;
}

function noteOf({ usage, thoughts, stop_reason, tokens_per_second }) {
    const ends = { length: "token limit reached", cancelled: "stopped", stop_sequence: "stopped" };
    const thought = thoughts === undefined ? "" : `${usage.thought_tokens} of them thoughts`;
    const words = [`${usage.completion_tokens} tokens`, thought, `${tokens_per_second.toFixed(1)} tokens/s`, ends[stop_reason]];
    return words.filter(word => word).join(" · ");
}

function failed(message) {
    const gone = /the GPU (was lost|reports)/.test(message);
    if (gone) {
        form.lost();
        lost();
    }
    const tooLong = /tokens; the model's limit|the model's limit is/.test(message);
    at("text-error").textContent = message
        + (gone ? ". Load the model again to continue." : "")
        + (tooLong ? ". Clear the conversation or shorten your message." : "");
}

function heard({ piece, thought }) {
    if (!current) return;
    const { message } = current;
    at("working").textContent = "Esc stops";
    if (thought) message.thoughts = (message.thoughts ?? "") + piece;
    else message.content += piece;
    drawn ||= requestAnimationFrame(() => {
        drawn = 0;
        const below = atEnd();
        current?.show(true);
        if (below) follow(true);
    });
}

const append = message => {
    const box = new Message(at("log"), message, loaded?.name ?? "The model");
    shown.push(box);
    return box;
};

/** Takes the messages from a place on away. */
function cut(place) {
    conversation.cut(place);
    for (const box of shown.splice(place)) box.node.remove();
}

function regenerate() {
    if (busy !== null) return;
    if (loaded === null) {
        at("text-error").textContent = "Load a model first.";
        at("model-box").open = true;
        return;
    }
    if (!at("settings-form").reportValidity()) return;
    if (conversation.last?.role === "assistant") cut(conversation.messages.length - 1);
    edited(false);
    return answer();
}

function edit() {
    edited(true);
    at("message").value = conversation.messages[conversation.lastOfUser].content;
    grow();
    at("message").focus();
}

function edited(yes) {
    if (editing && !yes) at("message").value = "";
    editing = yes;
    at("editing").hidden = !yes;
    for (const [i, { node }] of shown.entries()) node.classList.toggle("replaced", yes && i >= conversation.lastOfUser);
    grow();
}

async function copy(text, box) {
    let said = "Copied";
    try {
        await navigator.clipboard.writeText(text);
    } catch (error) {
        said = `Not copied: ${error.message}`;
    }
    box.note.textContent = said;
    at("spoken").textContent = said;
}

function clear() {
    edited(false);
    cleared = conversation.messages.slice();
    cut(0);
    for (const id of ["context", "text-error"]) at(id).textContent = "";
    at("cleared").textContent = "Cleared";
    at("undo").hidden = false;
    update();
    at("message").focus();
}

function forget() {
    cleared = null;
    at("cleared").textContent = "";
    at("undo").hidden = true;
}

function undo() {
    for (const { role, content, ...others } of cleared ?? []) append(Object.assign(conversation.add(role, content), others));
    conversation.save();
    forget();
    update();
    at("message").focus();
}

// The window

const atEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 80;

function follow(always = false) {
    if (always || atEnd()) scrollTo(0, document.documentElement.scrollHeight);
}

/** As high as its text, up to a part of the window. */
function grow() {
    const field = at("message");
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight + 2, innerHeight * 0.4)}px`;
}

at("composer").onsubmit = event => {
    event.preventDefault();
    send();
};
at("message").oninput = grow;
at("message").onkeydown = event => {
    // Enter ends a word that is being composed, in Japanese for one.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
};
document.onkeydown = event => {
    if (event.key !== "Escape") return;
    if (busy === "answer") tasks.tell({ kind: "stop" });
    else if (editing) edited(false);
};
at("stop").onclick = () => tasks.tell({ kind: "stop" });
at("clear").onclick = clear;
at("undo").onclick = undo;
at("settings-form").onsubmit = event => event.preventDefault();
revealInvalid(at("settings-form"), at("text-error"));
at("system").value = conversation.system;
at("system").oninput = () => {
    conversation.system = at("system").value;
    conversation.save();
};
// What is being written is kept as far as it is.
onpagehide = () => conversation.save();
at("ideas").append(...IDEAS.map(idea => button(idea, () => {
    at("message").value = idea;
    grow();
    send();
})));
for (const message of conversation.messages) append(message);
update();
grow();
// Where the browser was before a reload is not where the conversation ends.
history.scrollRestoration = "manual";
if (conversation.messages.length > 0) follow(true);
at("message").focus({ preventScroll: true });
