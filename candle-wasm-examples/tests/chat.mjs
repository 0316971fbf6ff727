// The page `chat` as a person uses it, and conversations of the package without a page of ours. The model is the embedded one with a template
// that makes its golden prompts of messages: what it answers is known.
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer, get } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gguf } from "./gguf.mjs";
import { contains, equal, launch, load, name, open, picture, pressLoad, set, test, text, wait } from "./harness.mjs";
import { markdown } from "./markdown.mjs";
import { modelFiles, serve } from "./models.mjs";

const MODEL = "candle-transformers/engine/model";
const TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}\n\n{% endif %}{% endfor %}";
/** Of a model that thinks, unless it is told not to: the prompt opens its thoughts. */
const THINKS = "{{ bos_token }}{% for m in messages %}{{ m.content.split('</think>') | last }}{% endfor %}"
    + "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}";

export async function run(site, screenshots) {
    const { prompts } = JSON.parse(await readFile(`${MODEL}/golden.json`, "utf8"));
    const folder = await mkdtemp(join(tmpdir(), "candle-chat-"));
    const file = join(folder, "chat.gguf");
    const half = join(folder, "half.gguf");
    const bytes = await gguf(MODEL, false, TEMPLATE);
    await writeFile(file, bytes);
    await writeFile(half, bytes.subarray(0, 5_000_000));
    const files = await modelFiles(MODEL);
    files.set("/chat.gguf", bytes);
    files.set("/thinks.gguf", await gguf(MODEL, false, THINKS));
    const { added_tokens: [{ content: bos_token }] } = JSON.parse(files.get("/good/tokenizer.json"));
    files.set("/drawn/tokenizer_config.json", Buffer.from(JSON.stringify({ chat_template: TEMPLATE, bos_token })));
    files.set("/drawn/generation_config.json", Buffer.from(JSON.stringify({ do_sample: true, temperature: 0.5, top_k: 20 })));
    for (const name of ["config.json", "tokenizer.json", "model.safetensors"]) files.set(`/drawn/${name}`, files.get(`/good/${name}`));
    const server = await serve(files);
    // Without a GPU: a software adapter takes two seconds for a token, and the page `llm` runs on one.
    const browser = await launch(false);
    try {
        const blank = await open(browser, site);
        await test("package::chat::cpu", () => packageChat(blank, server.address, prompts[0]));
        await test("package::thoughts::cpu", () => packageThoughts(blank, server.address, prompts[0]));
        await test("package::names_on_the_hub", () => hubNames(blank));
        await test("chat::markdown", () => markdown(blank));
        await test("chat::kept_conversation", () => keptConversation(blank));
        await blank.close();
        await test("chat::module_that_fails_once", () => moduleFails(browser, site));
        const page = await open(browser, `${site}chat/`);
        await test("chat::no_template::cpu", () => noTemplate(page));
        await test("chat::conversation::cpu", () => conversation(page, file, prompts));
        await test("chat::edit_regenerate_clear::cpu", () => changes(page, `${server.address}chat.gguf`, prompts));
        await test("chat::stop::cpu", () => stop(page));
        await test("chat::wrong_file_keeps_the_model::cpu", () => wrongFile(page, half));
        await test("chat::bad_option_in_closed_settings", () => badOption(page));
        await test("chat::kept_models", () => keptModels(page, server));
        await test("chat::thoughts::cpu", () => thoughts(page, `${server.address}thinks.gguf`, prompts[0]));
        await test("chat::looks", () => looks(page, site, screenshots));
    } finally {
        await browser.close();
        server.stop();
        await rm(folder, { recursive: true });
    }
}

