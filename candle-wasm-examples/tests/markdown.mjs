// What chat/page/markdown.js makes of texts, as HTML.
import { equal } from "./harness.mjs";

const CASES = [
    ["A *b* **c** ***d*** `e*` ~~f~~", "<p>A <em>b</em> <strong>c</strong> <strong><em>d</em></strong> <code>e*</code> <s>f</s></p>"],
    ["one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"],
    ["# A\n### B #\ntext", "<h3>A</h3><h5>B</h5><p>text</p>"],
    ["```rust\nfn a() {\n    <b>\n}\n```\nafter", '<pre tabindex="0" data-language="rust"><code>fn a() {\n    &lt;b&gt;\n}</code></pre><p>after</p>'],
    ["```\nnot closed yet\n**a**", '<pre tabindex="0"><code>not closed yet\n**a**</code></pre>'],
    ["- a\n- b\n  - c\n\n  d\n- e", "<ul><li>a</li><li>b<ul><li>c</li></ul><p>d</p></li><li>e</li></ul>"],
    ["3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'],
    ["> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"],
    ["---\na - b", "<hr><p>a - b</p>"],
    ["| a | b |\n|---|:-:|\n| 1 | *2* |", '<div class="wide"><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td>'
        + "<td><em>2</em></td></tr></tbody></table></div>"],
    // No link, no picture and no script comes of what a model writes.
    ["[here](javascript:alert(1)) and ![it](http://a.b/c.png)", "<p>here (javascript:alert(1)) and it (http://a.b/c.png)</p>"],
    ["<script>alert(1)</script> <img src=x onerror=alert(1)>", "<p>&lt;script&gt;alert(1)&lt;/script&gt; &lt;img src=x onerror=alert(1)&gt;</p>"],
    // What is no mark stays.
    ["2 * 3 * 4, a_b_c, **open, `open, \\*plain\\*, 5 > 3", "<p>2 * 3 * 4, a_b_c, **open, `open, *plain*, 5 &gt; 3</p>"],
];

export async function markdown(page) {
    const made = await page.evaluate(async texts => {
        const { markdown } = await import("/chat/markdown.js");
        const html = text => {
            const box = document.createElement("div");
            box.append(markdown(text));
            return box.innerHTML;
        };
        // Every beginning, as while it is written, and what would take long if it were looked at again and again.
        for (const text of texts) for (let end = 0; end <= text.length; end++) html(text.slice(0, end));
        const start = performance.now();
        for (const piece of ["*", "[", "`", "> ", "- ", "  - a\n", "**a ", "_"]) html(piece.repeat(4000));
        return { html: texts.map(html), seconds: (performance.now() - start) / 1000 };
    }, CASES.map(([text]) => text));
    CASES.forEach(([text, html], i) => equal(made.html[i], html, text));
    equal(made.seconds < 10, true, `${made.seconds} s for repeated marks`);
}
