// The model, beside the page's thread. One request at a time; each answer carries its request's id.
import { load } from "../candle-wasm/index.js";
import { textWorker } from "../worker.js";

textWorker(load, {
    chat: (model, { messages, options }, onPiece) => model.chat(messages, options, onPiece),
});
