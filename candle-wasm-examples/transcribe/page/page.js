// What the page shows. The models are in worker.js.
import { samplesOf, SAMPLE_RATE } from "../candle-wasm/speech.js";
import { ModelForm, takeFiles } from "../model.js";
import { SPEECH_MODELS } from "../models.js";
import { at, Tasks } from "../shared.js";
import { Live } from "./live.js";
import { Recorder, wav } from "./recorder.js";
import { Silence } from "./silence.js";
import { clock, subtitles, Transcript } from "./transcript.js";

const MODELS = {
    models: SPEECH_MODELS,
    url: {
        label: "URL of a folder, or a Hugging Face name: owner/model",
        hint: "A Whisper with model.safetensors. The browser stores it, so your next visit needs no download.",
    },
    files: "config.json, tokenizer.json, generation_config.json and model.safetensors together",
};
/** Safari and Chrome name languages; what they do not know keeps its code. */
const NAMES = new Intl.DisplayNames("en", { type: "language" });

let loaded = null;
/** What goes on: "model" is loading, "text" is being written, and a "live" recording is transcribed while it runs. */
const busy = new Set();
/** The last recording: `{ samples, url }`. */
let recording = null;
/** The recording that is transcribed while it runs. */
let live = null;
/** When in the recording the sound begins that is being transcribed, in seconds. */
let offset = 0;

/** A recording waits for a model. */
let waits = false;

const form = new ModelForm(at("model"), MODELS, async () => {
    if (await load() && waits) await transcribe();
});
const transcript = new Transcript(at("text"), start => {
    at("player").currentTime = start;
    // A pause before it begins is no failure.
    at("player").play().catch(() => {});
});
const recorder = new Recorder((samples, level, seconds) => {
    live?.push(samples);
    at("level").value = level;
    at("length").textContent = clock(seconds) + (live?.speaking ? " · speech" : "");
});
const tasks = new Tasks(new URL("worker.js", import.meta.url), {
    ...ModelForm.receive,
    draft: ({ text }) => transcript.drafted(text),
    segment: ({ segment }) => {
        const { start, end } = segment;
        transcript.add({ ...segment, start: start + offset, end: end + offset });
        if (!live) at("done").value = end * SAMPLE_RATE / recording.samples.length;
    },
}, () => {
    loaded = null;
    form.lost();
    return "Load the model again";
});

const silence = new Silence(vad => tasks.ask({ kind: "vad", vad }), update);

function update() {
    const isBusy = busy.size > 0;
    at("load").disabled = isBusy;
    at("record").disabled = (isBusy || silence.bringing) && !recorder.running;
    at("record").textContent = recorder.running ? "Stop" : "Record";
    at("record").classList.toggle("running", recorder.running);
    at("level").hidden = !recorder.running;
    at("sound").disabled = isBusy;
    at("skip").disabled = at("vad-file").disabled = isBusy || recorder.running || silence.bringing;
    at("again").disabled = isBusy || recorder.running;
    at("again").hidden = !recording;
    at("stop").hidden = !busy.has("text");
    at("done").hidden = !busy.has("text");
    document.body.ariaBusy = String(isBusy);
    const { segments, text } = transcript;
    at("copy").disabled = segments.length === 0;
    for (const [id, content] of [["save-text", `${text}\n`], ["save-subtitles", subtitles(segments)]]) {
        URL.revokeObjectURL(at(id).href);
        at(id).hidden = segments.length === 0 || busy.has("text");
        at(id).href = URL.createObjectURL(new Blob([content], { type: "text/plain" }));
    }
}

/** Whether there is a model now. */
async function load() {
    busy.add("model");
    update();
    const request = form.request();
    const ready = await form.load(tasks);
    busy.delete("model");
    // After files that are no model, the one before is still there.
    const isNew = ready !== null && ready !== loaded;
    loaded = ready;
    if (isNew) {
        at("model-name").textContent = `${form.nameOf(request)} · on the ${loaded.reason === null ? "GPU" : "CPU"}`;
        at("model-box").open = false;
        at("languages").hidden = loaded.languages.length === 0;
        const known = loaded.languages.map(code => new Option(NAMES.of(code) ?? code, code));
        at("language").replaceChildren(new Option("detect it", ""), ...known.sort((a, b) => a.text.localeCompare(b.text)));
    } else if (!loaded) {
        at("model-name").textContent = "";
        at("model-box").open = true;
    }
    update();
    return loaded !== null;
}

