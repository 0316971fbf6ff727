// Tests of the pages: node run.mjs ADDRESS SCREENSHOTS, from the repository's root, with CHROME and CHROME_ARGS as `cargo xtask test`
// sets them.
import { mkdir } from "node:fs/promises";
import { finish } from "./harness.mjs";
import * as llm from "./llm.mjs";

const [site, screenshots] = process.argv.slice(2);
await mkdir(screenshots, { recursive: true });
await llm.run(site, screenshots);
finish();
