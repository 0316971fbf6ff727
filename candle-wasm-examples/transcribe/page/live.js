// A recording whose phrases are transcribed while it goes on.
import { joined } from "./resample.js";

export class Live {
    /**
     * `tasks` has the worker, `vad` is Silero VAD, and `ready` resolves with whether there is a model. `onPhrase` transcribes a phrase,
     * `{ start, end }` in seconds, one after the other, and resolves with the worker's answer.
     */
    constructor(tasks, vad, ready, onPhrase) {
        Object.assign(this, { tasks, ready, onPhrase, waiting: [], hearing: null, turn: Promise.resolve(), first: { vad } });
        /** Whether somebody speaks now, and whether no more phrases are wanted. */
        this.speaking = this.stopped = false;
        /** The phrases that were transcribed, how long that took, and the last one's language. */
        Object.assign(this, { speech: [], seconds: 0, language: undefined });
    }

    /** Takes the samples that came. */
    push(samples) {
        this.waiting.push(samples);
        this.hearing ??= this.hear();
        // Whoever ends the recording is told.
        this.hearing.catch(() => {});
    }

    async hear() {
        while (this.waiting.length > 0) await this.ask(joined(this.waiting.splice(0)));
        this.hearing = null;
    }

    async ask(samples, end = false) {
        const first = this.first;
        this.first = {};
        const { phrases, speaking } = await this.tasks.ask({ kind: "hear", samples, end, ...first });
        this.speaking = speaking;
        for (const phrase of phrases) this.turn = this.turn.then(() => this.transcribe(phrase));
        this.turn.catch(() => {});
    }

    async transcribe(phrase) {
        if (!await this.ready || this.stopped) return;
        const { seconds, language, stopped } = await this.onPhrase(phrase);
        this.speech.push(phrase);
        Object.assign(this, { seconds: this.seconds + seconds, language, stopped });
    }

    /** Ends the recording. Resolves with whether there is a model, when all phrases are transcribed; the first error ends it. */
    async end() {
        await this.hearing;
        await this.ask(new Float32Array(0), true);
        await this.turn;
        return this.ready;
    }
}
