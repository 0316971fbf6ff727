// From a microphone's rate to a Whisper's, part after part.
import { SAMPLE_RATE } from "../candle-wasm/speech.js";

/** Zeros of the filter's wave on either side: the more there are, the less is heard of frequencies that the new rate does not have. */
const ZEROS = 24;
/** The part of those frequencies that the new rate has which is kept. */
const KEPT = 0.95;

const divisor = (a, b) => b === 0 ? a : divisor(b, a % b);

/** The parts as one. */
export function joined(parts) {
    const whole = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
        whole.set(part, at);
        at += part.length;
    }
    return whole;
}

/** A low-pass filter, a sinc under a Hann window, that is read at the times of the new samples. */
export class Resampler {
    constructor(from, to = SAMPLE_RATE) {
        const common = divisor(from, to);
        // A new sample is `step / phases` old ones after the one before.
        this.step = from / common;
        this.phases = to / common;
        const cut = KEPT * Math.min(1, to / from);
        this.half = Math.ceil(ZEROS / cut);
        this.filters = Array.from({ length: this.phases }, (_, phase) => this.filter(phase / this.phases, cut));
        /** Old samples that are still needed; silence comes before the first. */
        this.old = new Float32Array(this.half - 1);
        /** The time of the next new sample, in `phases` of an old one from the first of `old` on. */
        this.next = (this.half - 1) * this.phases;
    }

    filter(late, cut) {
        return Float32Array.from({ length: 2 * this.half }, (_, i) => {
            const t = i - this.half + 1 - late;
            const wave = t === 0 ? 1 : Math.sin(Math.PI * cut * t) / (Math.PI * cut * t);
            return Math.abs(t) >= this.half ? 0 : cut * wave * (0.5 + 0.5 * Math.cos(Math.PI * t / this.half));
        });
    }

    /** The new samples that these complete. */
    push(samples) {
        const old = joined([this.old, samples]);
        const found = [];
        for (; ; this.next += this.step) {
            const at = Math.floor(this.next / this.phases);
            if (at + this.half >= old.length) break;
            const filter = this.filters[this.next % this.phases];
            const first = at - this.half + 1;
            let sum = 0;
            for (let i = 0; i < filter.length; i++) sum += filter[i] * old[first + i];
            found.push(sum);
        }
        const past = Math.floor(this.next / this.phases) - this.half + 1;
        this.old = old.slice(past);
        this.next -= past * this.phases;
        return Float32Array.from(found);
    }

    /** The new samples that silence completes. */
    end() {
        return this.push(new Float32Array(this.half));
    }
}
