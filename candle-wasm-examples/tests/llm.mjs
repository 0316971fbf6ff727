// The page `llm` as a person uses it, and the package without a page of ours.
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gguf } from "./gguf.mjs";
import { contains, equal, launch, load, name, open, picture, pressLoad, ready, set, test, text, wait } from "./harness.mjs";
import { modelFiles, serve } from "./models.mjs";

const MODEL = "candle-transformers/engine/model";
const FILES = ["config.json", "tokenizer.json", "model.safetensors"];
const PROMPTS = 3;
/** The modules that were built. */
const BUILDS = process.env.BUILDS.split(",");

export async function run(site, screenshots) {
    const { prompts } = JSON.parse(await readFile(`${MODEL}/golden.json`, "utf8"));
    const files = await modelFiles(MODEL);
    const [broken, kept] = [await serve(files), await serve(files)];
    const browser = await launch();
    try {
        const page = await open(browser, `${site}llm/`);
        await test("llm::texts::webgpu", async () => {
            await ready(page);
            contains(await text(page, "#device-line"), "Running on webgpu");
            // A software adapter makes a token in two seconds; whole texts are the CPU's, and native WebGPU's.
            await checkBeginning(page, prompts[0], 8);
            await page.screenshot({ path: `${screenshots}/llm.png`, fullPage: true });
            await picture(page, screenshots, "llm", "#text-title");
        });
        await test("llm::damaged_files_and_then_a_good_one::webgpu", () => damaged(page, broken.address, prompts[0]));
        await test("llm::stop::webgpu", () => stop(page));
        await test("llm::texts::cpu", async () => {
            await page.select("#device", "cpu");
            await load(page);
            contains(await text(page, "#device-line"), "Running on the CPU: selected by you");
            await checkTexts(page, prompts);
            // The driver can ask Chromium alone for dark colours.
            if (name() === "chromium") {
                await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
                await page.screenshot({ path: `${screenshots}/llm-dark.png`, fullPage: true });
            }
        });
        await test("llm::stop::cpu", () => stop(page));
        await test("llm::files_from_disk::cpu", () => fromDisk(page, prompts[0]));
        await test("llm::dropped_files::cpu", () => dropped(page, prompts[0]));
        await test("llm::options_out_of_range", () => outOfRange(page));
        // What a driver can do to Chromium alone.
        if (name() === "chromium") {
            await test("llm::quota_full::cpu", () => quotaFull(page, site, `${kept.address}good/`, prompts[0]));
            await test("llm::gpu_lost::webgpu", () => gpuLost(browser, page, prompts[0]));
        }
        await test("llm::second_visit_without_a_network", async () => {
            await page.click("input[value=url]");
            await set(page, "#url", `${kept.address}good/`);
            for (const name of ["there", "gone"]) {
                await load(page);
                equal(await text(page, "#model-error"), "", `an error with the server ${name}`);
                kept.stop();
            }
            await checkBeginning(page, prompts[0], 8);
            await page.close();
        });
        const blank = await open(browser, site);
        for (const build of BUILDS) {
            await test(`package::bytes::${build}::cpu`, () => packageOnCpu(blank, build, prompts[0]));
        }
        await test("package::heap_of_a_1_gb_file::webgpu", () => heap(blank));
        await test("package::abort_signal::webgpu", () => packageAbort(blank));
    } finally {
        await browser.close();
    }
    await test("llm::no_adapter", async () => {
        const browser = await launch(false);
        try {
            const page = await open(browser, `${site}llm/`);
            await ready(page);
            contains(await text(page, "#device-line"), "Running on the CPU: ", "WebGPU");
            await checkBeginning(page, prompts[0], 8);
        } finally {
            await browser.close();
        }
    });
    broken.stop();
}

async function generate(page, prompt, tokens) {
    await set(page, "#prompt", prompt);
    await set(page, "#max-tokens", String(tokens));
    await page.click("#generate");
    await wait(page, () => /tokens,/.test(document.querySelector("#speed").textContent)
        || document.querySelector("#text-error").textContent !== "");
    equal(await text(page, "#text-error"), "", "an error");
}

async function checkTexts(page, prompts) {
    for (const prompt of prompts.slice(0, PROMPTS)) {
        await generate(page, prompt.text, prompt.greedy_ids.length);
        equal(await text(page, "#made"), prompt.greedy_text, `after ${prompt.text}`);
        const device = await text(page, "#device-line");
        console.error(`  ${device}: ${await text(page, "#speed")}`);
    }
}

async function checkBeginning(page, prompt, tokens) {
    await generate(page, prompt.text, tokens);
    contains(await text(page, "#speed"), `${tokens} tokens,`);
    const made = await text(page, "#made");
    equal(made !== "" && prompt.greedy_text.startsWith(made), true, `${JSON.stringify(made)} as the beginning of the text`);
    console.error(`  ${await text(page, "#speed")}`);
}

