// The camera.

/** What stands in the way of a picture, in words that help. */
function problem(error) {
    if (error.name === "NotAllowedError") return "The browser blocks the camera: allow it in the address bar, then press Camera again.";
    if (error.name === "NotFoundError") return "There is no camera: connect one, or choose a picture.";
    if (error.name === "NotReadableError") return "Another program uses the camera: close it, then press Camera again.";
    return `The camera cannot be used: ${error.message}`;
}

export class Camera {
    /** `video` shows what it sees. */
    constructor(video) {
        Object.assign(this, { video, stream: null });
    }

    get running() {
        return this.stream !== null;
    }

    async start() {
        if (!navigator.mediaDevices) throw new Error("A camera needs a secure context: open this page over https, or from 127.0.0.1.");
        try {
            this.stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: 1280 } });
            this.video.srcObject = this.stream;
            await this.video.play();
        } catch (error) {
            this.stop();
            throw new Error(problem(error));
        }
    }

    /** What it sees now. */
    async take() {
        return createImageBitmap(this.video);
    }

    stop() {
        this.stream?.getTracks().forEach(track => track.stop());
        this.stream = null;
        this.video.srcObject = null;
    }
}
