//! The bound of every loop in a shader, checked by a test that reads the sources.
//!
//! Mesa's llvmpipe ends all loops of an invocation after 65,535 iterations in total, without an error: a sum over a size that the caller
//! chooses is then silently wrong. Browsers and drivers reset a GPU whose dispatch runs for seconds. So a loop has a constant bound, or its
//! op divides the work into dispatches of at most `ops::MOST_STEPS` steps.

use std::path::{Path, PathBuf};

/// Loops whose bound is not a constant of the kernel: the shader, the loop, and its bound.
const BOUNDED: &[(&str, &str, &str)] = &[
    ("conv_direct", "for (var i = local; i < together * taps; i += WG)", "the staged kernel takes STAGED_BYTES"),
    ("conv_direct", "for (var c = 0u; c < p.c_in; c++)", "MOST_TAPS products in a dispatch"),
    ("conv_direct", "for (var ky = 0u; ky < k_h(); ky++)", "MOST_TAPS products in a dispatch"),
    ("conv_direct", "for (var kx = 0u; kx < k_w(); kx++)", "MOST_TAPS products in a dispatch"),
    ("draw", "for (var first = invocation.local; first < p.words; first += WG * TOGETHER)", "MOST_LOGITS in a row"),
    ("fold", "for (var ky = 0u; ky < p.k_h; ky++)", "MOST_STEPS taps in a dispatch"),
    ("fold", "for (var kx = 0u; kx < p.k_w; kx++)", "MOST_STEPS taps in a dispatch"),
    ("pool", "for (var ky = 0u; ky < p.k_h; ky++)", "MOST_STEPS elements of a window; larger ones are reduced"),
    ("pool", "for (var kx = 0u; kx < p.k_w; kx++)", "MOST_STEPS elements of a window; larger ones are reduced"),
    ("matmul_blocks", "for (var first = 0u; first < count; first += STAGES * WG)", "a strip fits workgroup memory"),
    ("matmul_blocks", "for (var strip = 0u; strip < pieces; strip += STRIP)", "MOST_BLOCKS_K"),
    ("matmul_blocks", "for (var first = lane; first < end; first += DEPTH * SUBGROUP)", "a strip fits workgroup memory"),
    ("matmul_cooperative", "for (var k = k_first; k < k_last; k += DEPTH)", "MOST_TILE_K in a part"),
    ("matmul_rows", "for (var at = lane; at < pieces; at += SUBGROUP)", "MOST_BLOCKS_K"),
    ("matmul_tile", "for (var k = k_first; k < k_last; k += DEPTH)", "MOST_TILE_K in a part"),
    ("matmul_join", "for (var split = 0u; split < p.splits; split++)", "parts of MOST_TILE_K, or the number that keeps a GPU busy"),
    ("matmul_plain", "for (var k = 0u; k < p.k; k++)", "longest_k: MOST_STEPS in a product"),
    ("matmul_vector", "for (; at + (turns - 1u) * step < p.k; at += turns * step)", "MOST_VECTOR_K"),
    ("norm", "for (var turn = 0u; turn < turns; turn++)", "MOST_ROW elements in a row; longer ones are reduced"),
    ("reduce", "for (var j = begin + first; j < end; j += step)", "MOST_ALONE and MOST_TOGETHER elements in a part"),
    ("rope_norms", "for (var i = invocation.local; i < p.dim; i += WG)", "MOST_NORMED elements in a head"),
    ("rope_norms", "for (var first = invocation.local * UNIT; first < p.dim; first += WG * UNIT)", "MOST_NORMED elements in a head"),
    ("rows_as_f16", "for (var i = begin + local * 8u; i < end; i += WG * 8u)", "MOST_F16_K elements in a part"),
    ("rows_as_bytes", "for (var first = 0u; first < count; first += WG)", "MOST_BLOCKS_K"),
    ("scan", "for (var j = begin; j < end; j++)", "PART elements"),
    ("scatter", "for (var j = 0u; j < p.count; j++)", "MOST_STEPS updates in a dispatch"),
    ("sdpa_cooperative", "for (var turn = begin; turn < end; turn += KEYS)", "MOST_KEYS in a part"),
    ("sdpa_flash", "for (var turn = begin; turn < end; turn += KEYS)", "MOST_KEYS in a part, fewer where it may be a software adapter"),
    ("sdpa_decode", "for (var turn = first; turn < last; turn += TURN)", "MOST_KEYS in a part"),
    ("sdpa_decode", "for (var first_key = crew; first_key < min(TURN, last - turn); first_key += AHEAD * CREWS)", "TURN"),
    ("sdpa_grouped", "for (var turn = first; turn < last; turn += TURN)", "PART keys, or up to MOST_KEYS where there are MOST_SPLITS parts"),
    ("sdpa_grouped", "for (var i = local; i < min(FOLD, ROWS - fold * FOLD) * V_QUADS; i += WG)", "FOLD rows"),
    ("sdpa_join", "for (var split = 0u; split < p.splits; split++)", "parts of MOST_KEYS, or the number that keeps a GPU busy"),
    ("sdpa_join", "for (var split = 1u; split < p.splits; split++)", "parts of MOST_KEYS, or the number that keeps a GPU busy"),
    ("sdpa_join_row", "for (var split = local; split < p.splits; split += WG)", "MOST_SPLITS"),
    ("sdpa_join_row", "for (var split = crew; split < p.splits; split += AHEAD * CREWS)", "MOST_SPLITS"),
    ("sdpa_part", "for (var i = 0u; i < min(4u, V_DIM - quad * 4u); i++)", "4"),
    ("sdpa_teams", "while (chunk * p.splits < seen - begin)", "32 doublings"),
    ("sdpa_teams", "for (var turn = first; turn < last; turn += TURN)", "keys / BUSY_WORKGROUPS, or MOST_KEYS in a part"),
    ("sdpa_teams", "for (var i = local; i < min(FOLD, ROWS - fold * FOLD) * V_QUADS; i += WG)", "FOLD rows"),
    ("softmax", "for (var i = invocation.local; i < seen; i += WG)", "MOST_ROW elements in a row; longer ones are reduced"),
    ("softmax", "for (var word = invocation.local; word < p.len / DST_LANES; word += WG)", "MOST_ROW elements in a row; longer ones are reduced"),
];

