// The page `embeddings` as a person uses it, with a tiny BERT of random weights that is made here; what it shows is held against native
// candle over the same files.
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { contains, equal, launch, name, open, picture, pressLoad, test, text, wait } from "./harness.mjs";
import { randomNumbers, safetensors } from "./whisper.mjs";

/** f32 sums in another order. */
const TOLERANCE = 1e-4;

const CONFIG = {
    model_type: "bert", vocab_size: 57, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 96,
    hidden_act: "gelu", hidden_dropout_prob: 0.1, max_position_embeddings: 48, type_vocab_size: 2, initializer_range: 0.02,
    layer_norm_eps: 1e-12, pad_token_id: 0,
};

export async function run(site, screenshots) {
    const folder = await mkdtemp(join(tmpdir(), "candle-bert-"));
    const browser = await launch();
    try {
        const files = await writeModel(folder);
        const page = await open(browser, `${site}embeddings/`);
        await test("embeddings::bad_files", () => badFiles(page, folder, files));
        for (const device of ["webgpu", "cpu"]) {
            await test(`embeddings::similarities::${device}`, async () => {
                await page.select("#device", device === "cpu" ? "cpu" : "auto");
                await load(page, files);
                contains(await text(page, "#device-line"), device === "cpu" ? "Running on the CPU: selected by you" : "Running on webgpu");
                await checkMatrix(page, folder);
                await page.screenshot({ path: `${screenshots}/embeddings-${device}.png`, fullPage: true });
                await picture(page, screenshots, "embeddings", "#text-title");
            });
        }
        // The kernels of its head take Chromium's adapter ten seconds to compile.
        const device = name() === "chromium" ? "cpu" : "webgpu";
        await test(`embeddings::words::${device}`, async () => {
            await page.select("#device", device === "cpu" ? "cpu" : "auto");
            await load(page, await writeModel(join(folder, "masked"), true));
            contains(await text(page, "#notice"), "BertForMaskedLM", "Search");
            await checkMatrix(page, join(folder, "masked"), wordCosines);
            await page.select("#device", "cpu");
            await load(page, files);
            equal(await text(page, "#notice"), "", "a notice");
        });
        await test("embeddings::other_sentences::cpu", async () => {
            await page.click("#add");
            // The new field has the focus.
            await page.keyboard.type("a last one. It is longer than the model takes: it is cut where the model ends");
            const first = "#texts li:first-child";
            await page.$eval(`${first} input`, field => { field.value = ""; });
            await page.type(`${first} input`, "the girl is carrying a baby");
            await page.click("#texts li:nth-child(2) button");
            await page.click("#compare");
            await wait(page, () => document.querySelectorAll("#matrix tbody tr").length === 4
                && !document.querySelector("#matrix").hidden);
            const { matrix } = await checkMatrix(page, folder);
            // Alike but for a capital and a stop.
            equal(matrix[0][1] > 0.9, true, `a sentence and nearly the same: ${matrix[0][1]}`);
        });
    } finally {
        await browser.close();
        await rm(folder, { recursive: true });
    }
}

async function load(page, files) {
    await page.click("input[value=files]");
    const field = await page.$("#files");
    await field.uploadFile(...files);
    await pressLoad(page);
    await wait(page, () => !document.querySelector("#load").disabled);
    equal(await text(page, "#model-error"), "", "an error");
    contains(await text(page, "#state"), "Ready");
    await wait(page, () => !document.querySelector("#matrix").hidden);
}

async function vectorCosines(folder, texts) {
    const { stdout } = await promisify(execFile)(process.env.BERT_SIMILARITY, ["cpu", folder, ...texts]);
    return JSON.parse(stdout);
}

/** Native candle's results for a model of words: `words` of each text, with weights, and the products, `alike`. */
export async function nativeWords(folder, texts) {
    const { stdout } = await promisify(execFile)(process.env.SPLADE, ["cpu", "--json", folder, ...texts], { maxBuffer: 1 << 26 });
    return JSON.parse(stdout);
}

async function wordCosines(folder, texts) {
    const { alike } = await nativeWords(folder, texts);
    return alike.map((row, i) => row.map((product, j) => product / Math.sqrt(alike[i][i] * alike[j][j])));
}

/** What the page shows, held against native candle. */
async function checkMatrix(page, folder, cosines = vectorCosines) {
    equal(await text(page, "#text-error"), "", "an error");
    const texts = await page.$$eval("#texts input", fields => fields.map(field => field.value));
    const matrix = await page.$$eval("#matrix tbody tr", rows =>
        rows.map(row => [...row.querySelectorAll("td")].map(cell => Number(cell.dataset.value))));
    const native = await cosines(folder, texts);
    equal(matrix.map(row => row.length), native.map(row => row.length), "the matrix' size");
    let worst = 0;
    for (const [i, row] of native.entries()) {
        for (const [j, value] of row.entries()) worst = Math.max(worst, Math.abs(value - matrix[i][j]));
    }
    equal(worst <= TOLERANCE, true, `differs by ${worst} from ${JSON.stringify(native)}`);
    // A model that says the same of all sentences would test nothing.
    const others = native.flatMap((row, i) => row.filter((_, j) => j !== i));
    equal(Math.max(...others) - Math.min(...others) > 100 * TOLERANCE, true, "sentences that differ");
    console.error(`  within ${worst.toExponential(1)} of native candle`);
    return { matrix };
}