/** A folder's files and GGUF files, chosen one after the other. */
async function fromDisk(page, prompt) {
    const folder = await mkdtemp(join(tmpdir(), "candle-gguf-"));
    try {
        const [file, quantized] = ["demo.gguf", "quantized.gguf"].map(name => join(folder, name));
        await writeFile(file, await gguf(MODEL));
        await writeFile(quantized, await gguf(MODEL, true));
        await page.click("input[value=files]");
        for (const files of [FILES.map(name => `${MODEL}/${name}`), [file], [quantized]]) {
            await (await page.$("#files")).uploadFile(...files);
            await load(page);
            equal(await text(page, "#model-error"), "", "an error");
            await checkBeginning(page, prompt, 12);
        }
        // Half of it, as when a download has ended early.
        const half = join(folder, "half.gguf");
        await writeFile(half, (await readFile(file)).subarray(0, 5_000_000));
        await (await page.$("#files")).uploadFile(half);
        await pressLoad(page);
        await wait(page, () => document.querySelector("#model-error").textContent !== "");
        contains(await text(page, "#model-error"), "half.gguf");
        console.error(`  ${await text(page, "#model-error")}`);
    } finally {
        await rm(folder, { recursive: true });
    }
}

/** The files' bytes come from here, not from the page's server: what is tried is the drop. */
async function dropped(page, prompt) {
    await page.click("input[value=files]");
    const files = await Promise.all(FILES.map(async name => [name, await readFile(`${MODEL}/${name}`, "base64")]));
    await page.evaluate(files => {
        const transfer = new DataTransfer();
        for (const [name, base64] of files) {
            const bytes = Uint8Array.from(atob(base64), character => character.charCodeAt(0));
            transfer.items.add(new File([bytes], name));
        }
        document.querySelector("#drop").dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
    }, files);
    contains(await text(page, "#chosen"), ...FILES);
    await load(page);
    await checkBeginning(page, prompt, 8);
}

/** With a model that is there, whatever the test before has left. */
async function outOfRange(page) {
    await page.click("input[value=default]");
    await load(page);
    await page.$eval("#temperature", field => { field.min = ""; });
    await set(page, "#temperature", "-1");
    try {
        await page.click("#generate");
        await wait(page, () => document.querySelector("#text-error").textContent !== "");
        contains(await text(page, "#text-error"), "temperature -1");
    } finally {
        await set(page, "#temperature", "0");
    }
}

/** Each says what is wrong and what to do; then the page works without having been loaded again. */
async function damaged(page, address, prompt) {
    const cases = [
        [`${address}missing/`, ["config.json", "404", "check the URL"]],
        [`${address}page.gguf`, ["page.gguf", "GGUF"]],
        [`${address}truncated/`, ["model.safetensors", "bytes"]],
        [`${address}whole/`, ["config.json", "range requests", "drop it on the page"]],
        ["http://127.0.0.1:9/model.gguf", ["model.gguf", "check the URL and the network"]],
    ];
    await page.evaluate(() => { globalThis.sameDocument = true; });
    await page.click("input[value=url]");
    for (const [url, parts] of cases) {
        await set(page, "#url", url);
        await pressLoad(page);
        await wait(page, () => document.querySelector("#model-error").textContent !== "");
        contains(await text(page, "#model-error"), ...parts);
    }
    await page.click("input[value=default]");
    await load(page);
    equal(await text(page, "#model-error"), "", "an error");
    await checkBeginning(page, prompt, 2);
    equal(await page.evaluate(() => globalThis.sameDocument), true, "the same document");
}

async function stop(page) {
    await set(page, "#temperature", "1.5");
    await set(page, "#max-tokens", "4000");
    await page.click("#generate");
    await wait(page, () => document.querySelector("#made").textContent !== "");
    await page.click("#stop");
    await wait(page, () => document.querySelector("#speed").textContent.endsWith("stopped"));
    await set(page, "#temperature", "0");
}

/** A model that the browser has no room to keep is told of, and runs. */
async function quotaFull(page, site, address, prompt) {
    const { origin } = new URL(site);
    const client = await page.createCDPSession();
    await client.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 1000 });
    try {
        await page.click("input[value=url]");
        await set(page, "#url", address);
        await load(page);
        contains(await text(page, "#notice"), "no space", "downloaded again next time");
        await checkBeginning(page, prompt, 8);
    } finally {
        await client.send("Storage.overrideQuotaForOrigin", { origin });
    }
}

/** The GPU's process ends in the middle of a text. */
async function gpuLost(browser, page, prompt) {
    await page.click("input[value=default]");
    await page.select("#device", "auto");
    await load(page);
    contains(await text(page, "#device-line"), "Running on webgpu");
    await set(page, "#temperature", "1.5");
    await set(page, "#max-tokens", "4000");
    await page.click("#generate");
    await wait(page, () => document.querySelector("#made").textContent !== "");
    const client = await browser.target().createCDPSession();
    const { processInfo } = await client.send("SystemInfo.getProcessInfo");
    process.kill(processInfo.find(({ type }) => type === "GPU").id, "SIGKILL");
    await wait(page, () => document.querySelector("#text-error").textContent !== "");
    contains(await text(page, "#text-error"), "GPU", "Load the model again");
    await set(page, "#temperature", "0");
    await load(page);
    contains(await text(page, "#device-line"), "Running on webgpu");
    await checkBeginning(page, prompt, 2);
}

