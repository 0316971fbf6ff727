// OpenAI's package of JavaScript as a client of `candle-dvm api`: client.mjs FOLDER-OF-THE-PACKAGE URL MODEL

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const [folder, baseURL, model] = process.argv.slice(2);
const { default: OpenAI } = await import(pathToFileURL(`${folder}/node_modules/openai/index.mjs`));
const { VERSION } = await import(pathToFileURL(`${folder}/node_modules/openai/version.mjs`));
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });

const names = [];
for await (const known of client.models.list()) names.push(known.id);
assert.ok(names.includes(model), names.join());

const prompt = "The capital of France is";
const settings = { model, max_tokens: 24, temperature: 0 };
const whole = await client.completions.create({ prompt, ...settings });
assert.match(whole.choices[0].text, /Paris/);
let text = "";
for await (const piece of await client.completions.create({ prompt, stream: true, ...settings })) text += piece.choices[0].text;
assert.equal(text, whole.choices[0].text);

const messages = [{ role: "user", content: "What is the sea?" }];
const answer = await client.chat.completions.create({ messages, ...settings });
assert.equal(answer.choices[0].message.role, "assistant");
let [content, usage] = ["", null];
const chunks = await client.chat.completions.create({
    messages, stream: true, stream_options: { include_usage: true }, ...settings,
});
for await (const chunk of chunks) {
    content += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
}
assert.equal(content, answer.choices[0].message.content);
assert.deepEqual(usage, answer.usage);
const helper = client.chat.completions.stream({ messages, ...settings });
assert.equal((await helper.finalMessage()).content, content);

await assert.rejects(client.completions.create({ model: "other", prompt }), OpenAI.NotFoundError);
await assert.rejects(client.completions.create({ prompt, ...settings, best_of: 2 }), OpenAI.BadRequestError);

// A client that goes away.
const long = await client.completions.create({ model, prompt, max_tokens: 1000, temperature: 1, stream: true });
for await (const _ of long) break;
await client.completions.create({ prompt, ...settings, max_tokens: 1 });
console.log(`openai ${VERSION} of JavaScript: in order`);
