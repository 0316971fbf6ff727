// The model, beside the page's thread. One request at a time; each answer carries its request's id.
import { load } from "../candle-wasm/index.js";
import { textWorker } from "../worker.js";

textWorker(load, {
    generate: (model, { prompt, options }, onPiece) => model.generate_stream(prompt, options, onPiece),
});
