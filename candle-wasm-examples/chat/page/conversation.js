// What has been said, kept in the browser's storage.

const KEY = "candle-chat";

/**
 * Messages are `{ role, content, thoughts, note }`: thoughts are those of the model before an answer, and a note tells how long the answer was
 * and how fast.
 */
export class Conversation {
    /** `onProblem` hears once why nothing can be kept. */
    constructor(onProblem) {
        this.onProblem = onProblem;
        this.messages = [];
        this.system = "";
        try {
            const kept = JSON.parse(localStorage.getItem(KEY) ?? "null");
            if (kept && Array.isArray(kept.messages)) {
                this.messages = kept.messages.filter(isMessage);
                this.system = typeof kept.system === "string" ? kept.system : "";
            }
        } catch (error) {
            this.failed(error);
        }
    }

    save() {
        try {
            localStorage.setItem(KEY, JSON.stringify({ messages: this.messages, system: this.system }));
        } catch (error) {
            this.failed(error);
        }
    }

    failed(error) {
        this.onProblem?.(`This browser cannot save the conversation: ${error.message}`);
        this.onProblem = null;
    }

    add(role, content) {
        const message = { role, content };
        this.messages.push(message);
        this.save();
        return message;
    }

    /** As the model takes it: many templates want the user and the model in turn, so what was said without an answer is one message. */
    get prompt() {
        const said = [];
        for (const { role, content } of this.messages) {
            // Thoughts that came to no answer.
            if (content === "") continue;
            const last = said.at(-1);
            if (last?.role === role) last.content += `\n\n${content}`;
            else said.push({ role, content });
        }
        const system = this.system.trim();
        return system ? [{ role: "system", content: system }, ...said] : said;
    }

    get last() {
        return this.messages.at(-1);
    }

    /** The place of the last message of the user; -1 without one. */
    get lastOfUser() {
        return this.messages.findLastIndex(({ role }) => role === "user");
    }

    /** Forgets the messages from a place on, and gives them. */
    cut(place) {
        const gone = this.messages.splice(place);
        this.save();
        return gone;
    }
}

/** Whether it is one; an answer of which there is nothing is none. */
const isMessage = message =>
    (message?.role === "user" || message?.role === "assistant") && typeof message.content === "string"
    && (message.content !== "" || message.role === "assistant" && typeof message.thoughts === "string" && message.thoughts !== "");
