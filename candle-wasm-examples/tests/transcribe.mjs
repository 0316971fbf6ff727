// The page `transcribe` as a person uses it, with Whisper tiny.en, Silero VAD and recordings that espeak-ng speaks; SPEECH is the folder with
// them and with what CTranslate2 hears, as xtask makes it. On WebGPU a tiny Whisper of random weights hears what it hears on the CPU. CANDLE_DVM
// is the native program that the speech in a recording is compared with.
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { contains, equal, launch, name, open, picture, pressLoad, ready, test, text, wait } from "./harness.mjs";
import { serve } from "./models.mjs";
import * as silence from "./silence.mjs";
import { safetensors, tinyWhisper } from "./whisper.mjs";

const FILES = ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"];

export async function run(site, screenshots) {
    const speech = resolve(process.env.SPEECH);
    const expected = JSON.parse(await readFile(join(speech, "expected.json"), "utf8")).text;
    const sound = join(speech, "speech.wav");
    const folder = await mkdtemp(join(tmpdir(), "candle-whisper-"));
    const files = new Map();
    for (const file of FILES) files.set(`/tiny.en/${file}`, await readFile(join(speech, "model", file)));
    const { config, weights } = tinyWhisper(JSON.parse(files.get("/tiny.en/tokenizer.json")));
    files.set("/random/config.json", Buffer.from(JSON.stringify(config)));
    files.set("/random/tokenizer.json", files.get("/tiny.en/tokenizer.json"));
    files.set("/random/model.safetensors", safetensors(weights));
    const server = await serve(files);
    const spoken = await silence.recordings(speech, folder);
    files.set("/vad.safetensors", await readFile(spoken.vad));
    files.set("/pauses.wav", await readFile(spoken.pauses));
    const microphone = [
        "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream", `--use-file-for-fake-audio-capture=${spoken.microphone}`,
        "--autoplay-policy=no-user-gesture-required",
    ];
    let browser = await launch(false, name() === "chromium" ? microphone : []);
    try {
        const page = await open(browser, `${site}transcribe/`);
        await test("transcribe::bad_files", () => badFiles(page, folder));
        await test("transcribe::file::cpu", () => file(page, server.address, sound, expected));
        await page.screenshot({ path: `${screenshots}/transcribe-cpu.png`, fullPage: true });
        await picture(page, screenshots, "transcribe", "#recording-title");
        // A text takes the CPU seconds: where there is a microphone, it is its recording that is stopped.
        if (name() === "chromium") await test("transcribe::microphone_and_stop::cpu", () => stop(page, () => recorded(page)));
        else await test("transcribe::stop::cpu", () => stop(page, () => chosen(page, sound)));
        await test("transcribe::resampler", () => silence.resampler(page));
        // The driver can answer for another server in Chromium.
        if (name() === "chromium") await test("transcribe::vad_from_the_web", () => silence.fromTheWeb(page, spoken));
        await test("transcribe::vad_from_disk", () => silence.fromDisk(page, spoken));
        await test("transcribe::silence::cpu", () => silence.skipped(page, spoken, finished));
        await test("transcribe::looks", () => looks(page, screenshots));
        if (name() === "chromium") await test("transcribe::live::cpu", () => silence.live(page, spoken, server.address, finished));
        await test("package::transcribe::cpu", () => packageErrors(page, server.address));
        await test("package::vad::cpu", () => silence.inThePackage(page, spoken, server.address));
        await browser.close();
        browser = await launch();
        const other = await open(browser, site);
        await test("package::transcribe::webgpu", () => sameOnTheGpu(other, server.address));
    } finally {
        await browser.close();
        server.stop();
        await rm(folder, { recursive: true });
    }
}

async function badFiles(page, folder) {
    const path = file => join(folder, file);
    await writeFile(path("config.json"), JSON.stringify({ model_type: "llama" }));
    await writeFile(path("tokenizer.json"), "{}");
    await writeFile(path("model.safetensors"), "");
    await page.click("input[value=files]");
    await (await page.$("#files")).uploadFile(...["config.json", "tokenizer.json", "model.safetensors"].map(path));
    await pressLoad(page);
    await wait(page, () => document.querySelector("#model-error").textContent !== "");
    contains(await text(page, "#model-error"), "config.json", "llama", "whisper");
    const picture = path("picture.wav");
    await writeFile(picture, "no sound");
    await (await page.$("#sound")).uploadFile(picture);
    await wait(page, () => document.querySelector("#sound-error").textContent !== "");
    contains(await text(page, "#sound-error"), "picture.wav", "cannot decode", "WAV");
}

const finished = page => wait(page, () => document.querySelector("#stop").hidden && / of sound in /.test(document.querySelector("#status").textContent));

/** The recording is there first: it loads the model, and words come before the text is final. */
async function file(page, address, sound, expected) {
    await page.click("input[value=url]");
    await page.$eval("#url", field => { field.value = ""; });
    await page.type("#url", `${address}tiny.en/`);
    await page.select("#device", "cpu");
    await page.evaluate(() => {
        globalThis.drafts = new Set();
        const look = () => document.querySelectorAll("#text .draft span").forEach(draft => globalThis.drafts.add(draft.textContent));
        new MutationObserver(look).observe(document.querySelector("#text"), { childList: true, subtree: true, characterData: true });
    });
    await (await page.$("#sound")).uploadFile(sound);
    await finished(page);
    contains(await text(page, "#device-line"), "Running on the CPU: selected by you");
    const spoken = await page.$$eval("#text p span", spans => spans.map(span => span.textContent));
    equal(spoken.join(" "), expected, "the text");
    equal(spoken.length, 2, "segments");
    const drafts = await page.evaluate(() => [...globalThis.drafts]);
    equal(drafts.length > 10 && drafts.some(draft => draft.endsWith("lazy dog")), true, `${drafts.length} drafts`);
    console.error(`  ${await text(page, "#status")}`);
    const times = await page.$$eval("#text .time", buttons => buttons.map(button => button.textContent));
    equal(times, ["0:00", "0:04"], "times");
    const subtitles = await page.$eval("#save-subtitles", async link => (await fetch(link.href)).text());
    contains(subtitles, "1\n00:00:00,000 --> 00:00:0", "2\n00:00:0", "lazy dog");
    await page.click("#text p:nth-child(2) .time");
    await wait(page, () => document.querySelector("#player").currentTime >= 4);
    await page.$eval("#player", player => player.pause());
}

