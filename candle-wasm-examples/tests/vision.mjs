// The page `vision` as a person uses it. A trained EfficientNet-Lite0 names a cat and a cup of coffee; PICTURES is the folder with it, its labels
// and both pictures, as xtask makes it. YOLOv8 and MobileSAM have random weights: their boxes and masks say nothing of the pictures, and are
// held against native candle, the programs DETECT and SEGMENT.
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { contains, equal, launch, name, open, picture, pressLoad, ready, test, text, wait } from "./harness.mjs";
import { serve } from "./models.mjs";
import { png, randomSam, randomYolo } from "./pictures.mjs";
import { safetensors } from "./whisper.mjs";

/** Tabby, tiger cat, Egyptian cat; espresso: their numbers in ImageNet. */
const CATS = [281, 282, 285];
const ESPRESSO = 967;
const MODEL = "efficientnet-lite0.pth";
/** What a program of a GPU may differ by. */
const TOLERANCE = 0.01;

export async function run(site, screenshots) {
    const shown = resolve(process.env.PICTURES);
    const folder = await mkdtemp(join(tmpdir(), "candle-vision-"));
    const files = new Map();
    for (const file of [MODEL, "labels.txt"]) files.set(`/lite0/${file}`, await readFile(join(shown, file)));
    const server = await serve(files);
    const camera = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"];
    let browser = await launch(false, name() === "chromium" ? camera : []);
    try {
        let page = await open(browser, `${site}vision/`);
        await test("vision::bad_files", () => badFiles(page, folder, server.address));
        const onCpu = await classified("cpu", page, server.address, shown);
        await picture(page, screenshots, "vision", "#result-title");
        await test("vision::wrong_model_beside_a_loaded_one", () => stays(page, folder, shown));
        await test("vision::pasted_and_dropped", () => otherWays(page, shown));
        if (name() === "chromium") await test("vision::camera", () => photographed(page));
        await test("vision::boxes::cpu", () => boxes(page, folder));
        // Firefox has the modules as they are published: with Chromium's the encoder takes half a minute.
        if (name() === "firefox") await test("vision::masks::cpu", () => masks(page, folder));
        await browser.close();
        browser = await launch();
        page = await open(browser, `${site}vision/`);
        const onGpu = await classified("webgpu", page, server.address, shown);
        await test("vision::same_on_the_gpu", () => {
            const worst = Math.max(...onCpu.map(([, share], i) => Math.abs(share - onGpu[i][1])));
            equal(onGpu.map(([number]) => number), onCpu.map(([number]) => number), "classes");
            equal(worst <= TOLERANCE, true, `probabilities differ by ${worst}`);
        });
        await test("vision::looks", () => looks(page, screenshots));
    } finally {
        await browser.close();
        server.stop();
        await rm(folder, { recursive: true });
    }
}

const finished = page => wait(page, () => document.body.ariaBusy === "false" && / (ms|s) on the (GPU|CPU)/.test(document.querySelector("#status").textContent));
const choose = async (page, file) => {
    await page.$eval("#status", status => { status.textContent = ""; });
    await (await page.$("#file")).uploadFile(file);
};
/** Numbers of classes and how likely they are, as the page shows them. */
const results = page => page.$$eval("#results li", lines => lines.map(line => [Number(line.dataset.class), line.querySelector("meter").value]));

async function chooseModel(page, ...files) {
    await page.$eval("#model-box", box => { box.open = true; });
    await page.click("input[value=files]");
    await (await page.$("#files")).uploadFile(...files);
    await pressLoad(page);
}

async function badFiles(page, folder, address) {
    const path = file => join(folder, file);
    await writeFile(path("notes.png"), "no picture");
    await choose(page, path("notes.png"));
    await wait(page, () => document.querySelector("#picture-error").textContent !== "");
    contains(await text(page, "#picture-error"), "notes.png", "cannot decode", "PNG");

    await writeFile(path("text.safetensors"), "no tensors at all");
    await writeFile(path("other.safetensors"), safetensors({ "encoder.weight": [[1], new Float32Array(1)] }));
    await writeFile(path("empty.pth"), "");
    const error = async (...parts) => {
        await wait(page, () => document.querySelector("#model-error").textContent !== "" && !document.querySelector("#load").disabled);
        contains(await text(page, "#model-error"), ...parts);
    };
    for (const [file, ...parts] of [
        ["text.safetensors", "text.safetensors"], ["other.safetensors", "other.safetensors", "encoder.weight", "EfficientNet-Lite0"],
        ["empty.pth", "empty.pth"], ["notes.png", "notes.png", ".safetensors"],
    ]) {
        await chooseModel(page, path(file));
        await error(...parts);
    }
    await page.click("input[value=url]");
    for (const [place, ...parts] of [[`${address}none/model.pth`, "model.pth", "404"], ["owner/name:model.gguf", "safetensors"]]) {
        await page.$eval("#url", field => { field.value = ""; });
        await page.type("#url", place);
        await pressLoad(page);
        await error(...parts);
    }
}

