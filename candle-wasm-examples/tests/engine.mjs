// `createEngine` of the package, in a page without anything of ours: a model in a Worker of its own, in the words of OpenAI's API.
import { readFile } from "node:fs/promises";
import { gguf } from "./gguf.mjs";
import { contains, equal, launch, open, test } from "./harness.mjs";
import { modelFiles, serve } from "./models.mjs";

const MODEL = "candle-transformers/engine/model";
const THINKS = "{{ bos_token }}{% for m in messages %}{{ m.content.split('</think>') | last }}{% endfor %}"
    + "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}";
const TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}";

export async function run(site) {
    const { prompts: [prompt] } = JSON.parse(await readFile(`${MODEL}/golden.json`, "utf8"));
    const files = await modelFiles(MODEL);
    files.set("/chat.gguf", await gguf(MODEL, false, TEMPLATE));
    files.set("/thinks.gguf", await gguf(MODEL, false, THINKS));
    const server = await serve(files);
    const browser = await launch(false);
    try {
        const page = await open(browser, site);
        await page.evaluate(async address => {
            const { createEngine } = await import("/candle-wasm/engine.js");
            globalThis.progress = [];
            globalThis.engine = await createEngine(`${address}chat.gguf`, { onProgress: heard => progress.push(heard) });
            globalThis.problem = promise => promise.then(() => "none", error => error.message);
            const messages = [{ role: "user", content: "a" }];
            globalThis.formatted = response_format => problem(engine.chat.completions.create({ messages, response_format }));
        }, server.address);
        await test("engine::answers::cpu", () => answers(page, prompt));
        await test("engine::streams::cpu", () => streams(page, prompt));
        await test("engine::stops_and_interrupts::cpu", () => stops(page, prompt));
        await test("engine::refuses_what_it_does_not_know", () => refusals(page));
        await test("engine::answers_keep_to_a_schema::cpu", () => schemas(page, server.address, prompt));
        await test("engine::thoughts::cpu", () => thoughts(page, server.address, prompt));
        await test("engine::reload_and_unload::cpu", () => reloads(page, server.address, prompt));
    } finally {
        await browser.close();
        server.stop();
    }
}

async function answers(page, prompt) {
    const { info, progress, first, second, text } = await page.evaluate(async prompt => {
        const user = { role: "user", content: prompt };
        const first = await engine.chat.completions.create({ messages: [user], max_tokens: 8, temperature: 0 });
        const said = { role: "assistant", content: first.choices[0].message.content };
        const second = await engine.chat.completions.create({ messages: [user, said, { role: "user", content: "fn" }], max_completion_tokens: 4 });
        const text = await engine.completions.create({ prompt, max_tokens: 8 });
        return { info: engine.info, progress, first, second, text };
    }, prompt.text);
    equal([info.chat, info.device, info.threads >= 1], [true, "cpu", true]);
    contains(info.cpu_reason, "WebGPU");
    const names = new Set(progress.map(({ name }) => name));
    equal(["WebAssembly module", "chat.gguf", "weights"].filter(name => !names.has(name)), [], "names without progress");
    equal(first.object, "chat.completion");
    const { message, finish_reason } = first.choices[0];
    equal([message.role, finish_reason, prompt.greedy_text.startsWith(message.content)], ["assistant", "length", true], message.content);
    equal(first.usage.completion_tokens, 8);
    equal(first.usage.total_tokens, first.usage.prompt_tokens + 8);
    equal(second.usage.prompt_tokens_details.cached_tokens > 0, true, "cached tokens of a second turn");
    equal([text.object, text.choices[0].text, text.usage.completion_tokens], ["text_completion", message.content, 8]);
}

