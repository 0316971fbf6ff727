// The page `ops` as a person uses it.
import { contains, equal, launch, name, open, picture, test, text, wait } from "./harness.mjs";

/** Some 4,500 checks and 2,000 kernels to compile, on a software adapter. */
const TIMEOUT = 900_000;

export async function run(site, screenshots) {
    const browser = await launch();
    try {
        const page = await open(browser, `${site}ops/`);
        page.setDefaultTimeout(TIMEOUT);
        await test("ops::stop::webgpu", async () => {
            await wait(page, () => !document.querySelector("#run").disabled);
            await page.click("#run");
            await wait(page, () => document.querySelector("#progress").value > 0);
            await page.click("#stop");
            await wait(page, () => document.querySelector("#summary").textContent.startsWith("Ran only ")
                && !document.querySelector("#run").disabled);
            equal(await text(page, "#run-error"), "", "an error");
        });
        await test("ops::whole_list::webgpu", () => wholeList(page, screenshots));
        await test("ops::report::webgpu", () => report(page));
    } finally {
        await browser.close();
    }
    await test("ops::no_adapter", async () => {
        const browser = await launch(false);
        try {
            const page = await open(browser, `${site}ops/`);
            await wait(page, () => document.querySelector("#adapter-error").textContent !== "");
            contains(await text(page, "#adapter-error"), "WebGPU");
            equal(await page.$eval("#run", button => button.disabled), true, "a button that can do nothing");
        } finally {
            await browser.close();
        }
    });
}

async function wholeList(page, screenshots) {
    await page.click("#run");
    await wait(page, () => / in [\d.]+ s$/.test(document.querySelector("#summary").textContent)
        && !document.querySelector("#run").disabled);
    equal(await text(page, "#run-error"), "", "an error");
    const summary = await text(page, "#summary");
    console.error(`  ${summary}`);
    const failed = await page.$$eval("#failed tbody tr", rows => rows.map(row => row.innerText));
    equal(failed, [], "failed");
    contains(summary, " 0 failed,");
    equal(summary.startsWith("Ran only"), false, "all checks were run");
    await page.$eval("#more", details => { details.open = true; });
    contains(await text(page, "#limits"), "maxStorageBufferBindingSize");
    await page.$eval("#more", details => { details.open = false; });
    // What no browser has is told, with the reason, and is no failure.
    contains(await text(page, "#unsupported"), "all ops of f64", "SHADER_F64", "to f64 of u8");
    const rows = await page.$$eval("#table tbody tr", rows => rows.map(row => [...row.cells].map(cell => cell.textContent)));
    const add = rows.find(row => row[0] === "add");
    const header = await page.$$eval("#table thead td", cells => cells.map(cell => cell.textContent));
    const marks = Object.fromEntries(header.slice(1, -1).map((dtype, i) => [dtype, add[i + 1]]));
    const expected = Object.fromEntries(header.slice(1, -1).map(dtype => [dtype, dtype === "f64" ? "–" : "✓"]));
    equal(marks, expected, "add");
    const layers = await page.$$eval("#layers tbody tr", rows => rows.map(row => [...row.cells].map(cell => cell.textContent)));
    equal(layers.length > 10, true, "layers");
    equal(layers.filter(([, mark]) => mark !== "✓"), [], "layers that are not as on the CPU");
    await page.screenshot({ path: `${screenshots}/ops.png`, fullPage: true });
    await picture(page, screenshots, "ops", "main .card");
}

async function report(page) {
    await page.click("#copy");
    await wait(page, () => document.querySelector("#copied").textContent.startsWith("Copied"));
    const report = JSON.parse(await paste(page));
    equal(report.page, "candle ops", "page");
    equal(report.failed, [], "failed");
    equal(report.counts.failed, 0, "failures");
    equal(report.counts.passed > 3000, true, "most pass");
    equal(report.ops.find(({ name }) => name === "matmul").dtypes.f32.is, "passed", "matmul of f32");
    equal(report.ops.find(({ name }) => name === "matmul").dtypes.f64.is, "unsupported", "matmul of f64");
    equal(report.layers.find(({ layer }) => layer.startsWith("sdpa, 1 query, 100")).outcome.is, "passed", "attention to 100 keys");
    equal(typeof report.adapter.limits.maxBufferSize, "number", "a limit");
    contains(report.browser, { chromium: "Chrome", firefox: "Firefox" }[name()]);
}

/** What is in the clipboard, as somebody gets it who was sent the report: a page may not ask for it. */
async function paste(page) {
    await page.evaluate(() => {
        document.body.append(Object.assign(document.createElement("textarea"), { id: "pasted" }));
    });
    await page.focus("#pasted");
    await page.keyboard.down("Control");
    await page.keyboard.press("v");
    await page.keyboard.up("Control");
    await wait(page, () => document.querySelector("#pasted").value !== "");
    const pasted = await page.$eval("#pasted", field => field.value);
    await page.$eval("#pasted", field => field.remove());
    return pasted;
}