/** The picture is there first: it loads the model. Gives what is shown of the cat. */
async function classified(device, page, address, shown) {
    let cat = [];
    await test(`vision::a_cat::${device}`, async () => {
        await page.click("input[value=url]");
        await page.$eval("#url", field => { field.value = ""; });
        await page.type("#url", `${address}lite0/${MODEL}`);
        await page.select("#device", device === "cpu" ? "cpu" : "auto");
        await choose(page, join(shown, "chelsea.png"));
        await finished(page);
        contains(await text(page, "#device-line"), device === "cpu" ? "Running on the CPU: selected by you" : "Running on webgpu");
        cat = await results(page);
        equal(CATS.includes(cat[0][0]) && cat.length === 5, true, `a cat, found ${JSON.stringify(cat)}`);
        contains(await text(page, "#results li"), "cat");
        contains(await text(page, "#status"), "Most likely", "cat");
        const sum = cat.reduce((sum, [, share]) => sum + share, 0);
        equal(sum > 0.5 && sum <= 1.0001 && cat.every(([, share], i) => i === 0 || share <= cat[i - 1][1]), true, JSON.stringify(cat));
        console.error(`  ${await text(page, "#status")}`);
    });
    return cat;
}

/** Files that are no model, or labels of another one, cost nothing. */
async function stays(page, folder, shown) {
    const before = await results(page);
    await writeFile(join(folder, "few.txt"), "a cat\na dog\n");
    await chooseModel(page, join(folder, "other.safetensors"));
    await wait(page, () => document.querySelector("#state").textContent === "The previous model is still loaded");
    await chooseModel(page, join(shown, MODEL), join(folder, "few.txt"));
    await wait(page, () => document.querySelector("#state").textContent === "The previous model is still loaded");
    contains(await text(page, "#model-error"), "few.txt", "2 labels", "1000 classes");
    await page.$eval("#status", status => { status.textContent = ""; });
    await page.click("#again");
    await finished(page);
    equal(await results(page), before, "what is seen");

    // As Hugging Face's files have them.
    const labels = (await readFile(join(shown, "labels.txt"), "utf8")).trim().split("\n");
    const id2label = Object.fromEntries(labels.map((label, i) => [i, `${label}!`]).reverse());
    await writeFile(join(folder, "config.json"), JSON.stringify({ model_type: "efficientnet", id2label }));
    await chooseModel(page, join(shown, MODEL), join(folder, "config.json"));
    await ready(page);
    await finished(page);
    contains(await text(page, "#results li"), `${labels[before[0][0]]}!`);
    equal(await results(page), before, "what is seen");
}

async function otherWays(page, shown) {
    const bytes = (await readFile(join(shown, "coffee.png"))).toString("base64");
    // Scripts in Firefox cannot make an event of what is pasted.
    for (const way of name() === "firefox" ? ["drop"] : ["paste", "drop"]) {
        await page.evaluate(async (bytes, way) => {
            document.querySelector("#status").textContent = "";
            const blob = await (await fetch(`data:image/png;base64,${bytes}`)).blob();
            const data = new DataTransfer();
            data.items.add(new File([blob], "cup.png", { type: "image/png" }));
            if (way === "paste") document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
            else document.querySelector("#picture-drop").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }, bytes, way);
        await finished(page);
        equal((await results(page))[0][0], ESPRESSO, `the cup, by ${way}`);
    }
}

/** The browser plays a pattern to its camera. */
async function photographed(page) {
    await page.click("#camera");
    await wait(page, () => document.querySelector("#camera").textContent === "Take a picture" && document.querySelector("#video").videoWidth > 0);
    await page.$eval("#status", status => { status.textContent = ""; });
    await page.click("#camera");
    await finished(page);
    equal((await results(page)).length, 5, "classes");
    equal(await page.$eval("#picture", canvas => canvas.width > canvas.height), true, "a picture of the camera's shape");
    await page.click("#close-camera");
    equal(await page.$eval("#video", video => [video.hidden, video.srcObject]), [true, null], "the camera after it is closed");
}

