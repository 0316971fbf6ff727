import * as module from "./speech/threads/candle.js";
import { workFor } from "./threads.js";

workFor(module);