async function packageChat(page, address, prompt) {
    const found = await page.evaluate(async (address, prompt) => {
        const { load } = await import("/candle-wasm/index.js");
        const { fromAddress } = await import("/candle-wasm/files.js");
        const progress = [];
        const { WasmModel } = await load({ onProgress: (done, size) => progress.push([done, size]) });
        const model = await WasmModel.open(await fromAddress(`${address}chat.gguf`));
        const user = content => ({ role: "user", content });
        const problem = async (...args) => {
            try {
                await model.chat(...args);
                return "none";
            } catch (error) {
                return error.message;
            }
        };
        const info = await model.info();
        let pieces = "";
        const first = await model.chat([user(prompt)], { max_tokens: 8 }, piece => { pieces += piece; });
        const said = [user(prompt), { role: "assistant", content: first.text }];
        const second = await model.chat([...said, user("fn main")], { max_tokens: 4 });
        const again = await model.chat([user(prompt)], { max_tokens: 8, stop: [first.text.slice(2, 6)] });
        const problems = [
            await problem([]),
            await problem(said),
            await problem([{ role: "tool", content: "x" }]),
            await problem([user(7)]),
            await problem([user("a")], { max_tokens: 0 }),
            await problem([user("a")], { stop: 3 }),
            await problem([user("the ".repeat(3000))]),
            await problem([user("a")], {}, () => { throw new Error("not wanted"); }),
        ];
        const after = await model.chat([user(prompt)], { max_tokens: 8 });
        const base = await WasmModel.open(await fromAddress(`${address}good/`));
        const refused = await base.chat([user("a")]).catch(error => error.message);
        const drawn = await WasmModel.open(await fromAddress(`${address}drawn/`));
        const plain = await drawn.chat([user(prompt)], { temperature: 0, max_tokens: 8 });
        return {
            progress, info, pieces, first, second, again, problems, after, refused, base: await base.info(), drawn: await drawn.info(), plain,
        };
    }, address, prompt.text);
    const { first, second, progress } = found;
    equal(progress.length > 1 && progress.every(([, size]) => size > 1e6), true, "progress of the module");
    equal(progress.at(-1)[0], progress[0][1], "all of the module");
    equal([found.info.chat, found.info.context_length, found.info.sampling], [true, 1024, {}], "what is known of the model");
    equal(first.text !== "" && prompt.greedy_text.startsWith(first.text), true, `${JSON.stringify(first.text)} as the beginning of the text`);
    equal(found.pieces, first.text, "pieces");
    equal([first.stop_reason, first.usage.completion_tokens, first.usage.reused_tokens], ["length", 8, 0], "the first answer");
    equal(first.usage.total_tokens, first.usage.prompt_tokens + 8, "the sum");
    // All of the first prompt, and of its answer but the last token.
    equal(second.usage.reused_tokens >= first.usage.prompt_tokens + 6, true, `tokens that were not read again: ${JSON.stringify(second.usage)}`);
    equal([found.again.stop_reason, found.again.text], ["stop_sequence", first.text.slice(0, 2)], "a stop sequence");
    const words = [["empty"], ["role", "user"], ["messages[0]", "role", "tool"], ["messages[0]", "content"], ["max_tokens"], ["stop"],
        ["limit"], ["not wanted"]];
    words.forEach((parts, i) => contains(found.problems[i], ...parts));
    equal([found.after.text, found.after.usage.reused_tokens], [first.text, 0], "after errors");
    contains(found.refused, "no chat template", "generate");
    equal(found.base.chat, false, "a conversation without a template");
    contains(found.base.chat_problem, "no chat template");
    equal([found.drawn.chat, found.drawn.sampling], [true, { temperature: 0.5, top_k: 20 }], "what a folder says");
    equal(found.plain.text, first.text, "what a folder says, overruled");
}

/** What a model thinks is heard and reported apart, can be limited, and can be left out. */
async function packageThoughts(page, address, prompt) {
    const found = await page.evaluate(async (address, prompt) => {
        const { load } = await import("/candle-wasm/index.js");
        const { fromAddress } = await import("/candle-wasm/files.js");
        const { WasmModel } = await load();
        const model = await WasmModel.open(await fromAddress(`${address}thinks.gguf`));
        const said = [{ role: "user", content: prompt }];
        const heard = { true: "", false: "" };
        const hear = (piece, thought) => { heard[thought] += piece; };
        const settings = { temperature: 0, max_tokens: 18 };
        const limited = await model.chat(said, { ...settings, thinking_budget: 4 }, hear);
        const next = [...said, { role: "assistant", content: limited.text }, { role: "user", content: "fn" }];
        const second = await model.chat(next, { ...settings, thinking: false });
        const without = await model.chat(said, { ...settings, thinking: false });
        const problem = promise => promise.then(() => "none", error => error.message);
        const problems = [
            await problem(model.chat(said, { thinking: 1 })), await problem(model.chat(said, { thinking_budget: -1 })),
            await problem(model.generate("a", { thinking: true })),
        ];
        return { thinks: (await model.info()).thinks, heard, limited, second, without, problems };
    }, address, prompt.text);
    const { limited, without } = found;
    equal(found.thinks, true, "whether it thinks");
    equal([found.heard.true, found.heard.false], [limited.thoughts, limited.text], "pieces of thoughts and of the answer");
    equal([limited.thoughts !== "", limited.text !== "", limited.usage.completion_tokens], [true, true, 18], "both");
    equal(limited.usage.thought_tokens >= 4 && limited.usage.thought_tokens < 18, true, `thoughts: ${limited.usage.thought_tokens} tokens`);
    equal(/think/.test(limited.thoughts + limited.text), false, "marks");
    equal([without.thoughts, without.usage.thought_tokens], [undefined, 0], "without thoughts");
    equal(prompt.greedy_text.startsWith(without.text) && without.text !== "", true, without.text);
    equal(found.second.thoughts, undefined, "the next answer without thoughts");
    contains(found.problems[0], "thinking", "true or false");
    contains(found.problems[1], "thinking_budget");
    contains(found.problems[2], "thinking", "unknown");
}

