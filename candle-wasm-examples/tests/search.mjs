// The page `search` as a person uses it, with tiny BERTs of random weights, and a trained SPLADE: SPLADE_MODEL is its folder. Scores and
// words are held against native candle, the programs BERT_SIMILARITY and SPLADE.
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { nativeWords, writeModel } from "./embeddings.mjs";
import { contains, equal, launch, load, name, open, picture, test, text, wait } from "./harness.mjs";

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
        await test("search::words::cpu", async () => {
            const masked = join(folder, "masked");
            await words(page, masked, await writeModel(masked, true), QUESTION, PARAGRAPHS);
        });
        await test("search::splade::cpu", () => trained(page, resolve(process.env.SPLADE_MODEL)));
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

const found = page => page.$$eval("#results > li", items => items.map(item => [item.querySelector("p").textContent, Number(item.dataset.score)]));

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

/** A list of words with numbers, as the page shows it. */
const shownWords = list => list.$$eval("li", items => items.map(item => [item.dataset.word, Number(item.dataset.weight)]));

/** Words with numbers, held against those of native candle: the heaviest, at most `most`, largest first. Two that are nearly equal may change places. */
function checkWords(shown, native, most, what) {
    const all = new Map(native);
    equal(shown.length, Math.min(most, native.length), `number of ${what}`);
    shown.forEach(([word, weight], i) => {
        const worst = Math.max(Math.abs(weight - (all.get(word) ?? 0)), Math.abs(weight - native[i][1]));
        equal(worst <= TOLERANCE * (1 + weight), true, `${what}: ${word} has ${weight}; natively ${JSON.stringify(native.slice(0, most))}`);
    });
}

/** Loads a model whose output is words, and asks: the words of the question, and of each passage those that both have. */
async function words(page, folder, files, question, paragraphs) {
    await page.$eval("#model-box", box => { box.open = true; });
    await page.click("input[value=files]");
    await (await page.$("#files")).uploadFile(...files);
    await load(page);
    await page.$eval("#document", (field, value) => { field.value = value; field.dispatchEvent(new Event("input")); }, paragraphs.join("\n\n"));
    await page.$eval("#question", (field, value) => { field.value = value; }, question);
    await page.click("#search");
    await wait(page, () => document.querySelector("#status").textContent.startsWith("The best") && document.body.ariaBusy === "false");
    const { words: [asked, ...others], alike: [[, ...scores]] } = await nativeWords(folder, [question, ...paragraphs]);
    checkWords(await shownWords(await page.$("#asked-words")), asked, 20, "words of the question");
    const expected = paragraphs.map((text, i) => [text, scores[i], new Map(others[i])]).sort((a, b) => b[1] - a[1]).slice(0, 5);
    const shown = await found(page);
    equal(shown.map(([text]) => text), expected.map(([text]) => text), "the order");
    const lists = await page.$$("#results > li");
    for (const [i, [text, score, its]] of expected.entries()) {
        equal(Math.abs(shown[i][1] - score) <= TOLERANCE * (1 + score), true, `${shown[i][1]} of ${JSON.stringify(text)}, natively ${score}`);
        const common = asked.filter(([word]) => its.has(word)).map(([word, weight]) => [word, weight * its.get(word)]);
        checkWords(await shownWords(lists[i]), common.sort((a, b) => b[1] - a[1]), 8, `common words of ${JSON.stringify(text)}`);
    }
    return { asked, expected };
}

/** A model that somebody trained finds what a question is about, also words that are not in it. */
async function trained(page, folder) {
    const files = ["config.json", "tokenizer.json", "model.safetensors"].map(name => join(folder, name));
    const paragraphs = [
        "Bread rises because yeast gives off carbon dioxide in the dough.",
        "Paris has been the seat of the French government since the Middle Ages. The Seine divides it.",
        "A lighthouse lens is cut into rings.",
    ];
    const { asked, expected } = await words(page, folder, files, "What is the capital of France?", paragraphs);
    equal(expected[0][0], paragraphs[1], "the best passage");
    const first = asked.slice(0, 20).map(([word]) => word);
    equal(["capital", "france", "french", "paris"].filter(word => !first.includes(word)), [], `missing of ${first}`);
    const added = await page.$$eval("#asked-words li.new", items => items.map(item => item.dataset.word));
    equal([added.includes("paris"), added.includes("capital")], [true, false], "words that are not in the question");
    contains((await shownWords(await page.$("#results > li"))).join(), "french", "paris");
    contains(await text(page, "#results > li mark"), "Paris has been the seat");
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
    await page.$eval("#document", field => { field.value = "Cats see well at night.\n\nParis has been the seat of the French government since the Middle Ages. The Seine divides it."; });
    await page.click("#search");
    await wait(page, () => document.querySelectorAll("#results > li").length === 2);
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
