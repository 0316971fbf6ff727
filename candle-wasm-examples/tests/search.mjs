// The page `search` as a person uses it, with a tiny BERT of random weights; the scores that it shows are held against native candle.
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { writeModel } from "./embeddings.mjs";
import { contains, equal, launch, name, open, picture, test, text, wait } from "./harness.mjs";

/** f32 sums in another order. */
const TOLERANCE = 1e-4;
const QUESTION = "what is alive";
const PARAGRAPHS = ["The cat sits. It is alive.", "a stone lies in the sun", "bread is made of flour", "Fish swim. Birds fly. Both live.", "a lamp", "ink"];

export async function run(site, screenshots) {
    const folder = await mkdtemp(join(tmpdir(), "candle-search-"));
    // Without a GPU: the page `embeddings` has the same module on one.
    const browser = await launch(false);
    try {
        const files = await writeModel(folder);
        const page = await open(browser, `${site}search/`);
        await test("search::passages", () => cut(page));
        await test("search::ranking::cpu", () => ranking(page, folder, files));
        await test("search::a_text_that_changes::cpu", () => changed(page));
        await test("search::looks", () => looks(page, screenshots));
    } finally {
        await browser.close();
        await rm(folder, { recursive: true });
    }
}

async function cut(page) {
    const found = await page.evaluate(async () => {
        const { passages } = await import("/search/passages.js");
        const long = "These are eight words of a long text. ".repeat(30);
        return [passages("one\ntwo\n\n \nthree.  Four.\n\n"), passages(" \n\n"), passages(long).map(passage => passage.split(" ").length)];
    });
    equal(found, [["one two", "three. Four."], [], [88, 88, 64]], "passages");
}

const found = page => page.$$eval("#results li", items => items.map(item => [item.querySelector("p").textContent, Number(item.dataset.score)]));

async function ranking(page, folder, files) {
    await page.$eval("#question", field => { field.value = ""; });
    await page.type("#question", QUESTION);
    const file = join(folder, "notes.md");
    await writeFile(file, PARAGRAPHS.join("\n\n"));
    await (await page.$("#document-file")).uploadFile(file);
    await wait(page, () => document.querySelector("#count").textContent === "6 passages");
    // The files of the model are not chosen yet.
    await page.click("input[value=files]");
    await page.focus("#question");
    await page.keyboard.press("Enter");
    await wait(page, () => document.querySelector("#model-error").textContent !== "");
    contains(await text(page, "#status"), "Load a model");
    await (await page.$("#files")).uploadFile(...files);
    await page.focus("#question");
    await page.keyboard.press("Enter");
    await wait(page, () => document.querySelector("#status").textContent.startsWith("The best"));
    contains(await text(page, "#status"), "The best 5 of 6 passages");
    const { stdout } = await promisify(execFile)(process.env.BERT_SIMILARITY, ["cpu", folder, QUESTION, ...PARAGRAPHS]);
    const scores = JSON.parse(stdout)[0].slice(1);
    const expected = PARAGRAPHS.map((text, i) => [text, scores[i]]).sort((a, b) => b[1] - a[1]).slice(0, 5);
    const shown = await found(page);
    equal(shown.map(([text]) => text), expected.map(([text]) => text), "the order");
    const worst = Math.max(...shown.map(([, score], i) => Math.abs(score - expected[i][1])));
    equal(worst <= TOLERANCE && shown[0][1] - shown[4][1] > 100 * TOLERANCE, true, `differs by ${worst} from ${stdout}`);
    const marked = await page.$$eval("#results mark", marks => marks.map(mark => mark.textContent));
    equal(marked.length, shown.filter(([text]) => /\. /.test(text)).length, "a marked sentence in each passage of several");
}

async function changed(page) {
    await page.$eval("#document", field => { field.value = "only this\n\nand that"; field.dispatchEvent(new Event("input")); });
    await page.click("#search");
    await wait(page, () => document.querySelector("#status").textContent.startsWith("The best 2 of 2"));
    equal((await found(page)).map(([text]) => text).sort(), ["and that", "only this"], "passages of the new text");
    await page.$eval("#document", field => { field.value = " "; });
    await page.click("#search");
    contains(await text(page, "#search-error"), "Paste a text");
}

/** Nothing is wider than a phone; the screenshots are for people. */
async function looks(page, screenshots) {
    await page.$eval("#document", field => { field.value = "Ice floats. Water widens as it freezes.\n\nCats see well at night."; });
    await page.click("#search");
    await wait(page, () => document.querySelectorAll("#results li").length === 2);
    for (const [width, theme] of [[1000, "light"], [390, "light"], [1000, "dark"], [390, "dark"]]) {
        await page.setViewport({ width, height: 900 });
        // The driver can ask Chromium alone for dark colours.
        if (name() === "chromium") await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        equal(wide <= width, true, `${wide} pixels of ${width}`);
        await page.screenshot({ path: `${screenshots}/search-${width}-${theme}.png`, fullPage: true });
    }
    await picture(page, screenshots, "search", "#question-title");
}