async function hubNames(page) {
    const found = await page.evaluate(async () => {
        const { fromAddress } = await import("/candle-wasm/files.js");
        const { fetch } = globalThis;
        const asked = [];
        globalThis.fetch = async url => {
            asked.push(url);
            throw new Error("no network");
        };
        const names = ["a/b:c.gguf", "hf.co/a/b-1.0@v2:d/c.gguf", "https://huggingface.co/a/b", "a/b", "a/b.gguf", "a/b:Q4_K_M"];
        const errors = [];
        for (const name of names) await fromAddress(name).catch(error => errors.push(error.message));
        globalThis.fetch = fetch;
        return { asked, errors };
    });
    equal(found.asked.map(url => url.replace(location(found.asked[4]), "HERE/")), [
        "https://huggingface.co/a/b/resolve/main/c.gguf", "https://huggingface.co/a/b-1.0/resolve/v2/d/c.gguf",
        "https://huggingface.co/a/b/resolve/main/config.json", "https://huggingface.co/a/b/resolve/main/config.json", "HERE/a/b.gguf",
    ], "addresses");
    contains(found.errors[5], "Q4_K_M", "owner/name:file.gguf");
}

/** What is kept is only taken as far as it is a conversation, and templates get the user and the model in turn. */
async function keptConversation(page) {
    const found = await page.evaluate(async () => {
        const { Conversation } = await import("/chat/conversation.js");
        const of = kept => {
            localStorage.setItem("candle-chat", kept);
            const problems = [];
            const conversation = new Conversation(problem => problems.push(problem));
            return { prompt: conversation.prompt, problems };
        };
        const message = (role, content) => ({ role, content });
        const messages = [message("user", "a"), message("user", "b"), message("tool", "c"), message("assistant", ""), 3, message("user", 4)];
        const found = [of(JSON.stringify({ messages, system: " Be brief. " })), of('{"messages": 3}'), of("null"), of("{")];
        localStorage.clear();
        return found;
    });
    equal(found[0], {
        prompt: [{ role: "system", content: "Be brief." }, { role: "user", content: "a\n\nb" }], problems: [],
    }, "what was kept");
    for (const { prompt } of found.slice(1)) equal(prompt, [], "without a conversation");
    equal(found.map(({ problems }) => problems.length), [0, 0, 0, 1], "problems");
    contains(found[3].problems[0], "cannot save the conversation");
}

const location = url => url.slice(0, url.indexOf("a/b"));

/** The page is there without its module; when that can be fetched again, a click on `Load` is enough. */
async function moduleFails(browser, site) {
    let fails = true;
    const proxy = createServer((request, response) => {
        if (fails && request.url.endsWith(".wasm")) return response.writeHead(503).end();
        get(new URL(request.url, site), { agent: false, headers: request.headers }, answer => {
            response.writeHead(answer.statusCode, answer.headers);
            answer.pipe(response);
            // Of a page that was closed: what it does not read must not block the pages' server.
            response.on("close", () => answer.destroy());
        });
    });
    await new Promise(done => proxy.listen(0, "127.0.0.1", done));
    try {
        const page = await open(browser, `http://127.0.0.1:${proxy.address().port}/chat/`);
        equal(await page.$eval("#message", field => field.checkVisibility()), true, "a page without its module");
        await page.click("input[value=default]");
        await pressLoad(page);
        await wait(page, () => document.querySelector("#model-error").textContent !== "");
        contains(await text(page, "#model-error"), "candle_bg.wasm", "503", "Load the model again");
        fails = false;
        await load(page);
        equal(await text(page, "#model-error"), "", "an error");
        await page.close();
    } finally {
        proxy.close();
        proxy.closeAllConnections();
    }
}

