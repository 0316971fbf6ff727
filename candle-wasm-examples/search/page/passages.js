// A text cut into passages that a model can take as one.

/** About as many words as small models were trained with; they take little more than twice that. */
const WORDS = 90;

const segmenter = new Intl.Segmenter("en", { granularity: "sentence" });

/** The sentences of a text; together they are the text. */
export const sentences = text => Array.from(segmenter.segment(text), ({ segment }) => segment);

const words = text => text.split(/\s+/).filter(word => word).length;

/** Paragraphs, where blank lines are between them; long ones as several passages of whole sentences. */
export function passages(text) {
    const found = [];
    for (const paragraph of text.split(/\n\s*\n/)) {
        let passage = "";
        for (const sentence of sentences(paragraph.trim().replace(/\s+/g, " "))) {
            if (passage && words(passage) + words(sentence) > WORDS) {
                found.push(passage.trim());
                passage = "";
            }
            passage += sentence;
        }
        if (passage.trim()) found.push(passage.trim());
    }
    return found;
}
