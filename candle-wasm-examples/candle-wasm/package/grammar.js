// JSON schemas as constraints on answers: a separate module, which is loaded when the first answer needs it.
import { loadFrom, supportsSimd } from "./wasm.js";

/** The builds, in the words that bundlers follow to their files. */
const BUILDS = {
    simd: async () => [await import("./grammar/simd/candle.js"), new URL("./grammar/simd/candle_bg.wasm", import.meta.url)],
    plain: async () => [await import("./grammar/plain/candle.js"), new URL("./grammar/plain/candle_bg.wasm", import.meta.url)],
};

/** What makes constraints on the answers of models; the tokens of each model are prepared once. */
export class Grammars {
    #module = null;
    #vocabularies = new WeakMap();

    /** The constraint of one answer of a `WasmModel` to a JSON schema; `onProgress` hears how much of the module is there. */
    async guide(model, schema, onProgress) {
        this.#module ??= loadFrom(BUILDS, { build: supportsSimd() ? "simd" : "plain", onProgress }).catch(error => {
            this.#module = null;
            throw error;
        });
        const { Vocabulary, special_byte } = await this.#module;
        if (!this.#vocabularies.has(model)) {
            const { bytes, lengths, stops } = await model.vocabulary(special_byte());
            this.#vocabularies.set(model, new Vocabulary(bytes, lengths, stops));
        }
        try {
            return this.#vocabularies.get(model).guide(JSON.stringify(schema));
        } catch (error) {
            throw new Error(`response_format: the schema: ${error.message}`);
        }
    }
}
