// The switch that leaves out silence.
import { VAD_ADDRESS, vadBytes } from "../candle-wasm/speech.js";
import { takeFiles } from "../model.js";
import { at } from "../shared.js";

const HOST = new URL(VAD_ADDRESS).host;
const OFF = `Off: a recording is transcribed as a whole, when it has ended. Whisper may make up words where nobody speaks. Switching it on `
    + `downloads Silero VAD (1.2 MB, MIT licence) from ${HOST}.`;
const ON = "On: Silero VAD finds where somebody speaks, and only that is transcribed. While you record, words come after each pause.";

export class Silence {
    /** `check` resolves if bytes are Silero VAD. `onChange` hears that the switch was used, before and after. */
    constructor(check, onChange) {
        Object.assign(this, { check, onChange });
        /** The bytes of Silero VAD, if the switch is on. */
        this.vad = undefined;
        this.bringing = false;
        at("skip").onchange = () => at("skip").checked ? this.bring() : this.off();
        takeFiles(at("vad-file"), at("vad-box"), ([file]) => file && !at("vad-file").disabled && this.bring(file));
        // The same file once more is a choice, too.
        at("vad-file").onclick = () => { at("vad-file").value = ""; };
        at("skip-state").textContent = OFF;
    }

    off(problem = "") {
        this.vad = undefined;
        at("skip").checked = false;
        at("skip-state").textContent = OFF;
        at("vad-error").textContent = problem;
        if (problem) at("vad-box").open = true;
        this.onChange();
    }

    /** Switches it on with a file, or with what the server has. */
    async bring(file) {
        this.bringing = true;
        at("skip").checked = true;
        at("vad-error").textContent = "";
        at("skip-state").textContent = file ? `Reading ${file.name} …` : `Downloading Silero VAD from ${HOST} …`;
        this.onChange();
        let problem = "";
        try {
            const bytes = await vadBytes(file);
            await this.check(bytes);
            this.vad = bytes;
            at("skip-state").textContent = ON;
        } catch (error) {
            problem = error.message;
        }
        this.bringing = false;
        if (problem) this.off(problem);
        else this.onChange();
    }
}