/** Each says what is wrong and what to do, and the page goes on working. */
async function badFiles(page, folder, files) {
    const config = join(folder, "other", "config.json");
    const cases = [
        [files.filter(file => !file.endsWith("tokenizer.json")), ["tokenizer.json", "missing"]],
        [[config, ...files.filter(file => !file.endsWith("config.json"))], ["config.json", "llama", "expected a bert"]],
    ];
    await page.click("input[value=files]");
    for (const [list, parts] of cases) {
        await (await page.$("#files")).uploadFile(...list);
        await pressLoad(page);
        await wait(page, () => document.querySelector("#model-error").textContent !== "");
        contains(await text(page, "#model-error"), ...parts);
    }
    equal(await page.$eval("#compare", button => button.disabled), true, "nothing to compare with");
}

/** A BERT and a tokenizer that spells; gives the files' paths. A `masked` one has the head that guesses hidden words, as SPLADE has. */
export async function writeModel(folder, masked = false) {
    const letters = [..."abcdefghijklmnopqrstuvwxyz"];
    const words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ...letters, ...letters.map(letter => `##${letter}`), "."];
    const special = words.slice(0, 4);
    const tokenizer = {
        version: "1.0", truncation: null, padding: null,
        added_tokens: special.map((content, id) =>
            ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true })),
        normalizer: { type: "BertNormalizer", clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase: true },
        pre_tokenizer: { type: "BertPreTokenizer" },
        post_processor: { type: "BertProcessing", sep: ["[SEP]", 3], cls: ["[CLS]", 2] },
        decoder: { type: "WordPiece", prefix: "##", cleanup: true },
        model: {
            type: "WordPiece", unk_token: "[UNK]", continuing_subword_prefix: "##", max_input_chars_per_word: 100,
            vocab: Object.fromEntries(words.map((word, id) => [word, id])),
        },
    };
    const write = async (name, content) => {
        const path = join(folder, name);
        await writeFile(path, content);
        return path;
    };
    await mkdir(join(folder, "other"), { recursive: true });
    await write("other/config.json", JSON.stringify({ ...CONFIG, model_type: "llama" }));
    const architectures = [masked ? "BertForMaskedLM" : "BertModel"];
    return [
        await write("config.json", JSON.stringify({ ...CONFIG, architectures })),
        await write("tokenizer.json", JSON.stringify(tokenizer)),
        await write("model.safetensors", safetensors(masked ? maskedWeights() : weights())),
    ];
}

/** Functions that fill `tensors` with numbers from `random`, by name: `[shape, numbers]`. */
function layers(tensors, random) {
    const { hidden_size: hidden } = CONFIG;
    const add = (name, shape, centre, scale) => {
        const numbers = Float32Array.from({ length: shape.reduce((a, b) => a * b) }, () => centre + scale * random());
        tensors[name] = [shape, numbers];
    };
    const linear = (name, from, to) => {
        add(`${name}.weight`, [to, from], 0, 1.7 / Math.sqrt(from));
        add(`${name}.bias`, [to], 0, 0.1);
    };
    const norm = name => {
        add(`${name}.weight`, [hidden], 1, 0.3);
        add(`${name}.bias`, [hidden], 0, 0.1);
    };
    return { add, linear, norm };
}

function weights(random = randomNumbers(), prefix = "") {
    const tensors = {};
    const { vocab_size, hidden_size: hidden, intermediate_size: inner, max_position_embeddings, num_hidden_layers } = CONFIG;
    const { add, linear, norm } = layers(tensors, random);
    for (const [name, length] of [["word", vocab_size], ["position", max_position_embeddings], ["token_type", 2]]) {
        add(`${prefix}embeddings.${name}_embeddings.weight`, [length, hidden], 0, 1);
    }
    norm(`${prefix}embeddings.LayerNorm`);
    for (let i = 0; i < num_hidden_layers; i++) {
        const layer = `${prefix}encoder.layer.${i}`;
        for (const name of ["self.query", "self.key", "self.value", "output.dense"]) linear(`${layer}.attention.${name}`, hidden, hidden);
        norm(`${layer}.attention.output.LayerNorm`);
        linear(`${layer}.intermediate.dense`, hidden, inner);
        linear(`${layer}.output.dense`, inner, hidden);
        norm(`${layer}.output.LayerNorm`);
    }
    return tensors;
}

/** The decoder is the table of the tokens' vectors, which the files have once. */
function maskedWeights() {
    const random = randomNumbers();
    const tensors = weights(random, "bert.");
    const { add, linear, norm } = layers(tensors, random);
    linear("cls.predictions.transform.dense", CONFIG.hidden_size, CONFIG.hidden_size);
    norm("cls.predictions.transform.LayerNorm");
    // Below 0: most words have no weight.
    add("cls.predictions.bias", [CONFIG.vocab_size], -6, 0.5);
    return tensors;
}
