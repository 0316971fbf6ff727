import type { Constraint, WasmModel } from "./simd/candle.js";

/** Makes constraints on the answers of models; the tokens of each model are prepared once. */
export class Grammars {
    /**
     * The constraint of one answer to a JSON schema, for the option `constraint` of `WasmModel.chat`. `onProgress` hears how much of the module
     * is there, in bytes. Rejects if the schema is malformed or not supported.
     */
    guide(model: WasmModel, schema: object | boolean, onProgress?: (loaded: number, total?: number) => void): Promise<Constraint & { free(): void }>;
}
