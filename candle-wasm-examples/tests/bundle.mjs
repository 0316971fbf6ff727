// The npm package in an app that Vite has bundled, as it is served afterwards.
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, extname, join, relative } from "node:path";
import { promisify } from "node:util";
import { build } from "vite";
import { contains, equal, launch, name, open, test } from "./harness.mjs";
import { modelFiles, serve } from "./models.mjs";

const PACKAGE = "target/web/site/candle-wasm";
const SOURCES = "candle-wasm-examples/candle-wasm/package";
const MODEL = "candle-transformers/engine/model";

const INDEX = '<!doctype html><html lang="en"><title>App</title><main id="app"></main><script type="module" src="/main.js"></script></html>';
const MAIN = `
import { load } from "candle-wasm";
import { createEngine } from "candle-wasm/engine.js";
import { fromFolder } from "candle-wasm/files.js";
import { loadSpeech } from "candle-wasm/speech.js";

globalThis.complete = async (prompt, tokens) => {
    const { WasmModel } = await load();
    const model = await WasmModel.open(await fromFolder("/app/model/"));
    return model.generate(prompt, { max_tokens: tokens });
};
globalThis.engine = async (prompt, tokens) => {
    const engine = await createEngine("/app/model/", { threads: 2 });
    const { choices: [{ text }] } = await engine.completions.create({ prompt, max_tokens: tokens });
    return { text, threads: engine.info.threads };
};
globalThis.speech = async () => Object.keys(await loadSpeech());
`;

export async function run() {
    // The bundle is the same for every browser.
    if (name() !== "chromium") return;
    const app = await mkdtemp(join(tmpdir(), "candle-app-"));
    try {
        await test("package::bundled_by_vite::cpu", () => bundled(app));
        await test("package::packed_by_npm", () => packed(join(app, "packed")));
    } finally {
        await rm(app, { recursive: true });
    }
}

async function bundled(app) {
    const { prompts: [prompt] } = JSON.parse(await readFile(`${MODEL}/golden.json`, "utf8"));
    await install(app);
    await writeFile(join(app, "index.html"), INDEX);
    await writeFile(join(app, "main.js"), MAIN);
    await build({ root: app, logLevel: "warn", worker: { format: "es" } });
    const files = await modelFiles(MODEL);
    for (const [path, bytes] of [...files]) files.set(path.replace("/good/", "/app/model/"), bytes);
    const dist = join(app, "dist");
    for (const entry of await readdir(dist, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile()) continue;
        const path = join(entry.parentPath, entry.name);
        files.set(`/${relative(dist, path)}`, await readFile(path));
    }
    equal([...files.keys()].filter(path => extname(path) === ".wasm").length > 0, true, "a module in the bundle");
    files.set("/", files.get("/index.html"));
    const server = await serve(files, true);
    const browser = await launch(false);
    try {
        const page = await open(browser, server.address);
        const text = await page.evaluate(text => globalThis.complete(text, 8), prompt.text);
        equal(text !== "" && prompt.greedy_text.startsWith(text), true, `${JSON.stringify(text)} as the beginning of the text`);
        const made = await page.evaluate(text => globalThis.engine(text, 8), prompt.text);
        equal(made, { text, threads: 2 }, "the engine's text, in its Worker");
        contains((await page.evaluate(() => globalThis.speech())).join(), "WasmSpeech");
    } finally {
        await browser.close();
        server.stop();
    }
}

/** The compressed copies that servers send are not for npm, which compresses by itself. The modules are short, as npm compresses them here too. */
async function packed(folder) {
    await cp(SOURCES, folder, { recursive: true });
    const modules = ["simd/candle_bg.wasm", "speech/simd/candle_bg.wasm"];
    for (const name of modules) {
        await mkdir(dirname(join(folder, name)), { recursive: true });
        for (const ending of ["", ".br", ".gz"]) await writeFile(join(folder, name + ending), "short");
    }
    const { stdout } = await promisify(execFile)("npm", ["pack", "--dry-run", "--json"], { cwd: folder });
    const paths = JSON.parse(stdout)[0].files.map(file => file.path);
    contains(paths.join(), "index.js", ...modules);
    equal(paths.filter(path => /\.(br|gz)$/.test(path)), [], "compressed copies");
}

/** Puts the package where npm would; where a build was not made, another's files take its place, and nothing loads them. */
async function install(app) {
    const to = join(app, "node_modules", "candle-wasm");
    await mkdir(to, { recursive: true });
    await cp(PACKAGE, to, { recursive: true });
    const has = build => stat(join(to, build)).then(() => true, () => false);
    for (const folder of ["", "speech", "grammar", "dvm"]) {
        for (const build of ["threads", "plain"]) {
            if (!await has(join(folder, build))) await cp(join(to, folder, "simd"), join(to, folder, build), { recursive: true });
        }
    }
}