async function noTemplate(page) {
    await page.click("input[value=default]");
    await load(page);
    await wait(page, () => !document.querySelector("#no-template").hidden);
    contains(await text(page, "#no-template"), "no chat template", "Language model");
    equal(await page.$eval("#no-template a", link => new URL(link.href).pathname), "/llm/", "the link");
    await page.type("#message", "Hello");
    await page.keyboard.press("Enter");
    await wait(page, () => document.querySelector("#text-error").textContent !== "");
    equal(await page.$eval("#message", field => field.value), "Hello", "the message is still there");
    await page.$eval("#message", field => { field.value = ""; });
}

/** Until the model has answered; gives the texts of all messages. */
async function answered(page, count) {
    await wait(page, count => document.querySelectorAll("#log .message").length === count && document.querySelector("#stop").hidden, count);
    equal(await text(page, "#text-error"), "", "an error");
    return page.$$eval("#log .message .body", bodies => bodies.map(body => body.innerText));
}

async function say(page, message, count) {
    await page.type("#message", message);
    await page.keyboard.press("Enter");
    return answered(page, count);
}

const words = text => text.replace(/\s+/g, "");

function begins(found, prompt) {
    equal(found.trim() !== "" && words(prompt.greedy_text).startsWith(words(found)), true, `${JSON.stringify(found)} as the beginning of the text`);
}

async function conversation(page, file, prompts) {
    await page.click("input[value=files]");
    await (await page.$("#files")).uploadFile(file);
    await load(page);
    await wait(page, () => !document.querySelector("#model-box").open);
    contains(await text(page, "#model-name"), "chat.gguf", "1,024 tokens");
    await set(page, "#temperature", "0");
    await set(page, "#max-tokens", "8");
    begins((await say(page, prompts[0].text, 2))[1], prompts[0]);
    contains(await text(page, "#log .message:last-child .foot"), "8 tokens", "tokens/s", "token limit");
    contains(await text(page, "#context"), "of 1,024 tokens");
    equal(words(await text(page, "#spoken")), words(await text(page, "#log .message:last-child .body")), "what a screen reader says");
    // A new line does not send.
    await page.type("#message", "struct");
    await page.keyboard.down("Shift");
    await page.keyboard.press("Enter");
    await page.keyboard.up("Shift");
    const shown = await say(page, "Point", 4);
    equal(shown[2], "struct\nPoint", "a message of two lines");
    await page.reload();
    const again = await page.$$eval("#log .message .body", bodies => bodies.map(body => body.innerText));
    equal(again, shown, "after a reload");
}

async function changes(page, address, prompts) {
    await reload(page, address);
    await page.click("#log .message:last-child button::-p-text(Regenerate)");
    const first = await answered(page, 4);
    await page.click("#log .message:last-child button::-p-text(Regenerate)");
    equal(await answered(page, 4), first, "the same answer at temperature 0");
    await page.click("#log .message:nth-child(3) button::-p-text(Edit)");
    equal(await page.$eval("#message", field => field.value), "struct\nPoint", "the message to edit");
    await page.keyboard.press("Escape");
    equal(await page.$eval("#message", field => field.value), "", "after Esc");
    await page.click("#log .message:nth-child(3) button::-p-text(Edit)");
    await page.$eval("#message", field => { field.value = ""; });
    const edited = await say(page, "Unsafe", 4);
    equal([edited[0], edited[1], edited[2]], [first[0], first[1], "Unsafe"], "the edited message");
    await page.click("#clear");
    equal(await page.$$eval("#log .message", messages => messages.length), 0, "cleared");
    await page.click("#undo");
    equal(await page.$$eval("#log .message .body", bodies => bodies.map(body => body.innerText)), edited, "what was cleared");
    await page.click("#clear");
    begins((await say(page, prompts[1].text, 2))[1], prompts[1]);
}

/** The model and the settings that a reload has taken. */
async function reload(page, address) {
    await page.click("input[value=url]");
    await set(page, "#url", address);
    await load(page);
    await set(page, "#temperature", "0");
    await set(page, "#max-tokens", "8");
}

async function stop(page) {
    await set(page, "#temperature", "1.5");
    await set(page, "#max-tokens", "900");
    await page.type("#message", "fn main() {");
    await page.keyboard.press("Enter");
    await wait(page, () => document.querySelector("#log .message:last-child.assistant .body").textContent.length > 8);
    equal(await page.$eval("#stop", button => button.checkVisibility()), true, "a button to stop");
    await page.keyboard.press("Escape");
    await answered(page, 4);
    contains(await text(page, "#log .message:last-child .foot"), "stopped");
    await set(page, "#temperature", "0");
    await set(page, "#max-tokens", "8");
}