/// The heads of the loops in WGSL source. In Rust, where braces in a format string are doubled, only loops of WGSL's form count.
fn loops(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    let code = lines.filter(|line| !line.starts_with("//"));
    let mut found = vec![];
    for line in code {
        for word in ["for (", "while (", "loop {"] {
            let Some(at) = line.find(word) else { continue };
            if line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let head = line[at..].split(" {").next().unwrap_or_default();
            found.push(head.trim_end_matches('{').trim().to_string());
        }
    }
    found
}

/// Whether an expression contains only numbers, `min`, `max` and constants, which are in capitals.
fn is_constant(expression: &str) -> bool {
    let mut words = expression
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty());
    words.all(|word| {
        let number = word
            .trim_end_matches('u')
            .chars()
            .all(|c| c.is_ascii_digit());
        let constant = word.chars().all(|c| !c.is_lowercase());
        number || constant || ["min", "max"].contains(&word)
    })
}

/// Whether a loop counts up to a constant, or down from one, or shifts its counter.
fn has_constant_bound(head: &str) -> bool {
    let inner = head
        .strip_prefix("for (var ")
        .and_then(|rest| rest.strip_suffix(')'));
    let Some([first, condition, step]) = inner.and_then(|inner| {
        let parts: Vec<&str> = inner.split("; ").collect();
        <[&str; 3]>::try_from(parts).ok()
    }) else {
        return false;
    };
    let after = |text: &'_ str, sign: &str| text.split_once(sign).map(|(_, rest)| rest.to_string());
    let (start, bound) = (after(first, " = "), after(condition, " < "));
    let down = condition.ends_with(" > 0u") && start.is_some_and(|start| is_constant(&start));
    let shifted = step.contains(">>=") || step.contains("<<=");
    down || shifted || bound.is_some_and(|bound| is_constant(&bound))
}

fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).expect("a folder of sources");
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

#[test]
fn every_loop_has_a_bound() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = sources.parent().expect("the workspace");
    let mut shaders = vec![];
    for package in [
        "candle-core",
        "candle-nn",
        "candle-transformers",
        "candle-dvm",
        "candle-transformers/engine",
    ] {
        files(&workspace.join(package).join("src"), "wgsl", &mut shaders);
    }
    assert!(shaders.len() > 50, "{} shaders", shaders.len());
    let mut used = vec![false; BOUNDED.len()];
    let mut unknown = vec![];
    for path in &shaders {
        let name = path
            .file_stem()
            .and_then(|name| name.to_str())
            .expect("a name");
        for head in loops(&std::fs::read_to_string(path).expect("a shader")) {
            let entry = BOUNDED
                .iter()
                .position(|(file, text, _)| *file == name && *text == head);
            match entry {
                Some(entry) => used[entry] = true,
                None if has_constant_bound(&head) => {}
                None => unknown.push(format!("{name}.wgsl: {head}")),
            }
        }
    }
    // WGSL in Rust strings: loops that begin with `for (var`.
    let mut code = vec![];
    for package in ["candle-core", "candle-nn", "candle-transformers"] {
        files(&workspace.join(package).join("src"), "rs", &mut code);
    }
    for path in code
        .iter()
        .filter(|path| !path.ends_with("loops.rs") && !path.ends_with("unroll.rs"))
    {
        let text = std::fs::read_to_string(path).expect("a source");
        for (at, _) in text.match_indices("for (var ") {
            let head = text[at..].split_once(" {").map_or("", |(head, _)| head);
            if !has_constant_bound(head) {
                unknown.push(format!("{}: {head}", path.display()));
            }
        }
    }
    assert!(
        unknown.is_empty(),
        "loops without a known bound: {unknown:#?}"
    );
    let unused = BOUNDED.iter().zip(used).filter(|(_, used)| !used);
    let unused: Vec<_> = unused.map(|((file, text, _), _)| (file, text)).collect();
    assert!(unused.is_empty(), "no shader has these loops: {unused:#?}");
}

#[test]
fn constant_bounds_differ_from_sizes() {
    for head in [
        "for (var i = 0u; i < 4u; i++)",
        "for (var i = local; i < ROWS * min(QUADS, 8u); i += WG)",
        "for (var half = WG / 2u; half > 0u; half /= 2u)",
        "for (var run = p.first; run <= p.last; run <<= 1u)",
    ] {
        assert!(has_constant_bound(head), "{head}");
    }
    for head in [
        "for (var i = 0u; i < p.count; i++)",
        "for (var i = p.count; i > 0u; i--)",
        "for (var i = 0u; i < n * WG; i++)",
        "while (i < 4u)",
        "loop",
    ] {
        assert!(!has_constant_bound(head), "{head}");
    }
    assert_eq!(
        loops("  for (var i = 0u; i < N; i++) { x(); }\n// for (a) {\nloop {\n"),
        ["for (var i = 0u; i < N; i++)", "loop"]
    );
}
