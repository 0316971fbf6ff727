// Silence that is not transcribed, in the page `transcribe` and in the package: Silero VAD in the browser finds what it finds natively.
import { execFile } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { contains, equal, load, set, text, wait } from "./harness.mjs";
import { randomNumbers } from "./whisper.mjs";

const SENTENCES = ["My brother likes to play football with his friends.", "Please open the window because it is very warm in this room."];
/** Silence before, between and after the sentences, in seconds. */
const PAUSE = 5;
/** What the microphone hears between them: enough for a phrase to end, not enough for a pause in a transcript. */
const SHORT_PAUSE = 1;
const VAD = "silero_vad_16k.safetensors";

/**
 * Recordings of two sentences, made in `folder` from those in `speech`: with long pauses, without any, and for the microphone. `native`
 * resolves with what the native program hears in the first two.
 */
export async function recordings(speech, folder) {
    const sentences = await Promise.all(["first.wav", "second.wav"].map(async name => samplesIn(await readFile(join(speech, name)))));
    const [{ rate, samples: first }, { samples: second }] = sentences;
    const vad = join(speech, VAD);
    const made = { vad, seconds: first.length / rate };
    const paths = { pauses: pauses(PAUSE), joined: [first, second], microphone: pauses(SHORT_PAUSE) };
    function pauses(seconds) {
        const quiet = faintNoise(seconds * rate);
        return [quiet, first, quiet, second, quiet];
    }
    for (const [name, parts] of Object.entries(paths)) {
        made[name] = join(folder, `${name}.wav`);
        await writeFile(made[name], wav(rate, parts));
    }
    const native = ["transcribe", "--json", "--dtype", "f32", "--device", "cpu", "--model", join(speech, "model")];
    const hear = async args => JSON.parse((await promisify(execFile)(process.env.CANDLE_DVM, [...native, ...args])).stdout);
    made.native = Promise.all([hear([made.pauses, "--vad", vad]), hear([made.joined])]);
    // Whoever waits for it hears of an error.
    made.native.catch(() => {});
    return made;
}

/** The rate and the 16-bit samples of a WAV file. */
function samplesIn(bytes) {
    const start = bytes.indexOf("data", 12) + 8;
    const length = Math.min(bytes.readUInt32LE(start - 4), bytes.length - start);
    return { rate: bytes.readUInt32LE(24), samples: Int16Array.from({ length: length >> 1 }, (_, i) => bytes.readInt16LE(start + 2 * i)) };
}

/** What a microphone hears of a silent room. */
function faintNoise(length) {
    const random = randomNumbers();
    return Int16Array.from({ length }, () => 50 * random());
}

function wav(rate, parts) {
    const bytes = Buffer.concat(parts.map(part => Buffer.from(part.buffer)));
    const header = Buffer.alloc(44);
    header.write("RIFF", 0);
    header.writeUInt32LE(36 + bytes.length, 4);
    header.write("WAVEfmt ", 8);
    for (const [at, value] of [[16, 16], [24, rate], [28, 2 * rate], [40, bytes.length]]) header.writeUInt32LE(value, at);
    for (const [at, value] of [[20, 1], [22, 1], [32, 2], [34, 16]]) header.writeUInt16LE(value, at);
    header.write("data", 36);
    return Buffer.concat([header, bytes]);
}

/** Tones in uneven parts: one that the new rate has stays as it is, one that it has not is gone. */
export async function resampler(page) {
    const found = await page.evaluate(async () => {
        const { joined, Resampler } = await import("/transcribe/resample.js");
        const heard = (rate, frequency) => {
            const resampler = new Resampler(rate);
            const tone = Float32Array.from({ length: rate }, (_, i) => Math.sin(2 * Math.PI * frequency * i / rate));
            const parts = [];
            for (let at = 0, part = 1; at < rate; at += part, part = part * 7 % 1009) parts.push(resampler.push(tone.subarray(at, at + part)));
            parts.push(resampler.end());
            return joined(parts);
        };
        const error = (samples, frequency) => {
            // The ends have silence beside them.
            const inner = samples.subarray(200, samples.length - 200);
            return inner.reduce((most, sample, i) => Math.max(most, Math.abs(sample - Math.sin(2 * Math.PI * frequency * (i + 200) / 16_000))), 0);
        };
        const loudest = samples => samples.subarray(200, samples.length - 200).reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
        return [48_000, 44_100, 16_000, 8_000].map(rate => {
            const tone = heard(rate, 1000);
            return { length: tone.length, error: error(tone, 1000), gone: rate > 24_000 ? loudest(heard(rate, 9500)) : 0 };
        });
    });
    for (const { length, error, gone } of found) {
        equal([length, error < 0.005, gone < 0.005], [16_000, true, true], `a second of sound: ${JSON.stringify({ length, error, gone })}`);
    }
}