async function schemas(page, address, prompt) {
    const schema = {
        type: "object",
        properties: { name: { type: "string", maxLength: 6 }, kind: { enum: ["fn", "struct"] }, ok: { type: "boolean" } },
        required: ["name", "kind", "ok"],
    };
    const { free, whole, streamed, after, thought, object } = await page.evaluate(async (address, prompt, schema) => {
        const request = { messages: [{ role: "user", content: prompt }], max_tokens: 200, temperature: 0 };
        const format = { response_format: { type: "json_schema", json_schema: { name: "item", strict: true, schema } } };
        const short = { ...request, max_tokens: 8 };
        const free = await engine.chat.completions.create(short);
        const whole = await engine.chat.completions.create({ ...request, ...format });
        let streamed = "";
        for await (const { choices: [{ delta }] } of await engine.chat.completions.create({ ...request, ...format, stream: true })) streamed += delta.content ?? "";
        // The constraint is the answer's and not the conversation's.
        const after = await engine.chat.completions.create(short);
        const object = await engine.chat.completions.create({ ...short, response_format: { type: "json_object" } });
        await engine.reload(`${address}thinks.gguf`);
        const thought = await engine.chat.completions.create({ ...request, ...format, thinking_budget: 4 });
        await engine.reload(`${address}chat.gguf`);
        return { free, whole, streamed, after, thought, object };
    }, address, prompt.text, schema);
    const read = text => {
        const { name, kind, ok, ...others } = JSON.parse(text);
        equal([typeof name, name.length <= 6, ["fn", "struct"].includes(kind), typeof ok, others], ["string", true, true, "boolean", {}], text);
    };
    const { message, finish_reason } = whole.choices[0];
    read(message.content);
    equal([finish_reason, streamed], ["stop", message.content]);
    equal([after.choices[0].message.content, free.choices[0].message.content.startsWith("{")], [free.choices[0].message.content, false]);
    equal(object.choices[0].message.content.startsWith("{"), true, object.choices[0].message.content);
    read(thought.choices[0].message.content);
    equal(thought.choices[0].message.reasoning_content !== "", true, "thoughts are free");
    contains((await page.evaluate(() => progress.map(({ name }) => name))).join(), "grammar module");
}

async function thoughts(page, address, prompt) {
    const { whole, chunks, without, refused } = await page.evaluate(async (address, prompt) => {
        await engine.reload(`${address}thinks.gguf`);
        const request = { messages: [{ role: "user", content: prompt }], max_tokens: 18, temperature: 0 };
        const limited = { ...request, thinking_budget: 4 };
        const whole = await engine.chat.completions.create(limited);
        const chunks = [];
        for await (const { choices: [{ delta }] } of await engine.chat.completions.create({ ...limited, stream: true })) chunks.push(delta);
        const without = await engine.chat.completions.create({ ...request, chat_template_kwargs: { enable_thinking: false } });
        const refused = await problem(engine.chat.completions.create({ ...request, chat_template_kwargs: { style: "x" } }));
        await engine.reload(`${address}chat.gguf`);
        return { whole, chunks, without, refused };
    }, address, prompt.text);
    const { message } = whole.choices[0];
    const joined = name => chunks.map(delta => delta[name] ?? "").join("");
    equal([joined("reasoning_content"), joined("content")], [message.reasoning_content, message.content], "a stream");
    equal([message.reasoning_content !== "", message.content !== ""], [true, true], "thoughts and an answer");
    equal(whole.usage.completion_tokens_details.reasoning_tokens >= 4, true, "tokens of thoughts");
    equal("reasoning_content" in without.choices[0].message, false, "without thoughts");
    equal(prompt.greedy_text.startsWith(without.choices[0].message.content), true, without.choices[0].message.content);
    contains(refused, "chat_template_kwargs", "style", "enable_thinking");
}