/** Takes a sound file, and writes what is said in it. */
async function take(file) {
    at("sound-error").textContent = "";
    try {
        keep(await samplesOf(file), file);
    } catch (error) {
        at("sound-error").textContent = error.message;
        return;
    }
    await transcribe();
}

/** Shows a recording, which `blob` plays. */
function keep(samples, blob) {
    if (recording) URL.revokeObjectURL(recording.url);
    recording = { samples, url: URL.createObjectURL(blob) };
    at("player").src = recording.url;
    at("player").hidden = false;
    at("length").textContent = clock(samples.length / SAMPLE_RATE);
}

const asked = () => loaded.languages.length === 0 ? {} : { language: at("language").value || undefined, translate: at("translate").checked };

async function transcribe() {
    at("text-error").textContent = "";
    transcript.clear();
    at("status").textContent = loaded ? "" : "Loading the model …";
    if (!loaded && !await load()) {
        at("status").textContent = later();
        return;
    }
    waits = false;
    offset = 0;
    at("status").textContent = "Listening …";
    await writing(async () => told(await tasks.ask({ kind: "transcribe", samples: recording.samples, options: asked(), vad: silence.vad })));
}

/** The recording waits for a model: says so. */
function later() {
    waits = true;
    return "The recording is here, and is transcribed as soon as a model is loaded.";
}

/** Shows that text is being written, and how it went: what `write` returns, or its error. */
async function writing(write) {
    busy.add("text");
    at("done").removeAttribute("value");
    update();
    try {
        at("status").textContent = await write();
    } catch (error) {
        at("status").textContent = "";
        const lost = /the GPU (was lost|reports)/.test(error.message);
        if (lost) {
            loaded = null;
            form.lost();
        }
        at("text-error").textContent = error.message + (lost ? ". Load the model again to continue." : "");
    }
    transcript.drafted("");
    busy.delete("text");
    update();
}

/** How it went, in words. */
function told({ segments, duration, seconds, stopped, language, speech }) {
    const of = `${clock(duration)} of sound in ${seconds.toFixed(1)} s`;
    if (stopped) return `Stopped. ${of}`;
    if (segments.length === 0) return `Nobody speaks in this recording, as far as ${speech?.length === 0 ? "Silero VAD" : "the model"} hears. ${of}`;
    const spoken = speech?.reduce((sum, { start, end }) => sum + end - start, 0);
    const skipped = speech ? ` · ${clock(duration - spoken)} of silence skipped` : "";
    return of + skipped + (loaded.languages.length ? ` · ${NAMES.of(language) ?? language}` : "");
}

async function record() {
    await recorder.start();
    transcript.clear();
    at("player").hidden = true;
    at("sound").value = "";
    at("text-error").textContent = "";
    at("status").textContent = silence.vad ? "Recording: words come after each pause …" : "Recording …";
    if (silence.vad) transcribeLive();
    update();
}

/** Transcribes the recording that begins, phrase after phrase. */
function transcribeLive() {
    busy.add("live");
    const ready = loaded ? Promise.resolve(true) : load();
    live = new Live(tasks, silence.vad, ready, async ({ start, end }) => {
        const samples = recorder.samples.slice(Math.round(start * SAMPLE_RATE), Math.round(end * SAMPLE_RATE));
        offset = start;
        const heard = await tasks.ask({ kind: "transcribe", samples, options: asked() });
        transcript.drafted("");
        update();
        return heard;
    });
}

/** Ends the recording, and transcribes what has not been transcribed. */
async function stopRecording() {
    const samples = recorder.stop();
    keep(samples, wav(samples));
    if (!live) return transcribe();
    at("status").textContent = "Listening to the last words …";
    const { segments } = transcript;
    await writing(async () => await live.end() ? told({ ...live, segments, duration: samples.length / SAMPLE_RATE }) : later());
    live = null;
    busy.delete("live");
    update();
}

at("record").onclick = async () => {
    at("sound-error").textContent = "";
    try {
        await (recorder.running ? stopRecording() : record());
    } catch (error) {
        at("sound-error").textContent = error.message;
        update();
    }
};
at("again").onclick = transcribe;
at("stop").onclick = () => {
    if (live) live.stopped = true;
    tasks.tell({ kind: "stop" });
};
at("copy").onclick = async () => {
    await navigator.clipboard.writeText(transcript.text);
    at("status").textContent = "Copied";
};
update();
takeFiles(at("sound"), at("sound-drop"), ([file]) => file && busy.size === 0 && take(file));
// The same file once more is a choice, too.
at("sound").onclick = () => { at("sound").value = ""; };