/** In the size that the network sees, so that nothing is scaled. */
async function boxes(page, folder) {
    const [model, file] = [join(folder, "yolo.safetensors"), join(folder, "waves.png")];
    const [width, height] = [640, 64];
    await writeFile(model, randomYolo());
    await writeFile(file, png(width, height));
    await choose(page, file);
    await finished(page);
    await chooseModel(page, model);
    await ready(page);
    await finished(page);
    const { stdout } = await promisify(execFile)(process.env.DETECT, [
        "cpu", "--weights", model, "--model", "v8n", "--image", file, "--out", join(folder, "boxes.png"), "--json",
    ]);
    const expected = JSON.parse(stdout);
    const found = await page.$$eval("#results li", lines => lines.map(line => ({
        label: line.querySelector(".name").textContent, share: line.querySelector("meter").value,
    })));
    equal(expected.length > 0, true, "boxes to compare");
    equal(found.map(({ label }) => label), expected.map(({ class: label }) => label), "what the boxes are of");
    const worst = Math.max(...found.map(({ share }, i) => Math.abs(share - expected[i].confidence)));
    equal(worst <= TOLERANCE, true, `probabilities differ by ${worst}`);
    contains(await text(page, "#status"), expected.length === 1 ? "1 thing" : `${expected.length} things`);
    const drawn = await page.$$eval("#results li", lines => lines.map(line => line.dataset.box.split(" ").map(Number)));
    for (const [i, box] of drawn.entries()) {
        const off = Math.max(...box.map((at, side) => Math.abs(at * (side % 2 ? height : width) - expected[i].box[side])));
        equal(off <= 1.5, true, `a box ${off} pixels off`);
    }
}

/** By mouse and by keyboard. */
async function masks(page, folder) {
    const [model, file, drawn] = ["sam.safetensors", "strip.png", "mask.png"].map(file => join(folder, file));
    await writeFile(model, randomSam());
    await writeFile(file, png(1024, 64));
    await choose(page, file);
    await finished(page);
    await chooseModel(page, model);
    await ready(page);
    await finished(page);
    contains(await text(page, "#status"), "Click on a thing");
    console.error(`  ${await text(page, "#status")}`);
    // From the middle to the right and down.
    await page.focus("#picture");
    for (const key of ["ArrowRight", "ArrowRight", "ArrowDown", "Enter"]) await page.keyboard.press(key);
    const cut = () => wait(page, () => document.body.ariaBusy === "false" && !document.querySelector("#save").hidden);
    await cut();
    const numbers = async () => (await text(page, "#status")).match(/[\d.-]+(?=%)/g).map(Number);
    const { stdout } = await promisify(execFile)(process.env.SEGMENT, [
        "cpu", "--weights", model, "--tiny", "--image", file, "--point", "0.54,0.52", "--out", drawn,
    ]);
    const best = Math.max(...[...stdout.matchAll(/IoU (\S+)/g)].map(([, iou]) => Number(iou)));
    const inside = await page.evaluate(async pictures => {
        const [before, after] = await Promise.all(pictures.map(async bytes => {
            const picture = await createImageBitmap(await (await fetch(`data:image/png;base64,${bytes}`)).blob());
            const context = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
            context.drawImage(picture, 0, 0);
            return context.getImageData(0, 0, picture.width, picture.height).data;
        }));
        let changed = 0;
        for (let i = 0; i < before.length; i += 4) changed += [0, 1, 2].some(color => before[i + color] !== after[i + color]);
        return 400 * changed / before.length;
    }, await Promise.all([file, drawn].map(async path => (await readFile(path)).toString("base64"))));
    const [share, quality] = await numbers();
    equal(Math.abs(quality - 100 * best) <= 0.3, true, `a quality of ${quality}%, natively ${100 * best}%`);
    // The program draws from 128 of 255 on, the page from a half: with random weights many places are near it.
    equal(inside > 5 && inside < 95 && Math.abs(share - inside) <= 2, true, `${share}% of the picture, natively ${inside}%`);
    // A second point, outside, by mouse.
    await page.click("input[name=inside][value='0']");
    await page.click("#picture", { offset: { x: 20, y: 10 } });
    await cut();
    equal((await numbers()).length, 2, "numbers of a mask of two points");
    const saved = await page.$eval("#save", async link => (await createImageBitmap(await (await fetch(link.href)).blob())).width);
    equal(saved, 1024, "the width of the cut-out");
    await page.click("#clear");
    equal(await page.$eval("#save", link => link.hidden), true, "the cut-out without points");
}

/** Nothing is wider than a phone; the screenshots are for people. */
async function looks(page, screenshots) {
    await page.$eval("#model-box", box => { box.open = false; });
    for (const [width, theme] of [[1000, "light"], [390, "light"], [1000, "dark"], [390, "dark"]]) {
        await page.setViewport({ width, height: 900 });
        // The driver can ask Chromium alone for dark colours.
        if (name() === "chromium") await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        equal(wide <= width, true, `${wide} pixels of ${width}`);
        await page.screenshot({ path: `${screenshots}/vision-${width}-${theme}.png`, fullPage: true });
    }
}
