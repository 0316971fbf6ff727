// Parts of files from servers.

const ATTEMPTS = 3;
/** How long nothing may come, of a server or of the cache, in milliseconds. */
const PATIENCE = 20_000;

/** Size and version of a file. Without a network, what was kept of an earlier visit. */
export async function describe(name, store) {
    let response;
    try {
        response = await request(store, name, 0, 1);
    } catch (error) {
        // Without a network, a file that was not there is not there.
        if (error.status === 404) await store.put("about", encode({ missing: true }));
        const kept = error.status === undefined && await store.get("about");
        const about = kept ? JSON.parse(new TextDecoder().decode(kept)) : {};
        if (about.missing) error.status = 404;
        if (about.size === undefined) throw error;
        return about;
    }
    const size = Number(response.headers.get("Content-Range")?.split("/")[1] ?? NaN);
    // Reading the byte lets the connection be used again.
    await response.arrayBuffer();
    if (!Number.isSafeInteger(size)) {
        throw new Error(
            `${name}: the server does not report the file's size (no readable Content-Range header): download the file and drop it `
            + `on the page`,
        );
    }
    const tag = response.headers.get("ETag") ?? response.headers.get("Last-Modified") ?? "";
    const about = { size, tag };
    await store.put("about", encode(about));
    return about;
}

const encode = value => new TextEncoder().encode(JSON.stringify(value));

export async function fetchPart(store, name, start, length) {
    for (let attempt = 1; ; attempt++) {
        try {
            const response = await request(store, name, start, length);
            return await readAll(response, name, length);
        } catch (error) {
            // What the server refuses it will refuse again.
            if (error.status !== undefined || attempt === ATTEMPTS) throw error;
            await new Promise(done => setTimeout(done, 300 * attempt));
        }
    }
}

/** The `length` bytes of a body, or an error when none has come for a while: a connection can stay open and silent. */
async function readAll(response, name, length) {
    const reader = response.body.getReader();
    const bytes = new Uint8Array(length);
    let at = 0;
    for (;;) {
        const { done, value } = await within(reader.read(), name).catch(error => {
            reader.cancel().catch(() => {});
            throw error;
        });
        if (done) break;
        if (at + value.length <= length) bytes.set(value, at);
        at += value.length;
    }
    if (at !== length) throw new Error(`${name}: requested ${length} bytes, but received ${at}`);
    return bytes;
}

/** What a promise gives, or an error when it takes too long. */
export function within(promise, what) {
    let timer;
    const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`${what}: no data for ${PATIENCE / 1000} s`)), PATIENCE);
    });
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** An answer to a range request; every other answer is an error that says what to do. */
async function request({ address, cache }, name, start, length) {
    let response;
    const stop = new AbortController();
    try {
        const answer = fetch(address, {
            headers: { Range: `bytes=${start}-${start + length - 1}` },
            // What is kept in one cache needs no room in the other.
            cache: cache ? "no-store" : "default",
            signal: stop.signal,
        });
        response = await within(answer, name);
    } catch (error) {
        stop.abort();
        throw new Error(
            `${name}: cannot load it from ${address} (${error.message}): check the URL and the network, and that the server allows `
            + `cross-origin requests (CORS)`,
        );
    }
    if (response.status === 206) return response;
    stop.abort();
    const failed = (problem, status = response.status) => Object.assign(new Error(`${name}: ${problem}`), { status });
    if (response.status === 200) {
        // Servers of apps have one for every address that they do not know.
        const isPage = response.headers.get("Content-Type")?.startsWith("text/html");
        if (isPage) throw failed(`the server returned an HTML page for ${address}, so the file does not exist: check the URL`, 404);
        throw failed("the server does not support HTTP range requests: download the file and drop it on the page");
    }
    if (response.status === 416) throw failed("the file is empty or was truncated");
    throw failed(`the server returned ${response.status} ${response.statusText} for ${address}: check the URL`);
}