/** Thoughts are folded over the answer, survive a reload, and can be turned off where a model thinks. */
async function thoughts(page, address, prompt) {
    equal(await page.$eval("#thinks", label => label.hidden), true, "a switch for a model that does not think");
    await reload(page, address);
    equal(await page.$eval("#thinks", label => label.hidden), false, "no switch");
    await say(page, prompt.text, 2);
    const folded = () => page.$$eval("#log .thoughts", all => all.map(one => [one.open, one.innerText]));
    const [[isOpen, shown]] = await folded();
    equal([isOpen, shown], [false, "Thoughts"], "thoughts");
    contains(await text(page, "#log .message:last-child .foot"), "8 of them thoughts");
    equal(await text(page, "#spoken"), "The model gave no answer.", "what a screen reader says");
    await page.click("#log .thoughts summary");
    equal(await page.$eval("#log .thoughts", one => one.innerText.length > "Thoughts".length), true, "opened thoughts");
    await page.reload();
    equal(await folded(), [[false, "Thoughts"]], "after a reload");
    await page.click("#clear");
    await reload(page, address);
    await page.$eval("#settings", details => { details.open = true; });
    await page.click("#thinking");
    begins((await say(page, prompt.text, 2))[1], prompt);
    equal(await folded(), [], "thoughts of a model that does not think");
    await page.click("#clear");
}

async function wrongFile(page, half) {
    await page.$eval("#model-box", box => { box.open = true; });
    await page.click("input[value=files]");
    await (await page.$("#files")).uploadFile(half);
    await pressLoad(page);
    await wait(page, () => document.querySelector("#model-error").textContent !== "");
    contains(await text(page, "#model-error"), "half.gguf");
    contains(await text(page, "#state"), "still loaded");
    await say(page, "fn main", 6);
}

async function badOption(page) {
    await set(page, "#temperature", "9");
    await page.$eval("#settings", details => { details.open = false; });
    await page.type("#message", "fn main");
    await page.keyboard.press("Enter");
    await wait(page, () => document.querySelector("#settings").open);
    contains(await text(page, "#text-error"), "Temperature");
    equal(await page.$$eval("#log .message", messages => messages.length), 6, "no message was sent");
    await set(page, "#temperature", "0");
    await page.$eval("#message", field => { field.value = ""; });
    await page.click("#clear");
}

async function keptModels(page, server) {
    equal(server.asked.length > 0 && server.asked.every(headers => headers["cache-control"] === "no-cache"), true, "one cache is enough");
    await page.$eval("#kept", details => { details.open = true; });
    await wait(page, () => document.querySelectorAll("#kept-list li").length > 1);
    const before = await page.$$eval("#kept-list li", items => items.map(item => item.firstChild.textContent));
    const model = before.find(item => item.startsWith("chat.gguf"));
    contains(model ?? "", "23 MB");
    await page.click('#kept-list button[aria-label="Delete chat.gguf"]');
    await wait(page, count => document.querySelectorAll("#kept-list li").length === count, before.length - 1);
    const keys = await page.evaluate(async () => (await (await caches.open("candle-models")).keys()).map(({ url }) => url));
    equal(keys.filter(url => url.includes("chat.gguf")), [], "what is left of it");
}

/** Nothing is wider than a phone; the screenshots are for people. */
async function looks(page, site, screenshots) {
    const said = [
        { role: "user", content: "How do I reverse a list in Rust?" },
        {
            role: "assistant", note: "58 tokens · 41.0 tokens/s",
            content: "There are **two ways**:\n\n1. `list.reverse()` changes the list itself.\n2. `list.iter().rev()` leaves it as it is.\n\n"
                + "```rust\nlet mut list = vec![1, 2, 3];\nlist.reverse();\nassert_eq!(list, [3, 2, 1]); // a line that is longer than a phone is wide\n```",
        },
        { role: "user", content: "Thanks!" },
    ];
    await page.evaluate(said => localStorage.setItem("candle-chat", JSON.stringify({ messages: said, system: "" })), said);
    // The page saves what it has when it goes.
    await page.evaluate(() => { onpagehide = null; });
    await page.goto(`${site}chat/`);
    for (const [width, theme] of [[1000, "light"], [390, "light"], [1000, "dark"], [390, "dark"]]) {
        await page.setViewport({ width, height: 900 });
        // The driver can ask Chromium alone for dark colours.
        if (name() === "chromium") await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        equal(wide <= width, true, `${wide} pixels of ${width}`);
        await page.screenshot({ path: `${screenshots}/chat-${width}-${theme}.png` });
    }
    await picture(page, screenshots, "chat", "#chat-title");
}
