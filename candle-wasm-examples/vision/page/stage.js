// The picture, and what is drawn over it.

/** The longer side of what is drawn, in pixels: enough for a page's width on a dense screen. */
const SIDE = 1600;
/** How far an arrow key moves the cross, a part of the picture. */
const STEP = 0.02;

/** The colour of a class: the golden angle keeps neighbours apart. */
export const colorOf = number => `hsl(${Math.round(number * 137.5) % 360} 75% 45%)`;

export class Stage {
    /** `onPoint` hears where somebody points, across and down, from 0 to 1, if `takesPoints` is set. */
    constructor(canvas, onPoint) {
        Object.assign(this, { canvas, onPoint, picture: null, objects: [], mask: null, points: [], cross: null });
        canvas.onclick = event => {
            const { left, top, width, height } = canvas.getBoundingClientRect();
            this.point((event.clientX - left) / width, (event.clientY - top) / height);
        };
        canvas.onkeydown = event => this.key(event);
        canvas.onblur = () => {
            this.cross = null;
            this.draw();
        };
    }

    /** Whether points mean something: then the picture is a control. */
    set takesPoints(takes) {
        const { canvas } = this;
        canvas.classList.toggle("points", takes);
        if (takes) canvas.tabIndex = 0;
        else canvas.removeAttribute("tabindex");
        canvas.role = takes ? "application" : "img";
        this.takes = takes;
        this.name("");
    }

    /** Names the picture for those who do not see it. */
    name(seen) {
        this.canvas.ariaLabel = this.takes
            ? "The picture: click on a thing, or move the cross with the arrow keys and press Enter"
            : `The picture${seen && `: ${seen}`}`;
    }

    show(picture) {
        this.picture?.close();
        this.picture = picture;
        const scale = Math.min(1, SIDE / Math.max(picture.width, picture.height));
        this.canvas.width = Math.max(1, Math.round(picture.width * scale));
        this.canvas.height = Math.max(1, Math.round(picture.height * scale));
        this.canvas.hidden = false;
        this.clear();
    }

    /** Only the picture is left. */
    clear() {
        Object.assign(this, { objects: [], mask: null, points: [] });
        this.draw();
    }

    point(x, y) {
        if (this.takes && this.picture) this.onPoint([x, y].map(at => Math.min(Math.max(at, 0), 1)));
    }

    key(event) {
        const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
        const move = moves[event.key];
        if (!this.takes || !(move || event.key === "Enter" || event.key === " ")) return;
        event.preventDefault();
        const at = this.cross ?? [0.5, 0.5];
        if (!move) return this.point(...at);
        this.cross = at.map((part, i) => Math.min(Math.max(part + STEP * move[i], 0), 1));
        this.draw();
    }

    draw() {
        if (!this.picture) return;
        const { canvas } = this;
        const context = canvas.getContext("2d");
        context.drawImage(this.picture, 0, 0, canvas.width, canvas.height);
        // A line as wide on the screen, whatever the picture's size.
        const unit = canvas.width / (canvas.clientWidth || canvas.width);
        if (this.mask) context.drawImage(this.mask, 0, 0, canvas.width, canvas.height);
        // The likeliest is on top.
        for (const object of [...this.objects].reverse()) this.box(context, object, unit);
        for (const [x, y, inside] of this.points) this.dot(context, x * canvas.width, y * canvas.height, inside, unit);
        if (this.cross) this.lines(context, this.cross[0] * canvas.width, this.cross[1] * canvas.height, unit);
    }

    box(context, { class: number, label, probability, box: [left, top, right, bottom] }, unit) {
        const { width, height } = this.canvas;
        const [x, y] = [left * width, top * height];
        context.strokeStyle = context.fillStyle = colorOf(number);
        context.lineWidth = 3 * unit;
        context.strokeRect(x, y, (right - left) * width, (bottom - top) * height);
        const size = 14 * unit;
        context.font = `600 ${size}px system-ui, sans-serif`;
        const text = `${label} ${Math.round(100 * probability)}%`;
        const [w, h] = [context.measureText(text).width + size * 0.6, size * 1.35];
        const textX = Math.max(0, Math.min(x - 1.5 * unit, width - w));
        const textY = y >= h ? y - h : y;
        context.fillRect(textX, textY, w, h);
        context.fillStyle = "white";
        context.textBaseline = "middle";
        context.fillText(text, textX + size * 0.3, textY + h / 2);
    }

    dot(context, x, y, inside, unit) {
        context.beginPath();
        context.arc(x, y, 6 * unit, 0, 2 * Math.PI);
        context.fillStyle = inside ? "#2fbf5b" : "#d02f3f";
        context.strokeStyle = "white";
        context.lineWidth = 2 * unit;
        context.fill();
        context.stroke();
    }

    lines(context, x, y, unit) {
        for (const [color, width] of [["black", 3], ["white", 1]]) {
            context.strokeStyle = color;
            context.lineWidth = width * unit;
            context.beginPath();
            context.moveTo(x - 14 * unit, y);
            context.lineTo(x + 14 * unit, y);
            context.moveTo(x, y - 14 * unit);
            context.lineTo(x, y + 14 * unit);
            context.stroke();
        }
    }

    /** Takes a mask; what is inside is tinted. */
    setMask({ columns, rows, inside }) {
        this.mask = painted(columns, rows, inside, [30, 100, 255, 140]);
        this.inside = painted(columns, rows, inside, [0, 0, 0, 255]);
        this.draw();
    }

    /** The picture without what is outside of the mask, as a PNG. */
    cutOut() {
        const { picture } = this;
        const canvas = new OffscreenCanvas(picture.width, picture.height);
        const context = canvas.getContext("2d");
        context.drawImage(this.inside, 0, 0, picture.width, picture.height);
        context.globalCompositeOperation = "source-in";
        context.drawImage(picture, 0, 0);
        return canvas.convertToBlob({ type: "image/png" });
    }
}

/** A canvas that has `color` inside of a mask and nothing outside. */
function painted(columns, rows, inside, color) {
    const pixels = new ImageData(columns, rows);
    for (let i = 0; i < inside.length; i++) if (inside[i]) pixels.data.set(color, 4 * i);
    const canvas = new OffscreenCanvas(columns, rows);
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    return canvas;
}
