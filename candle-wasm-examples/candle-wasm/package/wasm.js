// How a module of WebAssembly comes to the browser.
import { startThreads, whyOneThread } from "./threads.js";

// A module with one vector instruction: `i8x16.splat` of 0, dropped.
const VECTORS = new Uint8Array([
    0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 9, 1, 7, 0, 65, 0, 253, 15, 26, 11,
]);

export const supportsSimd = () => WebAssembly.validate(VECTORS);

/**
 * The answer of a server; `onProgress` hears how much of it is there, and of how much: `wasmSize`, or what the server says. What is no
 * address is given back.
 */
export async function fetchWasm(wasm, onProgress, wasmSize) {
    if (typeof wasm !== "string" && !(wasm instanceof URL)) return wasm;
    const failed = problem => new Error(`cannot load ${wasm}: ${problem}`);
    const response = await fetch(wasm).catch(error => {
        throw failed(`${error.message}; check the network`);
    });
    if (!response.ok) throw failed(`the server returned ${response.status} ${response.statusText}`);
    if (!onProgress || !response.body) return response;
    // Of a compressed answer the length says nothing about what comes out of it.
    const length = response.headers.get("Content-Encoding") ? null : response.headers.get("Content-Length");
    const size = wasmSize ?? (Number(length) || undefined);
    let done = 0;
    const counting = new TransformStream({
        transform(piece, controller) {
            done += piece.length;
            onProgress(done, size);
            controller.enqueue(piece);
        },
        flush: () => onProgress(done, done),
    });
    return new Response(response.body.pipeThrough(counting), response);
}

/** Whether the browser gives out an adapter. That it opens is not known before a model asks for it. */
export const hasAdapter = async () => await globalThis.navigator?.gpu?.requestAdapter().catch(() => null) != null;

/**
 * The build for a device: "cpu", or "auto" for the GPU if there is one. The one with threads has no code for GPUs.
 */
export async function suitedBuild(device = "auto", threads) {
    if (!["auto", "cpu"].includes(device)) throw new Error(`device: found ${device}, expected auto or cpu`);
    if (!supportsSimd()) return "plain";
    if (device === "auto" && await hasAdapter()) return "simd";
    return whyOneThread(threads) === null ? "threads" : "simd";
}

/** What gives the module of `load` for a device, each build once; one that failed is loaded again. */
export function modulesOf(load) {
    const builds = new Map();
    return async (device, threads, onProgress) => {
        const build = await suitedBuild(device, threads);
        if (!builds.has(build)) builds.set(build, load({ build, threads, onProgress }));
        try {
            return await builds.get(build);
        } catch (error) {
            builds.delete(build);
            throw error;
        }
    };
}

/** What a server sends or JavaScript has, as a compiled module. */
async function compile(wasm) {
    if (wasm instanceof WebAssembly.Module) return wasm;
    return wasm instanceof Response ? WebAssembly.compileStreaming(wasm) : WebAssembly.compile(wasm);
}

/**
 * One of a module's builds, and its exports. `builds` has, by name, functions that give the JavaScript, the address of the WebAssembly and,
 * for the one with threads, what starts a worker; without a `build`, the one that suits the browser and the device.
 */
export async function loadFrom(builds, { build, device, threads, wasm, onProgress } = {}) {
    const chosen = build ?? await suitedBuild(device, threads);
    if (!Object.hasOwn(builds, chosen)) throw new Error(`build: found ${chosen}, expected ${Object.keys(builds).join(", ")}`);
    const problem = chosen === "threads" ? whyOneThread(threads) : null;
    if (problem) throw new Error(`build: threads cannot run here: ${problem}`);
    const [module, address, spawn] = await builds[chosen]();
    const fetched = await fetchWasm(wasm ?? address, onProgress, wasm ? undefined : module.wasmSize);
    const compiled = spawn ? await compile(fetched) : fetched;
    await module.default({ module_or_path: compiled });
    if (spawn) await startThreads(module, compiled, spawn, threads);
    return module;
}
