// How messages look.
import { markdown } from "./markdown.js";

const element = (name, className, text = "") => Object.assign(document.createElement(name), { className, textContent: text });

export function button(label, onclick, title = label) {
    const made = Object.assign(element("button", "small", label), { type: "button", onclick, title });
    if (title !== label) made.ariaLabel = title;
    return made;
}

/** A message of the conversation in its box. */
export class Message {
    constructor(box, message, name) {
        this.message = message;
        this.node = element("article", `message ${message.role}`);
        this.node.ariaLabel = message.role === "user" ? "You" : name;
        this.body = element("div", "body");
        this.foot = element("div", "foot");
        this.note = element("span", "hint");
        this.node.append(this.body, this.foot);
        box.append(this.node);
        this.show();
    }

    /** Shows the message's text, which may have become longer. */
    show(writing = false) {
        const { role, content } = this.message;
        if (role === "user") {
            this.body.textContent = content;
            return;
        }
        const { thoughts } = this.message;
        const shown = [];
        if (typeof thoughts === "string" && thoughts !== "") {
            // Somebody may have opened it while it is written.
            const details = element("details", "thoughts");
            details.open = this.body.querySelector(".thoughts")?.open ?? false;
            details.append(element("summary", "", writing && content === "" ? "Thinking …" : "Thoughts"), markdown(thoughts));
            shown.push(details);
        }
        shown.push(markdown(content));
        this.body.replaceChildren(...shown);
        this.body.classList.toggle("writing", writing);
    }

    /** What can be done with it, and what is to be known of it. */
    actions(...buttons) {
        this.note.textContent = this.message.note ?? "";
        this.foot.replaceChildren(...buttons, this.note);
    }
}
