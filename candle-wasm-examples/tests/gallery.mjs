// The list of all pages: each with a picture, by keyboard, on a phone.
import { equal, launch, name, open, test, wait } from "./harness.mjs";

export async function run(site, screenshots) {
    const browser = await launch(false);
    try {
        const page = await open(browser, site);
        await test("harness::waits_for_what_is_not_there_yet", () => waits(browser));
        await test("gallery::pictures", () => pictures(page));
        await test("gallery::keyboard", () => keyboard(page, site));
        await test("gallery::looks", () => looks(page, screenshots));
    } finally {
        await browser.close();
    }
}

/** A document that was just loaded again lacks what the tests of pages wait for. */
async function waits(browser) {
    const page = await browser.newPage();
    await page.evaluate(() => setTimeout(() => { document.body.innerHTML = `<p id="late">here</p>`; }, 300));
    await wait(page, () => document.querySelector("#late").textContent === "here");
    await page.close();
}

async function pictures(page) {
    const found = await page.$$eval("#gallery .card", cards => Promise.all(cards.map(async card => {
        const [picture, link] = [card.querySelector("img"), card.querySelector("a")];
        picture.loading = "eager";
        await picture.decode();
        const answer = await fetch(new URL("index.html", link.href));
        return [picture.naturalWidth, (await answer.text()).includes(`aria-current="page"`)];
    })));
    equal(found.length > 5, true, `${found.length} pages`);
    for (const card of found) equal(card, [480, true], "a picture's width, and a page that is marked in its own links");
}

async function keyboard(page, site) {
    const count = await page.$$eval("#gallery a", links => links.length);
    const reached = new Set();
    for (let i = 0; i < count; i++) {
        await page.keyboard.press("Tab");
        reached.add(await page.evaluate(() => document.activeElement.href));
    }
    equal(reached.size, count, "links by keyboard");
    await page.keyboard.press("Enter");
    await page.waitForSelector('nav a[aria-current="page"]');
    equal(page.url() !== site && reached.has(page.url()), true, `${page.url()} after Enter`);
    await page.goto(site);
}

/** Nothing is wider than a phone; the screenshots are for people. */
async function looks(page, screenshots) {
    for (const [width, theme] of [[1100, "light"], [390, "light"], [1100, "dark"], [390, "dark"]]) {
        await page.setViewport({ width, height: 900 });
        // The driver can ask Chromium alone for dark colours.
        if (name() === "chromium") await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        equal(wide <= width, true, `${wide} pixels of ${width}`);
        await page.screenshot({ path: `${screenshots}/gallery-${width}-${theme}.png`, fullPage: true });
    }
}
