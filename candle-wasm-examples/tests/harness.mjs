// A test runner whose lines read as cargo's do, and what tests of pages share.
import { mkdir } from "node:fs/promises";
import puppeteer from "puppeteer-core";

/** Long, because the adapter is software and the machine may have two cores that others use too. */
export const TIMEOUT = 300_000;

let passed = 0;
const failed = [];
let current;

/** Which browser the tests from here on run in. */
export function use(browser) {
    current = browser;
}

export const name = () => current;

/** The browser, opened with WebGPU, or without; `args` are more of Chromium's. */
export const launch = (gpu = true, args = []) => BROWSERS[current](gpu, args);

export async function test(what, body) {
    const name = `${current}::${what}`;
    const start = performance.now();
    try {
        await body();
        passed++;
        console.log(`test ${name} ... ok <${((performance.now() - start) / 1000).toFixed(1)}s>`);
    } catch (error) {
        failed.push(name);
        console.log(`test ${name} ... FAILED`);
        console.log(error.stack ?? error);
    }
}

/** Ends the process with what came of the tests. */
export function finish() {
    const word = failed.length === 0 ? "ok" : "FAILED";
    console.log(`test result: ${word}. ${passed} passed; ${failed.length} failed`);
    process.exit(failed.length === 0 ? 0 : 1);
}

export function equal(found, expected, what = "value") {
    const [a, b] = [JSON.stringify(found), JSON.stringify(expected)];
    if (a !== b) throw new Error(`${what}: expected\n  ${b}\nfound\n  ${a}`);
}

export function contains(text, ...parts) {
    for (const part of parts) {
        if (!text.includes(part)) throw new Error(`expected ${JSON.stringify(part)} in ${JSON.stringify(text)}`);
    }
}

/** Firefox has WebGPU for those who ask for it; on Linux it refuses adapters that are processors, unless told otherwise. */
const FIREFOX = {
    "dom.webgpu.enabled": true, "dom.webgpu.workers.enabled": true, "gfx.webgpu.ignore-blocklist": true, "gfx.webrender.all": true,
};

/** The browsers, by name: each opens with WebGPU or without. */
export const BROWSERS = {
    chromium: (gpu, args) => puppeteer.launch({
        executablePath: process.env.CHROME,
        args: [...process.env.CHROME_ARGS.split(" ").filter(arg => gpu || !/webgpu/.test(arg)), ...args],
        protocolTimeout: TIMEOUT,
    }),
    firefox: gpu => puppeteer.launch({
        browser: "firefox",
        executablePath: process.env.FIREFOX,
        extraPrefsFirefox: gpu ? FIREFOX : { "dom.webgpu.enabled": false },
        protocolTimeout: TIMEOUT,
    }),
};

/** A new page whose errors fail the test that uses it. */
export async function open(browser, url) {
    const page = await browser.newPage();
    page.setDefaultTimeout(TIMEOUT);
    await page.setViewport({ width: 1000, height: 1100 });
    page.on("pageerror", error => console.log(`error in the page: ${error.message}`));
    page.on("console", message => {
        if (message.type() === "error") console.log(`console: ${message.text()}`);
    });
    await page.goto(url);
    return page;
}

export const text = (page, selector) => page.$eval(selector, element => element.textContent);

/**
 * Waits until `predicate`, which runs in the page, is true; says what the page shows where it never is. A predicate that throws is asked
 * again: while a document is replaced it has no elements yet. (Puppeteer's `waitForFunction` never asks again after a first throw.)
 */
export async function wait(page, predicate, ...args) {
    const end = performance.now() + TIMEOUT;
    let problem;
    while (performance.now() < end && !page.isClosed()) {
        try {
            if (await page.evaluate(predicate, ...args)) return;
            problem = undefined;
        } catch (error) {
            problem = error;
        }
        await new Promise(done => setTimeout(done, 100));
    }
    const shown = await page.$eval("main", main => main.innerText);
    throw new Error(`waited ${TIMEOUT / 1000} s for ${predicate}${problem ? `: ${problem.message}` : ""}\nthe page shows:\n${shown}`);
}

/** Types into a field, in place of what is there. */
export async function set(page, selector, value) {
    await page.$eval(selector, field => {
        const details = field.closest("details");
        if (details) details.open = true;
        field.value = "";
    });
    await page.type(selector, value);
}

/** What was shown of a model before must not pass for what is shown of the next. */
export async function pressLoad(page) {
    await page.evaluate(() => {
        for (const id of ["state", "model-error"]) document.getElementById(id).textContent = "";
    });
    await page.click("#load");
}

/** Until the page's model is there. */
export const ready = page => wait(page, () => document.querySelector("#state").textContent.startsWith("Ready"));

export async function load(page) {
    await pressLoad(page);
    await ready(page);
}

/**
 * A small picture of a page from `selector` on, for the list of all pages: `pictures/NAME.webp` among the screenshots. The repository has
 * copies in `page/pictures`.
 */
export async function picture(page, screenshots, name, selector) {
    await mkdir(`${screenshots}/pictures`, { recursive: true });
    const before = page.viewport();
    await page.setViewport({ width: 960, height: 600, deviceScaleFactor: 0.5 });
    if (current === "chromium") await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
    await page.$eval(selector, element => element.closest(".card").scrollIntoView());
    // Firefox's driver makes no WebP.
    if (current === "chromium") await page.screenshot({ path: `${screenshots}/pictures/${name}.webp`, type: "webp", quality: 70 });
    await page.setViewport(before);
}
