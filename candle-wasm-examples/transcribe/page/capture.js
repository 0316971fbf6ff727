// Runs on the browser's audio thread: passes on the samples of one channel.

/** Samples that are passed on together: at 48 kHz, 23 times a second. */
const BLOCK = 2048;

class Capture extends AudioWorkletProcessor {
    constructor() {
        super();
        this.block = new Float32Array(BLOCK);
        this.filled = 0;
    }

    process([[channel]]) {
        // There is none before the microphone has started.
        if (channel) {
            this.block.set(channel, this.filled);
            this.filled += channel.length;
        }
        if (this.filled + (channel?.length ?? 0) > BLOCK) {
            this.port.postMessage(this.block.slice(0, this.filled));
            this.filled = 0;
        }
        return true;
    }
}

registerProcessor("capture", Capture);
