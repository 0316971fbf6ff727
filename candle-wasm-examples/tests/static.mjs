// The site as a folder, behind a server that only serves files: no special headers, no parts of files, not at the root.
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join, normalize } from "node:path";
import { promisify } from "node:util";
import { contains, equal, launch, name, open, set, test, text, wait } from "./harness.mjs";

const TOOL = "target/web/debug/web-tool";
const MODEL = "candle-transformers/engine/model";
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm" };
/** Where the folder is on its host. */
const PATH = "/some/project/";

export async function run() {
    // The service worker is the same for every browser.
    if (name() !== "chromium") return;
    const folder = await mkdtemp(join(tmpdir(), "candle static "));
    try {
        await test("static::isolated_page::cpu", () => answers(join(folder, "site")));
    } finally {
        await rm(folder, { recursive: true });
    }
}

async function answers(folder) {
    const { prompts: [prompt] } = JSON.parse(await readFile(`${MODEL}/golden.json`, "utf8"));
    await promisify(execFile)(TOOL, ["export", folder]);
    const server = await host(folder);
    // Without a GPU: the page `llm` runs on one elsewhere.
    const browser = await launch(false);
    try {
        const page = await open(browser, `${server.address}llm/`);
        await wait(page, () => globalThis.crossOriginIsolated && document.querySelector("#state").textContent.startsWith("Ready"));
        await set(page, "#prompt", prompt.text);
        await set(page, "#max-tokens", "8");
        await page.click("#generate");
        await wait(page, () => / tokens, /.test(document.querySelector("#speed").textContent));
        const made = await text(page, "#made");
        equal(made !== "" && prompt.greedy_text.startsWith(made), true, `${JSON.stringify(made)} as the beginning of the text`);
        await page.click('nav a[href="../"]');
        await page.waitForSelector('a[href="chat/"]');
        contains(page.url(), PATH);
        equal(await page.evaluate(() => globalThis.crossOriginIsolated), true, "the list of pages is isolated");
    } finally {
        await browser.close();
        server.stop();
    }
}

async function host(folder) {
    const server = createServer(async (request, response) => {
        let path = normalize(decodeURIComponent(new URL(request.url, "http://host").pathname));
        if (path.endsWith("/")) path += "index.html";
        const bytes = path.startsWith(PATH) ? await readFile(join(folder, path.slice(PATH.length))).catch(() => null) : null;
        if (!bytes) return response.writeHead(404).end("no such file");
        response.writeHead(200, { "Content-Type": TYPES[extname(path)] ?? "application/octet-stream" }).end(bytes);
    });
    await new Promise(done => server.listen(0, "127.0.0.1", done));
    const stop = () => {
        server.close();
        server.closeAllConnections();
    };
    return { stop, address: `http://127.0.0.1:${server.address().port}${PATH}` };
}
