// The microphone.
import { SAMPLE_RATE } from "../candle-wasm/speech.js";

/** What stands in the way of a recording, in words that help. */
function problem(error) {
    if (error.name === "NotAllowedError") return "The browser blocks the microphone: allow it in the address bar, then press Record again.";
    if (error.name === "NotFoundError") return "There is no microphone: connect one, or choose a sound file.";
    return `The microphone cannot be used: ${error.message}`;
}

export class Recorder {
    /** `onLevel` hears, from 0 to 1, how loud it is, and how many seconds there are, at every frame of the screen. */
    constructor(onLevel) {
        this.onLevel = onLevel;
        this.recorder = null;
    }

    get running() {
        return this.recorder !== null;
    }

    async start() {
        if (!navigator.mediaDevices) throw new Error("A microphone needs a secure context: open this page over https, or from 127.0.0.1.");
        let stream;
        try {
            stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
        } catch (error) {
            throw new Error(problem(error));
        }
        const parts = [];
        this.recorder = new MediaRecorder(stream);
        this.recorder.ondataavailable = ({ data }) => parts.push(data);
        this.stopped = new Promise(done => {
            this.recorder.onstop = () => {
                stream.getTracks().forEach(track => track.stop());
                this.context.close();
                done(new Blob(parts, { type: this.recorder.mimeType }));
                this.recorder = null;
            };
        });
        this.measure(stream);
        this.recorder.start();
    }

    /** The recording. */
    stop() {
        this.recorder.stop();
        return this.stopped;
    }

    measure(stream) {
        this.context = new AudioContext();
        const analyser = this.context.createAnalyser();
        this.context.createMediaStreamSource(stream).connect(analyser);
        const samples = new Float32Array(analyser.fftSize);
        const start = performance.now();
        const look = () => {
            if (!this.running) return;
            analyser.getFloatTimeDomainData(samples);
            const power = samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
            // From silence, 60 decibels below the loudest, to that.
            const level = power > 0 ? 1 + Math.log10(power) / 6 : 0;
            this.onLevel(Math.min(Math.max(level, 0), 1), (performance.now() - start) / 1000);
            requestAnimationFrame(look);
        };
        look();
    }
}

/** Samples as a WAV file: what browsers record has no length in front, and cannot be played from any place. */
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
