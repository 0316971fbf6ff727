// Candle and onnxruntime-web on the same ops, in one page on one adapter, in turn: node run.mjs ADDRESS, with CHROME and CHROME_ARGS as
// `cargo xtask versus` sets them.
import { createReadStream, existsSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";
import { model } from "./onnx.mjs";

const ROUNDS = 7;
/** Milliseconds that a sample should take. */
const SAMPLE = 200;

/** As the page `ops` names them. */
const OPS = {
    "matmul 512x512x512": ["MatMul", { lhs: [512, 512], rhs: [512, 512] }, [512, 512]],
    "matmul 1x2048x2048": ["MatMul", { lhs: [1, 2048], rhs: [2048, 2048] }, [1, 2048]],
    "softmax 512x1024": ["Softmax", { xs: [512, 1024] }, [512, 1024], { axis: 1 }],
    "layer norm 512x1024": [
        "LayerNormalization", { xs: [512, 1024], alpha: [1024], beta: [1024] }, [512, 1024], { axis: 1, epsilon: 1e-5 },
    ],
};

const [site] = process.argv.slice(2);
const dist = join(dirname(fileURLToPath(import.meta.url)), "node_modules/onnxruntime-web/dist");
const other = await serve(dist);
const browser = await puppeteer.launch({
    executablePath: process.env.CHROME,
    args: process.env.CHROME_ARGS.split(" "),
    protocolTimeout: 900_000,
});
try {
    const page = await browser.newPage();
    await page.goto(`${site}ops/`);
    const about = await page.evaluate(openBoth, other.address);
    console.log(about);
    console.log("| op | candle, ms | onnxruntime-web, ms | times as fast |\n| --- | --- | --- | --- |");
    for (const [name, [op, inputs, output, attributes]] of Object.entries(OPS)) {
        const bytes = [...model(op, inputs, output, attributes)];
        await page.evaluate(prepare, name, bytes, inputs);
        const best = { ours: Infinity, theirs: Infinity };
        // In turn, so that what else the machine does meets both.
        for (let round = 0; round < ROUNDS; round++) {
            for (const who of Object.keys(best)) best[who] = Math.min(best[who], await page.evaluate(sample, who, SAMPLE));
        }
        const ratio = best.theirs / best.ours;
        console.log(`| ${name} | ${best.ours.toFixed(2)} | ${best.theirs.toFixed(2)} | ${ratio.toFixed(2)} |`);
    }
} finally {
    await browser.close();
    other.server.close();
}

async function serve(folder) {
    const types = { ".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm" };
    const server = createServer((request, response) => {
        const file = join(folder, normalize(new URL(request.url, "http://localhost").pathname));
        if (!file.startsWith(folder) || !existsSync(file)) return response.writeHead(404).end();
        response.writeHead(200, {
            "Content-Type": types[extname(file)] ?? "application/octet-stream",
            "Access-Control-Allow-Origin": "*",
            "Cross-Origin-Resource-Policy": "cross-origin",
        });
        createReadStream(file).pipe(response);
    });
    await new Promise(done => server.listen(0, "127.0.0.1", done));
    return { server, address: `http://127.0.0.1:${server.address().port}/` };
}

// These run in the page.

async function openBoth(address) {
    const { from } = await import("/worker.js");
    const ours = await from(new URL("/ops/wasm/", location.href))({});
    const checker = await ours.Checker.open();
    const ort = await import(`${address}ort.webgpu.bundle.min.mjs`);
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmPaths = address;
    globalThis.versus = { ours, checker, ort };
    const adapter = await navigator.gpu.requestAdapter();
    const { vendor, architecture, description } = adapter.info;
    return `onnxruntime-web ${ort.env.versions.web}; ${vendor} ${architecture} ${description}; ${navigator.userAgent}`;
}

async function prepare(name, bytes, inputs) {
    const { ours, checker, ort } = globalThis.versus;
    const speed = new ours.Speed(name, checker);
    const session = await ort.InferenceSession.create(Uint8Array.from(bytes), {
        executionProviders: ["webgpu"], preferredOutputLocation: "gpu-buffer",
    });
    const device = await ort.env.webgpu.device;
    const feeds = {};
    for (const [input, dims] of Object.entries(inputs)) {
        const size = dims.reduce((a, b) => a * b);
        const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
        const buffer = device.createBuffer({ size: 4 * size, usage: STORAGE | COPY_SRC | COPY_DST });
        device.queue.writeBuffer(buffer, 0, Float32Array.from({ length: size }, () => 2 * Math.random() - 1));
        feeds[input] = ort.Tensor.fromGpuBuffer(buffer, { dataType: "float32", dims });
    }
    const theirs = async runs => {
        for (let i = 0; i < runs; i++) {
            for (const output of Object.values(await session.run(feeds))) output.dispose();
        }
        await device.queue.onSubmittedWorkDone();
    };
    Object.assign(globalThis.versus, { run: { ours: runs => speed.run(runs), theirs } });
    // Compiles what there is to compile.
    for (const run of [theirs, runs => speed.run(runs)]) await run(2);
}

async function sample(who, milliseconds) {
    const run = globalThis.versus.run[who];
    const time = async runs => {
        const start = performance.now();
        await run(runs);
        return (performance.now() - start) / runs;
    };
    const once = await time(1);
    return time(Math.max(1, Math.min(200, Math.round(milliseconds / once))));
}
