// What the page shows. The model is in worker.js.
import { samplesOf, SAMPLE_RATE } from "../candle-wasm/speech.js";
import { ModelForm, takeFiles } from "../model.js";
import { SPEECH_MODELS } from "../models.js";
import { at, Tasks } from "../shared.js";
import { Recorder, wav } from "./recorder.js";
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
let busy = null;
/** The last recording: `{ samples, url }`. */
let recording = null;

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
const recorder = new Recorder((level, seconds) => {
    at("level").value = level;
    at("length").textContent = clock(seconds);
});
const tasks = new Tasks(new URL("worker.js", import.meta.url), {
    ...ModelForm.receive,
    draft: ({ text }) => transcript.drafted(text),
    segment: ({ segment }) => {
        transcript.add(segment);
        at("done").value = segment.end * SAMPLE_RATE / recording.samples.length;
    },
}, () => {
    loaded = null;
    form.lost();
    return "Load the model again";
});

function update() {
    at("load").disabled = busy !== null;
    at("record").disabled = busy !== null && !recorder.running;
    at("record").textContent = recorder.running ? "Stop" : "Record";
    at("record").classList.toggle("running", recorder.running);
    at("level").hidden = !recorder.running;
    at("sound").disabled = busy !== null;
    at("again").disabled = busy !== null || !recording;
    at("stop").hidden = busy !== "text";
    at("done").hidden = busy !== "text";
    document.body.ariaBusy = String(busy !== null);
    const { segments, text } = transcript;
    at("copy").disabled = segments.length === 0;
    for (const [id, content] of [["save-text", `${text}\n`], ["save-subtitles", subtitles(segments)]]) {
        URL.revokeObjectURL(at(id).href);
        at(id).hidden = segments.length === 0 || busy === "text";
        at(id).href = URL.createObjectURL(new Blob([content], { type: "text/plain" }));
    }
}

/** Whether there is a model now. */
async function load() {
    busy = "model";
    update();
    const request = form.request();
    const ready = await form.load(tasks);
    busy = null;
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

/** Takes a sound file, or a recording of the microphone, and writes what is said in it. */
async function take(blob, isFile = true) {
    at("sound-error").textContent = "";
    let samples;
    try {
        samples = await samplesOf(blob);
    } catch (error) {
        at("sound-error").textContent = error.message;
        return;
    }
    if (recording) URL.revokeObjectURL(recording.url);
    recording = { samples, url: URL.createObjectURL(isFile ? blob : wav(samples)) };
    at("player").src = recording.url;
    at("player").hidden = false;
    at("length").textContent = clock(samples.length / SAMPLE_RATE);
    await transcribe();
}

async function transcribe() {
    at("text-error").textContent = "";
    transcript.clear();
    at("status").textContent = loaded ? "" : "Loading the model …";
    waits = true;
    if (!loaded && !await load()) {
        at("status").textContent = "The recording is here, and is transcribed as soon as a model is loaded.";
        return;
    }
    waits = false;
    busy = "text";
    at("status").textContent = "Listening …";
    at("done").removeAttribute("value");
    update();
    const options = loaded.languages.length === 0 ? {} : { language: at("language").value || undefined, translate: at("translate").checked };
    try {
        const { samples } = recording;
        const done = await tasks.ask({ kind: "transcribe", samples, options });
        at("status").textContent = told(done);
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
    busy = null;
    update();
}

/** How it went, in words. */
function told({ segments, duration, seconds, stopped, language }) {
    const of = `${clock(duration)} of sound in ${seconds.toFixed(1)} s`;
    if (stopped) return `Stopped. ${of}`;
    if (segments.length === 0) return `Nobody speaks in this recording, as far as the model hears. ${of}`;
    return loaded.languages.length ? `${of} · ${NAMES.of(language) ?? language}` : of;
}

at("record").onclick = async () => {
    at("sound-error").textContent = "";
    try {
        if (recorder.running) {
            const blob = await recorder.stop();
            update();
            return await take(blob, false);
        }
        await recorder.start();
        transcript.clear();
        at("player").hidden = true;
        at("sound").value = "";
        at("status").textContent = "Recording …";
        update();
    } catch (error) {
        at("sound-error").textContent = error.message;
        update();
    }
};
at("again").onclick = transcribe;
at("stop").onclick = () => tasks.tell({ kind: "stop" });
at("copy").onclick = async () => {
    await navigator.clipboard.writeText(transcript.text);
    at("status").textContent = "Copied";
};
update();
takeFiles(at("sound"), at("sound-drop"), ([file]) => file && busy === null && take(file));
// The same file once more is a choice, too.
at("sound").onclick = () => { at("sound").value = ""; };