/** Stops a text that `begin` begins. */
async function stop(page, begin) {
    await begin();
    await wait(page, () => /likes to|quick/.test(document.querySelector("#text .draft span")?.textContent));
    await page.click("#stop");
    await finished(page);
    contains(await text(page, "#status"), "Stopped");
    equal(await page.$$eval("#text .draft", drafts => drafts.length), 0, "drafts that are left");
}

async function chosen(page, sound) {
    await page.$eval("#sound", field => { field.value = ""; });
    await (await page.$("#sound")).uploadFile(sound);
}

/** Three seconds of what the browser plays to its microphone. */
async function recorded(page) {
    await page.click("#record");
    await wait(page, () => document.querySelector("#length").textContent === "0:03");
    equal(await page.$eval("#level", level => level.checkVisibility() && level.value > 0.1), true, "the loudness");
    await page.click("#record");
    await wait(page, () => document.querySelector("#player").duration > 0);
    equal(await page.$eval("#player", player => player.duration >= 3 && player.duration < 6), true, "what can be played");
}

/** Nothing is wider than a phone; the screenshots are for people. */
async function looks(page, screenshots) {
    equal(await page.$$eval("#text p", lines => lines.length > 0), true, "a text to look at");
    for (const [width, theme] of [[1000, "light"], [390, "light"], [1000, "dark"], [390, "dark"]]) {
        await page.setViewport({ width, height: 900 });
        // The driver can ask Chromium alone for dark colours.
        if (name() === "chromium") await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        equal(wide <= width, true, `${wide} pixels of ${width}`);
        await page.screenshot({ path: `${screenshots}/transcribe-${width}-${theme}.png`, fullPage: true });
    }
}

async function packageErrors(page, address) {
    const found = await page.evaluate(async address => {
        const { loadSpeech } = await import("/candle-wasm/speech.js");
        const { fromAddress } = await import("/candle-wasm/files.js");
        const { WasmSpeech } = await loadSpeech();
        const speech = await WasmSpeech.open(await fromAddress(`${address}random/`));
        const samples = new Float32Array(16_000).map((_, i) => Math.sin(i / 9) * Math.sin(i / 999));
        const problem = async options => {
            try {
                await speech.transcribe(samples, options);
                return "none";
            } catch (error) {
                return error.message;
            }
        };
        const problems = [
            await problem({ lang: "en" }),
            await problem({ language: "fr" }),
            await problem({ language: 3 }),
            await problem({ translate: true }),
            await problem({ onSegment: "no function" }),
            await problem({ onText: () => { throw new Error("not wanted"); } }),
        ];
        const running = speech.transcribe(samples);
        problems.push(await problem({}));
        const after = await running;
        const stop = new AbortController();
        stop.abort();
        const stopped = await speech.transcribe(samples, { signal: stop.signal });
        samples[7] = NaN;
        problems.push(await problem({}));
        return { problems, after, stopped, device: speech.device, languages: speech.languages };
    }, address);
    const words = [["lang", "language", "onSegment"], ["English-only", "fr"], ["language", "expected"], ["English-only"], ["onSegment", "function"],
        ["not wanted"], ["is running"], ["sample 7", "NaN"]];
    words.forEach((parts, i) => contains(found.problems[i], ...parts));
    equal([found.device, found.languages, found.after.duration, found.after.stopped], ["cpu", [], 1, false], "what is known");
    equal([found.stopped.stopped, found.stopped.segments], [true, []], "a transcription that is stopped at once");
}

async function sameOnTheGpu(page, address) {
    const heard = await page.evaluate(async address => {
        const { loadSpeech } = await import("/candle-wasm/speech.js");
        const { fromAddress } = await import("/candle-wasm/files.js");
        const { WasmSpeech } = await loadSpeech();
        const source = await fromAddress(`${address}random/`);
        const samples = new Float32Array(16_000).map((_, i) => Math.sin(i / 9) * Math.sin(i / 999));
        const heard = {};
        for (const device of ["cpu", "webgpu"]) {
            const speech = await WasmSpeech.open(source);
            if (device === "webgpu") await speech.init_gpu();
            await speech.load({ dtype: "f32" });
            const texts = [];
            const stop = new AbortController();
            // A token takes a software adapter seconds.
            await speech.transcribe(samples, { signal: stop.signal, onText: text => texts.push(text) === 4 && stop.abort() });
            heard[device] = { texts, device: speech.device.split(" ")[0] };
        }
        return heard;
    }, address);
    equal([heard.cpu.device, heard.webgpu.device], ["cpu", "webgpu"], "devices");
    equal([heard.cpu.texts.length, heard.cpu.texts.at(-1) !== ""], [4, true], "texts");
    equal(heard.webgpu.texts, heard.cpu.texts, "on the GPU");
}
