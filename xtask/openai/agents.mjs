// Vercel's AI SDK as a client of `candle-dvm api`: agents.mjs FOLDER-OF-THE-PACKAGES URL MODEL

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, baseURL, name] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/`));
const load = async package_ => import(pathToFileURL(require.resolve(package_)));
const { generateObject, generateText, streamText, tool, stepCountIs } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { z } = await load("zod");

const provider = createOpenAI({ baseURL, apiKey: "none" });
// The default of the package is responses.
for (const [kind, model] of [["responses", provider(name)], ["chat", provider.chat(name)]]) {
    const settings = { model, temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
    const prompt = "What is the capital of France?";
    const whole = await generateText({ ...settings, prompt });
    assert.match(whole.text, /Paris/, kind);
    assert.ok(whole.usage.outputTokens > 0, kind);
    let text = "";
    for await (const piece of streamText({ ...settings, prompt }).textStream) text += piece;
    assert.equal(text, whole.text, kind);
    const schema = z.object({ name: z.string().max(30), inhabitants: z.number().int().min(1).max(50000000) });
    const { object } = await generateObject({ ...settings, schema, prompt: "Name a town in Italy." });
    assert.ok(schema.safeParse(object).success, kind);
    const weather = tool({
        description: "The weather in a city",
        inputSchema: z.object({ city: z.string().max(30) }),
        execute: async ({ city }) => `sunny in ${city}`,
    });
    const called = await generateText({
        ...settings, tools: { weather }, toolChoice: "required", stopWhen: stepCountIs(1), prompt: "How is the weather in Oslo?",
    });
    assert.equal(called.toolCalls.length, 1, kind);
    assert.match(called.toolResults[0].output, /^sunny in /, kind);
    const again = await generateText({
        ...settings, tools: { weather }, stopWhen: stepCountIs(1),
        messages: [{ role: "user", content: "How is the weather in Oslo?" }, ...called.response.messages],
    });
    assert.ok(again.text.length > 0, kind);
}
console.log("AI SDK, responses and chat: in order");
