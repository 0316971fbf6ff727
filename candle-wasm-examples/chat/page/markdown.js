// The part of Markdown that models write, as nodes of the page: what a model writes never becomes HTML.

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const ROW = /^\s*\|(.+)\|\s*$/;
const ROW_RULE = /^\s*\|(\s*:?-+:?\s*\|)+\s*$/;

/** Deeper than anybody writes. */
const DEPTH = 12;

const element = (name, ...children) => {
    const node = document.createElement(name);
    node.append(...children);
    return node;
};

/** The nodes of a text. A text that is still being written may end anywhere. */
export function markdown(text) {
    const fragment = document.createDocumentFragment();
    fragment.append(...blocks(text.replaceAll("\r\n", "\n").split("\n"), 0));
    return fragment;
}

function blocks(lines, depth) {
    const nodes = [];
    for (let at = 0; at < lines.length;) {
        const [node, next] = block(lines, at, depth);
        if (node) nodes.push(node);
        at = next;
    }
    return nodes;
}

/** The block that begins at a line, and the line after it. */
function block(lines, at, depth) {
    const line = lines[at];
    if (line.trim() === "") return [null, at + 1];
    const fence = FENCE.exec(line);
    if (fence) return code(lines, at, fence);
    const heading = HEADING.exec(line);
    // The page has headings of its own above these.
    if (heading) return [element(`h${Math.min(6, heading[1].length + 2)}`, ...inline(heading[2])), at + 1];
    if (RULE.test(line)) return [element("hr"), at + 1];
    if (depth < DEPTH && QUOTE.test(line)) {
        const end = until(lines, at, line => !QUOTE.test(line));
        return [element("blockquote", ...blocks(lines.slice(at, end).map(line => line.replace(QUOTE, "")), depth + 1)), end];
    }
    if (depth < DEPTH && ITEM.test(line)) return list(lines, at, depth);
    if (ROW.test(line) && ROW_RULE.test(lines[at + 1] ?? "")) return table(lines, at);
    const end = until(lines, at + 1, line => line.trim() === "" || starts(line));
    return [element("p", ...inline(lines.slice(at, end).map(line => line.trim()).join("\n"))), end];
}

/** Whether a line ends the paragraph before it. */
const starts = line => [FENCE, HEADING, RULE, QUOTE, ITEM].some(kind => kind.test(line));

function until(lines, at, ends) {
    while (at < lines.length && !ends(lines[at])) at++;
    return at;
}

function code(lines, at, [, mark, language]) {
    const closes = line => line.trim().startsWith(mark) && line.trim().replaceAll(mark[0], "") === "";
    const end = until(lines, at + 1, closes);
    const node = element("pre", element("code", lines.slice(at + 1, end).join("\n")));
    // A wide one can be scrolled with the keyboard too.
    node.tabIndex = 0;
    if (language) node.dataset.language = language;
    return [node, end + 1];
}

/** A list with what is indented below its items. */
function list(lines, at, depth) {
    const [, indent, mark] = ITEM.exec(lines[at]);
    const numbered = /\d/.test(mark);
    const node = element(numbered ? "ol" : "ul");
    if (numbered) node.start = Number.parseInt(mark);
    while (at < lines.length) {
        const item = ITEM.exec(lines[at]);
        if (!item || item[1].length > indent.length + 1 || /\d/.test(item[2]) !== numbered) break;
        if (item[1].length < indent.length) break;
        const below = line => line.trim() === "" || line.search(/\S/) > indent.length;
        let end = until(lines, at + 1, line => !below(line));
        while (end > at + 1 && lines[end - 1].trim() === "") end--;
        const rest = lines.slice(at + 1, end);
        const shift = Math.min(...rest.filter(line => line.trim()).map(line => line.search(/\S/)));
        const inner = blocks([item[3], ...rest.map(line => line.slice(Number.isFinite(shift) ? shift : 0))], depth + 1);
        // One paragraph needs no space around it.
        const first = inner[0];
        if (first?.nodeName === "P") inner.splice(0, 1, ...first.childNodes);
        node.append(element("li", ...inner));
        at = until(lines, end, line => line.trim() !== "");
    }
    return [node, at];
}

function table(lines, at) {
    const cells = line => ROW.exec(line)[1].split("|").map(cell => inline(cell.trim()));
    const end = until(lines, at + 2, line => !ROW.test(line));
    const row = (kind, line) => element("tr", ...cells(line).map(cell => element(kind, ...cell)));
    const head = element("thead", row("th", lines[at]));
    const body = element("tbody", ...lines.slice(at + 2, end).map(line => row("td", line)));
    const box = element("div", element("table", head, body));
    box.className = "wide";
    return [box, end];
}

/** What can be within a line: each kind with its pattern, which is tried where it may begin, and its nodes. */
const SPANS = [
    [/(`+)(.+?)(?<!`)\1(?!`)/ys, (_, __, text) => [element("code", text.replace(/^ (.*\S.*) $/s, "$1"))]],
    [/(\*\*|__)(?=\S)(.+?)(?<=\S)\1(?![*_])/ys, (depth, __, text) => [element("strong", ...inline(text, depth + 1))]],
    [/(?<!\*)\*(?![\s*])(.+?)(?<![\s*\\])\*(?!\*)/ys, (depth, text) => [element("em", ...inline(text, depth + 1))]],
    [/(?<!\w)_(?![\s_])(.+?)(?<![\s_])_(?!\w)/ys, (depth, text) => [element("em", ...inline(text, depth + 1))]],
    [/~~(?=\S)(.+?)(?<=\S)~~/ys, (depth, text) => [element("s", ...inline(text, depth + 1))]],
    // A model's link may lead anywhere: it is shown, and is none.
    [/!?\[([^\]\n]+)\]\(\s*<?([^\s)>]+)[^)\n]*\)/y, (depth, text, address) =>
        text === address ? [address] : [...inline(text, depth + 1), ` (${address})`]],
];

function inline(text, depth = 0) {
    const nodes = [];
    let plain = "";
    for (let at = 0; at < text.length;) {
        const here = text[at];
        if (here === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
            plain += text[at + 1];
            at += 2;
            continue;
        }
        const found = depth < DEPTH && "`*_~[!".includes(here) && span(text, at, depth);
        if (found) {
            nodes.push(plain, ...found.nodes);
            plain = "";
            at = found.end;
        } else if (here === "\n") {
            nodes.push(plain, element("br"));
            plain = "";
            at++;
        } else {
            plain += here;
            at++;
        }
    }
    return [...nodes, plain].filter(node => node !== "");
}

function span(text, at, depth) {
    for (const [pattern, nodes] of SPANS) {
        pattern.lastIndex = at;
        const found = pattern.exec(text);
        // The patterns are shared with the spans within this one.
        if (found) return { end: at + found[0].length, nodes: nodes(depth, ...found.slice(1)) };
    }
    return null;
}
