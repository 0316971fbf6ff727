// How a module of WebAssembly comes to the browser.

// A module with one vector instruction: `i8x16.splat` of 0, dropped.
const VECTORS = new Uint8Array([
    0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 10, 9, 1, 7, 0, 65, 0, 253, 15, 26, 11,
]);

export const supportsSimd = () => WebAssembly.validate(VECTORS);

/** The answer of a server; `onProgress` hears how much of it is there. What is no address is given back. */
export async function fetchWasm(wasm, onProgress) {
    if (typeof wasm !== "string" && !(wasm instanceof URL)) return wasm;
    const failed = problem => new Error(`cannot load ${wasm}: ${problem}`);
    const response = await fetch(wasm).catch(error => {
        throw failed(`${error.message}; check the network`);
    });
    if (!response.ok) throw failed(`the server returned ${response.status} ${response.statusText}`);
    if (!onProgress || !response.body) return response;
    // Of a compressed answer the length says nothing about what comes out of it.
    const length = response.headers.get("Content-Encoding") ? null : response.headers.get("Content-Length");
    const size = Number(length) || undefined;
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

/**
 * One of a module's builds, and its exports. `builds` has, by name, functions that give the JavaScript and the address of the WebAssembly;
 * without a `build`, the one that this browser can run.
 */
export async function loadFrom(builds, { build = supportsSimd() ? "simd" : "plain", wasm, onProgress } = {}) {
    if (!Object.hasOwn(builds, build)) throw new Error(`build: found ${build}, expected simd or plain`);
    const [module, address] = await builds[build]();
    await module.default({ module_or_path: await fetchWasm(wasm ?? address, onProgress) });
    return module;
}
