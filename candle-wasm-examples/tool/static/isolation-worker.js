// Answers of a static host, with what it cannot do itself: the headers of cross-origin isolation, and parts of files.

oninstall = () => skipWaiting();
onactivate = event => event.waitUntil(clients.claim());
onfetch = event => {
    const { request } = event;
    // Models from other sites come as they are: they allow it, or cannot be read at all.
    if (request.method === "GET" && new URL(request.url).origin === location.origin) event.respondWith(answer(request));
};

async function answer(request) {
    const response = await fetch(request);
    if (response.type === "opaqueredirect" || response.status === 0) return response;
    const headers = new Headers(response.headers);
    headers.set("Cross-Origin-Opener-Policy", "same-origin");
    headers.set("Cross-Origin-Embedder-Policy", "require-corp");
    headers.set("Cross-Origin-Resource-Policy", "same-origin");
    const { status, statusText } = response;
    const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.get("Range") ?? "");
    const isPage = headers.get("Content-Type")?.startsWith("text/html");
    if (!range || status !== 200 || isPage) return new Response(response.body, { status, statusText, headers });
    const bytes = await response.arrayBuffer();
    const [start, end] = [Number(range[1]), Math.min(Number(range[2]) + 1, bytes.byteLength)];
    headers.set("Content-Range", `bytes ${start}-${end - 1}/${bytes.byteLength}`);
    headers.delete("Content-Length");
    return new Response(bytes.slice(start, end), { status: 206, statusText: "Partial Content", headers });
}
