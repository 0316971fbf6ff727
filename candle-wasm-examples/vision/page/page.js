// What the page shows. The model is in worker.js.
import { ModelForm, takeFiles } from "../model.js";
import { PICTURE_MODELS } from "../models.js";
import { at, Tasks } from "../shared.js";
import { Camera } from "./camera.js";
import { colorOf, Stage } from "./stage.js";

const MODELS = {
    models: PICTURE_MODELS,
    url: {
        label: "URL of a file or a folder, or a Hugging Face name: owner/model, or owner/model:file.safetensors",
        hint: "EfficientNet-Lite0, YOLOv8 or MobileSAM, as .safetensors or .pth. The browser stores it, so your next visit needs no download.",
    },
    files: "A .safetensors, .pth or .pt file, and a .txt or .json file with the names of its classes",
};
const percent = share => `${(100 * share).toFixed(1)}%`;

let loaded = null;
let busy = null;
/** A picture waits for a model. */
let waits = false;

const form = new ModelForm(at("model"), MODELS, async () => {
    const before = loaded;
    if (await load() && stage.picture && (waits || loaded !== before)) await look();
});
const camera = new Camera(at("video"));
const stage = new Stage(at("picture"), addPoint);
const tasks = new Tasks(new URL("worker.js", import.meta.url), ModelForm.receive, () => {
    loaded = null;
    form.lost();
    return "Load the model again";
});

function update() {
    at("load").disabled = busy !== null;
    at("file").disabled = busy !== null;
    at("camera").disabled = busy !== null;
    at("camera").textContent = camera.running ? "Take a picture" : "Camera";
    at("close-camera").hidden = !camera.running;
    at("video").hidden = !camera.running;
    at("again").disabled = busy !== null || !stage.picture;
    const segments = loaded?.task === "segment";
    at("points").hidden = !segments || !stage.picture;
    at("clear").disabled = busy !== null || stage.points.length === 0;
    document.body.ariaBusy = String(busy !== null);
}

/** Whether there is a model now. */
async function load() {
    busy = "model";
    update();
    const request = form.request();
    const ready = await form.load(tasks, { labels: form.known(request)?.labels });
    busy = null;
    // After files that are no model, the one before is still there.
    const isNew = ready !== null && ready !== loaded;
    loaded = ready;
    if (isNew) {
        at("model-name").textContent = `${loaded.name} · on the ${loaded.reason === null ? "GPU" : "CPU"}`;
        at("model-box").open = false;
    } else if (!loaded) {
        at("model-name").textContent = "";
        at("model-box").open = true;
    }
    update();
    return loaded !== null;
}

/** Shows a picture, and looks at it. */
async function take(blob) {
    at("picture-error").textContent = "";
    let picture;
    try {
        picture = await createImageBitmap(blob);
    } catch {
        const name = blob.name ?? "what was pasted";
        at("picture-error").textContent = `${name}: the browser cannot decode it as a picture: choose a PNG, JPEG or WebP file`;
        return;
    }
    stage.show(picture);
    await look();
}

async function look() {
    at("look-error").textContent = "";
    at("results").replaceChildren();
    stage.clear();
    forgetCutOut();
    waits = true;
    at("status").textContent = loaded ? "" : "Loading the model …";
    if (!loaded && !await load()) {
        at("status").textContent = "The picture is here, and is looked at as soon as a model is loaded.";
        return;
    }
    waits = false;
    await asked("Looking …", async () => {
        const seen = await tasks.ask({ kind: "look", picture: await createImageBitmap(stage.picture) });
        stage.takesPoints = loaded.task === "segment";
        show(seen);
    });
}

/** Runs what asks the worker, and shows what goes wrong. */
async function asked(doing, body) {
    busy = "look";
    at("status").textContent = doing;
    update();
    try {
        await body();
    } catch (error) {
        at("status").textContent = "";
        const lost = /the GPU (was lost|reports)/.test(error.message);
        if (lost) {
            loaded = null;
            form.lost();
        }
        at("look-error").textContent = error.message + (lost ? ". Load the model again to continue." : "");
    }
    busy = null;
    update();
}

