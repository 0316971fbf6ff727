import * as module from "./dvm/threads/candle.js";
import { workFor } from "./threads.js";

workFor(module);
