// The page `dvm` as a person uses it, over a relay and with customers that nobody here wrote. NOSTR is the folder that has both.
import { execFile, spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { contains, equal, launch, open, picture, ready, set, test, text, wait } from "./harness.mjs";

const { NOSTR } = process.env;
const CUSTOMERS = resolve("xtask/nostr/customers.mjs");
/** Those of the script: nostr-tools in the open and with both kinds of encryption, NDK in the open and encrypted. */
const JOBS = 5;

export async function run(site, screenshots) {
    const { prompts } = JSON.parse(await readFile("candle-transformers/engine/model/golden.json", "utf8"));
    const golden = prompts[2];
    const { nip19 } = createRequire(`${NOSTR}/package.json`)("nostr-tools");
    const relay = await startRelay();
    const browser = await launch();
    try {
        const page = await open(browser, `${site}dvm/`);
        await test("dvm::bad_inputs", async () => {
            await ready(page);
            await page.click("#start");
            await problem(page, "at least one address");
            await set(page, "#relays", "https://example.com");
            await page.click("#start");
            await problem(page, "https://example.com");
            await set(page, "#relays", relay.address);
            await set(page, "#secret", "nsec1nothing");
            await page.click("#start");
            await problem(page, "not a secret key");
            await set(page, "#secret", "");
        });
        let key;
        const ask = async () => {
            // A software adapter makes a token in two seconds.
            const env = { ...process.env, PROMPT: golden.text, TOKENS: "4" };
            const { stdout } = await promisify(execFile)("node", [CUSTOMERS, relay.address, nip19.decode(key).data], { cwd: NOSTR, env });
            const made = JSON.parse(stdout.slice(stdout.indexOf('"')));
            if (!golden.greedy_text.startsWith(made)) throw new Error(`expected a beginning of ${golden.greedy_text}\nfound ${made}`);
        };
        await test("dvm::customers::webgpu", async () => {
            contains(await text(page, "#device-line"), "Running on webgpu");
            await page.click("#keep");
            key = await start(page);
            await ask();
            await wait(page, jobs => document.querySelectorAll("#jobs .result").length === jobs, JOBS);
            await wait(page, jobs => document.querySelector("#status").textContent.includes(`results ${jobs}`), JOBS);
            await page.screenshot({ path: `${screenshots}/dvm.png`, fullPage: true });
            await picture(page, screenshots, "dvm", "main .card");
        });
        await test("dvm::customers_of_a_hidden_tab::webgpu", async () => {
            const front = await browser.newPage();
            await front.bringToFront();
            equal(await page.evaluate(() => document.visibilityState), "hidden", "the tab");
            await ask();
            await wait(page, jobs => document.querySelectorAll("#jobs .result").length === jobs, 2 * JOBS);
            await front.close();
            await page.bringToFront();
        });
        await test("dvm::one_tab_for_a_key", async () => {
            const other = await open(browser, `${site}dvm/`);
            await ready(other);
            await other.click("#start");
            await problem(other, "another tab");
            await other.close();
        });
        await test("dvm::stop_and_start_again", async () => {
            await page.click("#stop");
            await wait(page, () => document.querySelector("#status").textContent === "Not serving");
            equal(await text(page, "#service-error"), "", "an error");
            await page.reload();
            await ready(page);
            equal(await start(page), key, "the key that was kept");
            equal(await text(page, "#journal"), "saved by the browser", "the journal");
            // The relay sends the last requests once more. Those are known.
            await new Promise(later => setTimeout(later, 3000));
            equal(await page.$$eval("#jobs tbody tr", rows => rows.length), 0, "jobs that were taken twice");
            await page.click("#stop");
            await wait(page, () => document.querySelector("#status").textContent === "Not serving");
        });
    } finally {
        await browser.close();
        await relay.stop();
    }
    // A whole text: on the CPU, which does not take two seconds for a token.
    await test("dvm::process_job::cpu", async () => {
        const browser = await launch(false);
        try {
            const page = await open(browser, `${site}dvm/`);
            await ready(page);
            const made = await page.evaluate(processJob, new URL("candle-wasm/", site).href, new URL("llm/model/", site).href, golden.text);
            equal(made.slice(0, 40), golden.greedy_text.slice(0, 40), "the text");
        } finally {
            await browser.close();
        }
    });
}

/** A relay with nothing in it, which asks everybody who they are. */
async function startRelay() {
    const free = createServer();
    const { port } = await new Promise(done => free.listen(0, "127.0.0.1", () => done(free.address())));
    await new Promise(done => free.close(done));
    const folder = await mkdtemp(join(tmpdir(), "candle-relay-"));
    const relay = spawn(resolve("xtask/nostr/relay.sh"), [join(NOSTR, "venv"), folder, String(port)], { stdio: "ignore" });
    const ended = new Promise(done => relay.on("exit", done));
    const listens = () => new Promise(done => {
        const socket = connect(port, "127.0.0.1", () => done(true) || socket.end());
        socket.on("error", () => done(false));
    });
    for (let tries = 0; !await listens(); tries++) {
        if (tries === 300 || relay.exitCode !== null) throw new Error(`the relay does not listen on 127.0.0.1:${port}`);
        await new Promise(later => setTimeout(later, 100));
    }
    const stop = async () => {
        relay.kill();
        await ended;
        await rm(folder, { recursive: true });
    };
    return { address: `ws://127.0.0.1:${port}`, stop };
}

/** Starts, and gives the public key once the relay is connected. */
async function start(page) {
    await page.click("#start");
    await wait(page, () => document.querySelector("#relay-states .up") || document.querySelector("#service-error").textContent);
    equal(await text(page, "#service-error"), "", "an error");
    return text(page, "#public-key");
}

async function problem(page, ...parts) {
    await wait(page, () => document.querySelector("#service-error").textContent !== "");
    contains(await text(page, "#service-error"), ...parts);
}

/** The package without a page of ours. */
async function processJob(folder, model, prompt) {
    const { loadDvm } = await import(`${folder}dvm.js`);
    const { BrowserDvm } = await loadDvm();
    const dvm = new BrowserDvm();
    await dvm.load_model(model);
    const text = await dvm.process_job(prompt);
    dvm.free();
    return text;
}
