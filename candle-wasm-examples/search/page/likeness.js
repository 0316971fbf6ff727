// How much of a question is in a passage, by the model's output: vectors, or words with weights.

/** The cosine of the angle between two vectors of length 1. */
const cosine = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

/** The words that two texts are about, each with the product of its weights, largest first. */
export function commonWords(a, b) {
    const common = [];
    for (const [word, weight] of a) {
        if (b.has(word)) common.push([word, weight * b.get(word)]);
    }
    return common.sort(([, a], [, b]) => b - a);
}

/** By the model's output: how alike two texts are, and the largest value if there is one. */
export const LIKENESS = {
    vectors: { of: cosine, largest: 1 },
    words: { of: (a, b) => commonWords(a, b).reduce((sum, [, product]) => sum + product, 0) },
};