const isOn = page => page.$eval("#skip", ({ checked }) => checked);
const choose = async (page, file) => (await page.$("#vad-file")).uploadFile(file);

const switchedOn = page => wait(page, () => document.querySelector("#skip-state").textContent.startsWith("On"));

async function refused(page, ...parts) {
    await wait(page, () => document.querySelector("#vad-error").textContent !== "");
    contains(await text(page, "#vad-error"), ...parts);
    equal(await isOn(page), false, "the switch");
}

/** The address that the page knows: a server that has nothing, another file, and the file. */
export async function fromTheWeb(page, { vad }) {
    const address = await page.evaluate(async () => (await import("/candle-wasm/speech.js")).VAD_ADDRESS);
    const { host } = new URL(address);
    contains(await text(page, "#skip-state"), "Off", host, "1.2 MB", "MIT");
    const bytes = await readFile(vad);
    const headers = { "Access-Control-Allow-Origin": "*" };
    let answer = { status: 404, headers, body: "no such file" };
    const requested = request => request.url() === address ? request.respond(answer) : request.continue();
    await page.setRequestInterception(true);
    page.on("request", requested);
    await page.click("#skip");
    await refused(page, VAD, host, "Python package");
    equal(await page.$eval("#vad-box", box => box.open), true, "the way from disk is shown");
    // What is not the published file is not taken for it.
    answer = { status: 200, headers, body: Buffer.from(bytes).fill(0, 1_000_000, 1_000_100) };
    await page.click("#skip");
    await refused(page, VAD, host);
    answer = { status: 200, headers, body: bytes };
    await page.click("#skip");
    await switchedOn(page);
    page.off("request", requested);
    await page.setRequestInterception(false);
    await page.click("#skip");
    contains(await text(page, "#skip-state"), "Off");
}

/** Another file, and Silero VAD. */
export async function fromDisk(page, { vad, joined }) {
    await page.$eval("#vad-box", box => { box.open = true; });
    await choose(page, joined);
    await refused(page, "VAD");
    await choose(page, vad);
    await switchedOn(page);
    equal([await isOn(page), await text(page, "#vad-error")], [true, ""], "the switch");
}

/** The segments as the file of subtitles has them: `[start, text]`. */
async function segments(page) {
    const subtitles = await page.$eval("#save-subtitles", async link => (await fetch(link.href)).text());
    return [...subtitles.matchAll(/^(\d\d):(\d\d):(\d\d),(\d{3}) --> .*\n(.*)/gm)].map(([, hours, minutes, seconds, ms, said]) =>
        [3600 * Number(hours) + 60 * Number(minutes) + Number(seconds) + Number(ms) / 1000, said]);
}

const close = (found, wanted, what, most = 0.5) => equal(Math.abs(found - wanted) < most, true, `${what}: ${found}, expected ${wanted}`);

/** The same words with silence before, between and after as without any, and their times. */
export async function skipped(page, { pauses, native, seconds }, finished) {
    await page.$eval("#status", status => { status.textContent = ""; });
    await (await page.$("#sound")).uploadFile(pauses);
    await finished(page);
    const found = await segments(page);
    const said = found.map(([, text]) => text);
    const [withPauses, joined] = await native;
    equal(said, SENTENCES, "the words");
    equal(said.join(" "), joined.text, "without the silence");
    close(found[0][0], PAUSE, "the first sentence");
    close(found[1][0], PAUSE + seconds + PAUSE, "the second sentence");
    // Some of it is kept before and after the sentences.
    const [, left] = / 0:(\d\d) of silence skipped/.exec(await text(page, "#status"));
    close(left, 3 * PAUSE - 1.6, "silence that is skipped", 1);
    equal(said, withPauses.segments.map(({ text }) => text.trim()), "natively");
    // The browser resamples in another way, and Whisper is free to begin a segment in the silence that is kept.
    found.forEach(([start], i) => close(start, withPauses.segments[i].start, "natively"));
}

