// The microphone.
import { SAMPLE_RATE } from "../candle-wasm/speech.js";
import { joined, Resampler } from "./resample.js";

/** What stands in the way of a recording, in words that help. */
function problem(error) {
    if (error.name === "NotAllowedError") return "The browser blocks the microphone: allow it in the address bar, then press Record again.";
    if (error.name === "NotFoundError") return "There is no microphone: connect one, or choose a sound file.";
    return `The microphone cannot be used: ${error.message}`;
}

export class Recorder {
    /** `onPart` hears the samples that came, how loud they are, from 0 to 1, and how many seconds there are. */
    constructor(onPart) {
        this.onPart = onPart;
        this.parts = [];
        this.length = 0;
        this.stream = null;
    }

    get running() {
        return this.stream !== null;
    }

    async start() {
        if (!navigator.mediaDevices) throw new Error("A microphone needs a secure context: open this page over https, or from 127.0.0.1.");
        let stream;
        try {
            stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
        } catch (error) {
            throw new Error(problem(error));
        }
        const context = new AudioContext();
        try {
            await context.audioWorklet.addModule(new URL("capture.js", import.meta.url));
        } catch (error) {
            stream.getTracks().forEach(track => track.stop());
            context.close();
            throw new Error(problem(error));
        }
        this.parts = [];
        this.length = 0;
        this.resampler = new Resampler(context.sampleRate);
        const capture = new AudioWorkletNode(context, "capture", { channelCount: 1, channelCountMode: "explicit" });
        capture.port.onmessage = ({ data }) => this.running && this.take(this.resampler.push(data));
        // Browsers run what leads to the speakers; nothing is played.
        context.createMediaStreamSource(stream).connect(capture).connect(context.destination);
        Object.assign(this, { stream, context });
    }

    take(samples) {
        if (samples.length === 0) return;
        this.parts.push(samples);
        this.length += samples.length;
        const power = samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
        // From silence, 60 decibels below the loudest, to that.
        const level = power > 0 ? 1 + Math.log10(power) / 6 : 0;
        this.onPart(samples, Math.min(Math.max(level, 0), 1), this.length / SAMPLE_RATE);
    }

    /** The samples so far. */
    get samples() {
        this.parts = [joined(this.parts)];
        return this.parts[0];
    }

    /** The recording. */
    stop() {
        this.take(this.resampler.end());
        this.stream.getTracks().forEach(track => track.stop());
        this.context.close();
        this.stream = null;
        return this.samples;
    }
}

/** Samples as a WAV file. */
export function wav(samples) {
    const header = new DataView(new ArrayBuffer(44));
    const bytes = 2 * samples.length;
    const words = [[0, "RIFF"], [8, "WAVE"], [12, "fmt "], [36, "data"]];
    for (const [at, word] of words) [...word].forEach((letter, i) => header.setUint8(at + i, letter.charCodeAt(0)));
    // The sizes; 16-bit samples of one channel; bytes a second and a sample.
    for (const [at, value] of [[4, 36 + bytes], [16, 16], [24, SAMPLE_RATE], [28, 2 * SAMPLE_RATE], [40, bytes]]) header.setUint32(at, value, true);
    for (const [at, value] of [[20, 1], [22, 1], [32, 2], [34, 16]]) header.setUint16(at, value, true);
    const whole = Int16Array.from(samples, sample => Math.max(-1, Math.min(1, sample)) * 32767);
    return new Blob([header, whole], { type: "audio/wav" });
}
