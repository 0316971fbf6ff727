import type { ModuleOptions } from "./index.js";

export * from "./dvm/simd/candle.js";

/** Loads the module that has `BrowserDvm` and all that the module of language models has. */
export function loadDvm(options?: ModuleOptions): Promise<typeof import("./dvm/simd/candle.js")>;
