import * as module from "./threads/candle.js";
import { workFor } from "./threads.js";

workFor(module);