/** Bytes in, text out, on a page that is none of ours. */
async function packageOnCpu(page, build, prompt) {
    const found = await page.evaluate(async (build, prompt) => {
        const { loadBuild } = await import("/candle-wasm/index.js");
        const { WasmModel, has_simd } = await loadBuild(build);
        const bytes = async name => new Uint8Array(await (await fetch(`/llm/model/${name}`)).arrayBuffer());
        const names = ["model.safetensors", "config.json", "tokenizer.json"];
        const model = new WasmModel(...await Promise.all(names.map(bytes)));
        const text = await model.generate(prompt, { max_tokens: 8 });
        const refused = [];
        for (const wrong of [() => new WasmModel(new Uint8Array(9)), () => model.generate("a", { tokens: 3 })]) {
            try {
                await wrong();
            } catch (error) {
                refused.push(error.message);
            }
        }
        return { simd: has_simd(), text, device: model.device, reason: model.cpu_reason, refused };
    }, build, prompt.text);
    equal(found.simd, build === "simd", "vector instructions");
    equal([found.device, found.reason], ["cpu", "init_gpu was not called"], "device");
    equal(found.text !== "" && prompt.greedy_text.startsWith(found.text), true, "a beginning of the text");
    equal(found.refused.length, 2, "errors");
    contains(found.refused[0], "GGUF");
    contains(found.refused[1], "`tokens` is unknown", "max_tokens");
}

async function packageAbort(page) {
    const found = await page.evaluate(async () => {
        const { load } = await import("/candle-wasm/index.js");
        const { fromFolder } = await import("/candle-wasm/files.js");
        const { WasmModel } = await load();
        const model = await WasmModel.open(await fromFolder("/llm/model/"));
        const gpu = await model.init_gpu();
        const abort = new AbortController();
        let pieces = "";
        const onPiece = piece => {
            pieces += piece;
            abort.abort();
        };
        const done = await model.generate_stream("fn main", { max_tokens: 200, signal: abort.signal }, onPiece);
        return { gpu, done, pieces, device: model.device };
    });
    equal(found.gpu, true, "init_gpu");
    contains(found.device, "webgpu");
    equal(found.done.stop_reason, "cancelled", "stop_reason");
    equal(found.done.text, found.pieces, "pieces");
    equal(found.done.tokens < 100, true, "fewer tokens than asked for");
}

/** A model whose weights are zeros goes to the GPU, and the module's memory hardly grows. */
async function heap(page) {
    const found = await page.evaluate(async () => {
        const [hidden, inner, layers, vocab, kv] = [2048, 8192, 8, 32000, 512];
        const config = {
            hidden_size: hidden, intermediate_size: inner, vocab_size: vocab, num_hidden_layers: layers, num_attention_heads: 32,
            num_key_value_heads: 8, rms_norm_eps: 1e-5, max_position_embeddings: 2048, tie_word_embeddings: true, rope_theta: 10000,
        };
        const shapes = { "model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden] };
        for (let layer = 0; layer < layers; layer++) {
            const parts = {
                input_layernorm: [hidden], post_attention_layernorm: [hidden], "self_attn.q_proj": [hidden, hidden],
                "self_attn.k_proj": [kv, hidden], "self_attn.v_proj": [kv, hidden], "self_attn.o_proj": [hidden, hidden],
                "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner],
            };
            for (const part in parts) shapes[`model.layers.${layer}.${part}.weight`] = parts[part];
        }
        const entries = {};
        let end = 0;
        for (const name in shapes) {
            const start = end;
            end += 2 * shapes[name].reduce((a, b) => a * b);
            entries[name] = { dtype: "BF16", shape: shapes[name], data_offsets: [start, end] };
        }
        const json = new TextEncoder().encode(JSON.stringify(entries));
        const head = new Uint8Array(8 + json.length);
        new DataView(head.buffer).setBigUint64(0, BigInt(json.length), true);
        head.set(json, 8);
        const weights = {
            name: "zeros.safetensors",
            size: head.length + end,
            read: async (start, length) => {
                const bytes = new Uint8Array(length);
                if (start < head.length) bytes.set(head.subarray(start, start + length));
                return bytes;
            },
        };
        const tokenizer = new Uint8Array(await (await fetch("/llm/model/tokenizer.json")).arrayBuffer());
        const { load } = await import("/candle-wasm/index.js");
        const { WasmModel, heap_bytes } = await load();
        const source = { config: new TextEncoder().encode(JSON.stringify(config)), tokenizer, weights: [weights] };
        const model = await WasmModel.open(source);
        await model.init_gpu();
        const before = heap_bytes();
        await model.load();
        const after = heap_bytes();
        model.free();
        return { size: weights.size, grown: after - before };
    });
    console.error(`  ${(found.size / 1e6).toFixed(0)} MB loaded, the heap grew by ${(found.grown / 1e6).toFixed(1)} MB`);
    equal(found.size > 1e9 && found.grown <= 64e6, true, JSON.stringify(found));
}