/** The words of the first sentence are there while the second is spoken, which ends with the recording. */
export async function live(page, spoken, address, finished) {
    // It says something else, in no time.
    await page.$eval("#model-box", box => { box.open = true; });
    await set(page, "#url", `${address}random/`);
    await load(page);
    await page.$eval("#status", status => { status.textContent = ""; });
    await page.click("#record");
    await wait(page, () => document.querySelector("#record").textContent === "Stop");
    equal(await page.$$eval("#text p", lines => lines.length), 0, "the text before");
    await wait(page, () => document.querySelector("#text p:not(.draft)") !== null);
    equal(await text(page, "#record"), "Stop", "the recording goes on");
    equal(await page.$$eval("#skip, #load, #sound, #vad-file", all => all.every(({ disabled }) => disabled)), true, "nothing changes meanwhile");
    const second = SHORT_PAUSE + spoken.seconds + SHORT_PAUSE;
    await wait(page, enough => Number(/:(\d+)/.exec(document.querySelector("#length").textContent)[1]) >= enough, Math.ceil(second + 2));
    contains(await text(page, "#length"), "speech");
    const { length } = await segments(page);
    await page.click("#record");
    await finished(page);
    const found = await segments(page);
    // A Whisper's first segment begins in the first second.
    close(found[0][0], SHORT_PAUSE, "the first sentence", 1.4);
    close(found[length]?.[0], second, "the second sentence", 1.4);
}

/** What a program gets of the package: `address` has the files. */
export async function inThePackage(page, { native }, address) {
    const found = await page.evaluate(async address => {
        const { loadSpeech, samplesOf, vadBytes } = await import("/candle-wasm/speech.js");
        const { fromAddress } = await import("/candle-wasm/files.js");
        const { WasmSpeech, WasmVad } = await loadSpeech();
        const bytes = await vadBytes(`${address}vad.safetensors`);
        const vad = await WasmVad.open(bytes);
        const samples = await samplesOf(await (await fetch(`${address}pauses.wav`)).blob());
        const speech = await vad.speech(samples);
        const running = vad.phrases();
        const phrases = [];
        const speaking = new Set();
        for (let at = 0; at < samples.length; at += 1000) {
            phrases.push(...running.hear(samples.subarray(at, at + 1000)));
            speaking.add(running.speaking);
        }
        phrases.push(...running.end());
        const whisper = await WasmSpeech.open(await fromAddress(`${address}random/`));
        const silent = await whisper.transcribe(samples, { speech: [] });
        const problem = async ask => {
            try {
                await ask();
                return "none";
            } catch (error) {
                return error.message;
            }
        };
        const stop = new AbortController();
        stop.abort();
        const short = samples.slice(0, 32_000);
        const problems = [];
        for (const ask of [
            () => vadBytes(`${address}none`),
            () => WasmVad.open(new Uint8Array(7)),
            async () => WasmVad.open(await vadBytes(`${address}random/model.safetensors`)),
            () => vad.speech(short, { signal: stop.signal }),
            () => vad.speech(short.map((sample, i) => i === 7 ? NaN : sample)),
            () => running.hear(short),
            () => whisper.transcribe(short, { speech: [{ start: 1, end: 0.5 }] }),
            () => whisper.transcribe(short, { speech: [{ start: 1, end: 2.1 }] }),
            () => whisper.transcribe(short, { speech: "all" }),
        ]) problems.push(await problem(ask));
        return { speech, phrases, speaking: [...speaking], silent, problems };
    }, address);
    const [{ speech }] = await native;
    equal(found.speech.length, speech.length, "stretches of speech");
    equal(found.phrases.length, speech.length, "phrases");
    speech.forEach(([start, end], i) => {
        close(found.speech[i].start, start, "speech begins", 0.05);
        close(found.speech[i].end, end, "speech ends", 0.05);
        // A phrase has less of the silence around it.
        close(found.phrases[i].start, start + 0.1, "a phrase begins", 0.05);
        close(found.phrases[i].end, end - 0.1, "a phrase ends", 0.05);
    });
    equal(found.speaking, [false, true], "whether somebody speaks");
    equal([found.silent.segments, Math.round(found.silent.duration)], [[], 22], "where nobody speaks");
    const words = [["404"], ["VAD file"], ["stft_conv", VAD], ["stopped"], ["sample 7"], ["has ended"], ["speech", "order"], ["speech"], ["speech"]];
    words.forEach((parts, i) => contains(found.problems[i], ...parts));
}
