// Tests of the pages: node run.mjs ADDRESS SCREENSHOTS, from the repository's root, with CHROME, CHROME_ARGS and FIREFOX as
// `cargo xtask test` sets them, NOSTR as dvm.mjs tells, SPEECH and CANDLE_DVM as transcribe.mjs does, PICTURES, DETECT and SEGMENT as vision.mjs does,
// BERT_SIMILARITY, SPLADE and SPLADE_MODEL as search.mjs does. BROWSERS and PAGES, lists with commas, leave out the others.
import { mkdir } from "node:fs/promises";
import { BROWSERS, finish, use } from "./harness.mjs";
import * as bundle from "./bundle.mjs";
import * as chat from "./chat.mjs";
import * as dvm from "./dvm.mjs";
import * as embeddings from "./embeddings.mjs";
import * as engine from "./engine.mjs";
import * as gallery from "./gallery.mjs";
import * as llm from "./llm.mjs";
import * as ops from "./ops.mjs";
import * as search from "./search.mjs";
import * as staticSite from "./static.mjs";
import * as threads from "./threads.mjs";
import * as transcribe from "./transcribe.mjs";
import * as vision from "./vision.mjs";

/** For all pages together: a page that hangs must not hold up what comes after. */
const LIMIT = 40 * 60_000;

const [site, screenshots] = process.argv.slice(2);
setTimeout(() => {
    console.log(`test within_${LIMIT / 60_000}_minutes ... FAILED`);
    process.exit(1);
}, LIMIT);
const wanted = (list, name) => !list || list.split(",").includes(name);
for (const browser of Object.keys(BROWSERS)) {
    if (!wanted(process.env.BROWSERS, browser)) continue;
    use(browser);
    const shots = `${screenshots}/${browser}`;
    await mkdir(shots, { recursive: true });
    // A hidden tab waits for timers most of its time, so the service runs beside the other pages.
    const runs = [[["dvm", dvm]], Object.entries({ gallery, bundle, engine, chat, llm, threads, embeddings, search, transcribe, vision, ops, static: staticSite })];
    await Promise.all(runs.map(async pages => {
        for (const [name, page] of pages) {
            if (wanted(process.env.PAGES, name)) await page.run(site, shots);
        }
    }));
}
finish();