function show({ classes, objects, milliseconds }) {
    const time = `${milliseconds < 10_000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`} on the `
        + (loaded.reason === null ? "GPU" : "CPU");
    const list = classes ?? objects ?? [];
    at("results").replaceChildren(...list.map(found => item(found, objects !== undefined)));
    if (classes) {
        at("status").textContent = `Most likely ${classes[0].label}, ${percent(classes[0].probability)} · ${time}`;
        stage.name(classes[0].label);
    } else if (objects) {
        stage.objects = objects;
        stage.draw();
        const names = objects.map(({ label }) => label).join(", ");
        stage.name(names);
        const count = objects.length === 1 ? "1 thing" : `${objects.length} things`;
        at("status").textContent = objects.length ? `${count}: ${names} · ${time}` : `Nothing that this model knows · ${time}`;
    } else {
        at("status").textContent = `The picture is read (${time}). Click on a thing, or move the cross with the arrow keys and press Enter.`;
    }
}

/** A line of the results. */
function item({ class: number, label, probability, box }, colored) {
    const line = document.createElement("li");
    line.dataset.class = number;
    if (box) line.dataset.box = box.join(" ");
    const name = Object.assign(document.createElement("span"), { className: "name", textContent: label });
    if (colored) name.style.setProperty("--color", colorOf(number));
    const meter = Object.assign(document.createElement("meter"), { max: 1, value: probability, ariaLabel: `How likely: ${label}` });
    const share = Object.assign(document.createElement("span"), { className: "share", textContent: percent(probability) });
    line.append(name, meter, share);
    return line;
}

/** Cuts out what the points mean. */
async function addPoint([x, y]) {
    if (busy !== null || loaded?.task !== "segment") return;
    const inside = Number(document.querySelector("input[name=inside]:checked").value);
    const before = stage.points;
    stage.points = [...before, [x, y, inside]];
    stage.draw();
    forgetCutOut();
    at("look-error").textContent = "";
    await asked("Cutting out …", async () => {
        const mask = await tasks.ask({ kind: "mask", points: stage.points });
        stage.setMask(mask);
        const share = mask.inside.reduce((sum, pixel) => sum + pixel, 0) / mask.inside.length;
        at("status").textContent = `${percent(share)} of the picture, with a quality of ${percent(mask.iou)} by the model's own estimate · `
            + `${Math.round(mask.milliseconds)} ms`;
        at("save").href = URL.createObjectURL(await stage.cutOut());
        at("save").hidden = false;
    });
}

function forgetCutOut() {
    at("save").hidden = true;
    URL.revokeObjectURL(at("save").href);
    at("save").removeAttribute("href");
}

at("camera").onclick = async () => {
    at("picture-error").textContent = "";
    try {
        if (camera.running) {
            stage.show(await camera.take());
            at("file").value = "";
            return await look();
        }
        await camera.start();
    } catch (error) {
        at("picture-error").textContent = error.message;
    }
    update();
};
at("close-camera").onclick = () => {
    camera.stop();
    update();
    at("camera").focus();
};
at("again").onclick = look;
at("clear").onclick = () => {
    stage.clear();
    forgetCutOut();
    at("status").textContent = "Click on a thing, or move the cross with the arrow keys and press Enter.";
    update();
};
takeFiles(at("file"), at("picture-drop"), ([file]) => file && busy === null && take(file));
// The same file once more is a choice, too.
at("file").onclick = () => { at("file").value = ""; };
document.onpaste = ({ clipboardData }) => {
    const file = [...clipboardData.files].find(({ type }) => type.startsWith("image/"));
    if (file && busy === null) take(file);
};
update();
