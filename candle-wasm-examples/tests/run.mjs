// Tests of the pages: node run.mjs ADDRESS SCREENSHOTS, from the repository's root, with CHROME and CHROME_ARGS as `cargo xtask test`
// sets them.
import { mkdir } from "node:fs/promises";
import { finish } from "./harness.mjs";
import * as embeddings from "./embeddings.mjs";
import * as llm from "./llm.mjs";
import * as ops from "./ops.mjs";

/** For all pages together: a page that hangs must not hold up what comes after. */
const LIMIT = (process.env.WEBGPU_TEXTS === "all" ? 180 : 40) * 60_000;

const [site, screenshots] = process.argv.slice(2);
await mkdir(screenshots, { recursive: true });
setTimeout(() => {
    console.log(`test within_${LIMIT / 60_000}_minutes ... FAILED`);
    process.exit(1);
}, LIMIT);
const wanted = process.env.PAGES?.split(",");
for (const [name, page] of Object.entries({ llm, embeddings, ops })) {
    if (!wanted || wanted.includes(name)) await page.run(site, screenshots);
}
finish();
