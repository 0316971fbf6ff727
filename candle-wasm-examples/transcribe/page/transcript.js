// The text on the page: its segments, and what is to come.

/** `1:05`, and `1:02:05` beyond an hour. */
export function clock(seconds) {
    const whole = Math.floor(seconds);
    const two = n => String(n).padStart(2, "0");
    const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
    return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** A time of a subtitle: `00:01:05,250`. */
function subtitleTime(seconds) {
    const ms = Math.round(seconds * 1000);
    const part = (size, of, digits = 2) => String(Math.floor(ms / size) % of).padStart(digits, "0");
    return `${part(3_600_000, 100)}:${part(60_000, 60)}:${part(1000, 60)},${part(1, 1000, 3)}`;
}

/** The segments as a file of subtitles. */
export const subtitles = segments => segments.map(({ start, end, text }, i) =>
    `${i + 1}\n${subtitleTime(start)} --> ${subtitleTime(end)}\n${text.trim()}\n`).join("\n");

export class Transcript {
    /** `onPlay` hears the second that somebody wants to hear. */
    constructor(box, onPlay) {
        Object.assign(this, { box, onPlay });
        this.clear();
    }

    clear() {
        this.segments = [];
        this.box.replaceChildren();
        this.draft = null;
    }

    get text() {
        return this.segments.map(({ text }) => text).join("").trim();
    }

    add(segment) {
        this.segments.push(segment);
        this.drafted("");
        this.box.append(this.line(segment.start, segment.text));
    }

    /** Shows what follows the segments so far and may still change. */
    drafted(text) {
        if (!text.trim()) {
            this.draft?.remove();
            this.draft = null;
            return;
        }
        if (!this.draft) {
            this.draft = this.line(null, "");
            this.draft.classList.add("draft");
            this.box.append(this.draft);
        }
        this.draft.lastChild.textContent = text.trim();
    }

    line(start, text) {
        const line = document.createElement("p");
        const time = Object.assign(document.createElement("button"), { type: "button", className: "time" });
        time.textContent = start === null ? "…" : clock(start);
        time.disabled = start === null;
        time.ariaLabel = start === null ? "In progress" : `Play from ${clock(start)}`;
        time.onclick = () => this.onPlay(start);
        line.append(time, Object.assign(document.createElement("span"), { textContent: text.trim() }));
        return line;
    }
}
