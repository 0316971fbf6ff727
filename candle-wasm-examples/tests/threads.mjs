// The CPU's threads: workers over one memory, where the page is isolated; one thread elsewhere, with the reason.
import { readFile } from "node:fs/promises";
import { createServer, get } from "node:http";
import { contains, equal, launch, open, ready, set, test, text, wait } from "./harness.mjs";

const MODEL = "candle-transformers/engine/model";
/** More than the machine may have: ops wait for all of them. */
const THREADS = 3;

export async function run(site) {
    const { prompts } = JSON.parse(await readFile(`${MODEL}/golden.json`, "utf8"));
    const browser = await launch(false);
    try {
        await test("threads::texts::cpu", () => texts(browser, `${site}llm/?threads=${THREADS}`, prompts, "on 3 threads"));
        const bare = await withoutHeaders(site);
        const why = "on one thread, because the page is not cross-origin isolated";
        await test("threads::page_that_is_not_isolated::cpu", () => texts(browser, `${bare.address}llm/?threads=${THREADS}`, prompts.slice(0, 1), why));
        bare.stop();
        await test("threads::lost_in_an_op", () => lost(browser, `${site}llm/?threads=${THREADS}`));
    } finally {
        await browser.close();
    }
}

async function texts(browser, url, prompts, line) {
    const page = await open(browser, url);
    await ready(page);
    contains(await text(page, "#device-line"), "Running on the CPU: ", line);
    for (const prompt of prompts) {
        await set(page, "#prompt", prompt.text);
        await set(page, "#max-tokens", String(prompt.greedy_ids.length));
        await page.click("#generate");
        await wait(page, () => /tokens,/.test(document.querySelector("#speed").textContent)
            || document.querySelector("#text-error").textContent !== "");
        equal(await text(page, "#made"), prompt.greedy_text, `after ${prompt.text}`);
        console.error(`  ${line}: ${await text(page, "#speed")}`);
    }
    await page.close();
}

/** A thread that ends in the middle of an op, as after a panic: the op fails and does not wait for ever. */
async function lost(browser, url) {
    const page = await open(browser, url);
    await ready(page);
    const message = await page.evaluate(async () => {
        const script = `
            import { load } from "${location.origin}/candle-wasm/index.js";
            import { fromFolder } from "${location.origin}/candle-wasm/files.js";
            const module = await load({ build: "threads", threads: 2 });
            const model = await module.WasmModel.open(await fromFolder("${location.origin}/llm/model/"));
            await model.generate("fn", { max_tokens: 2 });
            module.lose_worker(0);
            postMessage(await model.generate("fn", { max_tokens: 2 }).then(() => "no error", error => error.constructor.name));
        `;
        const worker = new Worker(URL.createObjectURL(new Blob([script], { type: "text/javascript" })), { type: "module" });
        return new Promise((resolve, reject) => {
            worker.onmessage = ({ data }) => resolve(data);
            worker.onerror = event => resolve(event.message);
            setTimeout(() => reject(new Error("the op waits for the lost thread")), 20_000);
        });
    });
    contains(message, "unreachable");
    await page.close();
}

/** The same site from a server that sends no headers of isolation. */
async function withoutHeaders(site) {
    const server = createServer((request, response) => get(new URL(request.url, site), { headers: request.headers }, answer => {
        const headers = Object.fromEntries(Object.entries(answer.headers).filter(([name]) => !name.startsWith("cross-origin-")));
        response.writeHead(answer.statusCode, headers);
        answer.pipe(response);
    }));
    await new Promise(done => server.listen(0, "127.0.0.1", done));
    const stop = () => {
        server.close();
        server.closeAllConnections();
    };
    return { stop, address: `http://127.0.0.1:${server.address().port}/` };
}