async function streams(page, prompt) {
    const { chunks, pieces } = await page.evaluate(async prompt => {
        const request = { messages: [{ role: "user", content: prompt }], max_tokens: 8, temperature: 0, stream: true };
        const chunks = [];
        for await (const chunk of await engine.chat.completions.create({ ...request, stream_options: { include_usage: true } })) chunks.push(chunk);
        let pieces = "";
        for await (const { choices: [{ text }] } of await engine.completions.create({ prompt, max_tokens: 8, stream: true })) pieces += text;
        return { chunks, pieces };
    }, prompt.text);
    const said = chunks.slice(1, -2).map(({ choices: [{ delta }] }) => delta.content).join("");
    equal(chunks[0].choices[0].delta, { role: "assistant", content: "" });
    equal(prompt.greedy_text.startsWith(said) && said !== "", true, said);
    equal(pieces, said);
    equal(chunks.at(-2).choices[0].finish_reason, "length");
    equal([chunks.at(-1).choices, chunks.at(-1).usage.completion_tokens, chunks[1].usage], [[], 8, null]);
    equal(new Set(chunks.map(({ id }) => id)).size, 1, "ids of one answer");
}

async function stops(page, prompt) {
    const found = await page.evaluate(async prompt => {
        const whole = await engine.completions.create({ prompt, max_tokens: 8 });
        const stop = whole.choices[0].text.slice(3, 6);
        const stopped = await engine.completions.create({ prompt, max_tokens: 8, stop });
        const long = { prompt, max_tokens: 200 };
        // One that is left, one that is interrupted while it waits behind another, one by its signal.
        for await (const chunk of await engine.completions.create({ ...long, stream: true })) if (chunk.choices[0].text) break;
        const two = [engine.completions.create(long), engine.completions.create(long)];
        await new Promise(done => setTimeout(done, 50));
        engine.interrupt();
        const reasons = (await Promise.all(two)).map(({ choices: [{ finish_reason }] }) => finish_reason);
        const abort = new AbortController();
        setTimeout(() => abort.abort(), 30);
        const signalled = await engine.completions.create({ ...long, signal: abort.signal });
        const after = await engine.completions.create({ prompt, max_tokens: 8 });
        return { whole, stop, stopped, reasons, signalled, after };
    }, prompt.text);
    const [{ text, finish_reason }] = found.stopped.choices;
    equal([text, finish_reason], [found.whole.choices[0].text.split(found.stop)[0], "stop"]);
    equal(found.reasons, ["abort", "abort"]);
    equal(found.signalled.choices[0].finish_reason, "abort");
    equal(found.after.choices, found.whole.choices);
}

async function refusals(page) {
    const messages = await page.evaluate(() => Promise.all([
        problem(engine.chat.completions.create({ messages: [{ role: "user", content: "a" }], max_token: 3 })),
        problem(engine.chat.completions.create({ messages: [{ role: "user", content: "a" }], n: 2 })),
        problem(engine.chat.completions.create({ messages: [], max_tokens: 3 })),
        formatted({ type: "xml" }),
        formatted({ type: "json_schema" }),
        formatted({ type: "json_object", json_schema: {} }),
        formatted({ type: "json_schema", json_schema: { schema: { type: "colour" } } }),
        problem(engine.completions.create({ prompt: "a", temperature: "hot" })),
        problem(engine.reload("x", { colour: 1 })),
    ]));
    const expected = ["`max_token` is unknown", "n is 2", "the list is empty",
        'response_format: type is "xml"', "schema is undefined", 'type is "json_object"', "colour", "`temperature`", "`colour` is unknown"];
    messages.forEach((message, i) => contains(message, expected[i]));
}

async function reloads(page, address, prompt) {
    const { missing, still, other, none, text } = await page.evaluate(async (address, prompt) => {
        const missing = await problem(engine.reload(`${address}nothing.gguf`));
        const still = (await engine.completions.create({ prompt, max_tokens: 8 })).choices[0].text;
        await engine.reload(`${address}good/`);
        const other = engine.info.chat;
        await engine.unload();
        const none = await problem(engine.completions.create({ prompt }));
        await engine.reload(`${address}chat.gguf`);
        const text = (await engine.completions.create({ prompt, max_tokens: 8 })).choices[0].text;
        engine.terminate();
        return { missing, still, other, none, text };
    }, address, prompt.text);
    contains(missing, "nothing.gguf", "404");
    equal(prompt.greedy_text.startsWith(still) && still !== "", true, still);
    equal(other, false, "a folder without a template can chat");
    contains(none, "no model loaded");
    equal(text, still);
}
