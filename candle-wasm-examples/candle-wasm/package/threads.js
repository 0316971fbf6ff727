// The CPU's threads: Web Workers with instances of one module over one memory.
import { HAS_THREADS } from "./builds.js";

/** More than this share the memory's bandwidth and gain little. */
const MOST = 8;

/** How many threads a module takes, if it is not told: half of what the processor shows, as the other half are often the same cores. */
const usual = () => Math.min(MOST, Math.floor((navigator.hardwareConcurrency ?? 1) / 2));

/** The memory of wasm32: as much as its addresses reach. */
const PAGES = 65_536;

/** Why the CPU's ops run on one thread here, or null if they can have `threads`. */
export function whyOneThread(threads = usual()) {
    if (threads < 2) return `the browser shows ${navigator.hardwareConcurrency ?? "no"} processor cores`;
    if (!HAS_THREADS) return "this copy of candle-wasm was built without threads";
    if (!globalThis.crossOriginIsolated) {
        return "the page is not cross-origin isolated: its server must send Cross-Origin-Opener-Policy: same-origin and " +
            "Cross-Origin-Embedder-Policy: require-corp";
    }
    if (typeof WorkerGlobalScope === "undefined") return "the page's own thread must not wait for others: load the module in a Worker";
    try {
        new WebAssembly.Memory({ initial: 1, maximum: PAGES, shared: true });
    } catch (error) {
        return `the browser cannot reserve memory that threads share: ${error.message}`;
    }
    return null;
}

/** Starts the workers of a loaded module, with `spawn`, so that its ops run on `threads` threads. */
export async function startThreads(module, compiled, spawn, threads = usual()) {
    const workers = Array.from({ length: threads - 1 }, spawn);
    module.expect_workers(workers.length);
    const memory = module.shared_memory();
    try {
        await Promise.all(workers.map((worker, index) => new Promise((resolve, reject) => {
            worker.onmessage = resolve;
            worker.onerror = event => reject(new Error(`a thread did not start: ${event.message ?? "its script did not load"}`));
            worker.postMessage({ compiled, memory, index });
        })));
    } catch (error) {
        for (const worker of workers) worker.terminate();
        throw error;
    }
}

/** What a worker's script does with the JavaScript of its module. */
export function workFor(module) {
    onmessage = async ({ data: { compiled, memory, index } }) => {
        await module.default({ module_or_path: compiled, memory });
        postMessage("ready");
        try {
            module.work(index);
        } catch (error) {
            // Its message is in the console. Who waits for this thread gets an error of their own.
            module.lose_worker(index);
        }
    };
}
