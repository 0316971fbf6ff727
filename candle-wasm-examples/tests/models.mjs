// Another site than the pages': models, and files that are not what they should be.
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

/** By path: the model in a folder as `/good/`, half of its weights as `/truncated/`, without parts as `/whole/`, and a page as `/page.gguf`. */
export async function modelFiles(folder) {
    const files = new Map();
    for (const name of ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"]) {
        const bytes = await readFile(`${folder}/${name}`);
        const half = name.endsWith(".safetensors") ? bytes.subarray(0, bytes.length / 2) : bytes;
        files.set(`/truncated/${name}`, half);
        files.set(`/whole/${name}`, bytes);
        files.set(`/good/${name}`, bytes);
    }
    files.set("/page.gguf", Buffer.from("<!doctype html><title>Please log in</title>"));
    return files;
}

/** What a browser takes only as what it is. */
const TYPES = { html: "text/html; charset=utf-8", js: "text/javascript; charset=utf-8", wasm: "application/wasm" };

const ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp", "Cross-Origin-Resource-Policy": "cross-origin",
};

/** Serves files to other origins, and with headers of isolation if asked; `asked` has the headers of the requests for parts. */
export async function serve(files, isolated = false) {
    const asked = [];
    const server = createServer((request, response) => {
        const headers = { "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "Range", ...(isolated ? ISOLATED : {}) };
        const bytes = files.get(request.url);
        if (request.method === "OPTIONS") return response.writeHead(204, headers).end();
        // As servers of apps do.
        if (!bytes && request.url.startsWith("/app/")) return response.writeHead(200, { ...headers, "Content-Type": TYPES.html }).end("<p>App");
        if (!bytes) return response.writeHead(404, headers).end("no such file");
        asked.push(request.headers);
        const type = TYPES[request.url.split(".").pop()];
        if (request.url === "/" || type) headers["Content-Type"] = type ?? TYPES.html;
        const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
        if (!range || request.url.startsWith("/whole/")) return response.writeHead(200, headers).end(bytes);
        const [start, end] = [Number(range[1]), Math.min(Number(range[2]) + 1, bytes.length)];
        headers["Access-Control-Expose-Headers"] = "Content-Range, ETag";
        headers["Content-Range"] = `bytes ${start}-${end - 1}/${bytes.length}`;
        return response.writeHead(206, headers).end(bytes.subarray(start, end));
    });
    await new Promise(done => server.listen(0, "127.0.0.1", done));
    const stop = () => {
        server.close();
        server.closeAllConnections();
    };
    return { stop, asked, address: `http://127.0.0.1:${server.address().port}/` };
}
