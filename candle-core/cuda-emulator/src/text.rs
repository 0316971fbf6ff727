//! Changes to a kernel's source for a host compiler, and the kernels in the source.

/// A kernel and the first argument of its `__launch_bounds__`.
#[derive(Debug, PartialEq)]
pub struct Entry {
    pub name: String,
    pub bound: Option<String>,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The position of `word` as a whole word, from `from` on.
fn find_word(text: &str, word: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    text.get(from..)?
        .match_indices(word)
        .map(|(at, _)| from + at)
        .find(|at| {
            let before = at.checked_sub(1).and_then(|before| bytes.get(before));
            let after = bytes.get(at + word.len());
            !before.is_some_and(|byte| is_word(*byte)) && !after.is_some_and(|byte| is_word(*byte))
        })
}

/// Skips blanks and the preprocessor's line markers.
fn skip_blank(text: &str, mut at: usize) -> usize {
    let bytes = text.as_bytes();
    while let Some(byte) = bytes.get(at) {
        if byte.is_ascii_whitespace() {
            at += 1;
        } else if *byte == b'#' {
            at += text[at..].find('\n').unwrap_or(text.len() - at);
        } else {
            break;
        }
    }
    at
}

/// The position after the parenthesis that matches the one at `at`.
fn past_parenthesis(text: &str, at: usize) -> Option<usize> {
    let mut depth = 0;
    for (i, byte) in text.bytes().enumerate().skip(at) {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(i + 1);
        }
    }
    None
}

fn first_argument(arguments: &str) -> String {
    let mut depth = 0;
    let end = arguments.find(|c: char| {
        match c {
            '(' | '<' => depth += 1,
            ')' | '>' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    arguments[..end.unwrap_or(arguments.len())]
        .trim()
        .to_string()
}

/// The kernels of a preprocessed source that are not templates.
pub fn entries(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut from = 0;
    while let Some(at) = find_word(text, "__global__", from) {
        from = at + 1;
        let start = text[..at]
            .rfind([';', '}', '{'])
            .map_or(0, |start| start + 1);
        let Some(entry) = entry(text, start, at) else {
            continue;
        };
        if find_word(&text[start..at], "template", 0).is_none()
            && entries.iter().all(|known| known.name != entry.name)
        {
            entries.push(entry);
        }
    }
    entries
}

/// Parses a kernel's head: the name is the word before the first parenthesis that is not part of an attribute.
fn entry(text: &str, start: usize, global: usize) -> Option<Entry> {
    let bounds = "__launch_bounds__";
    let argument = |at: usize| {
        let open = skip_blank(text, at + bounds.len());
        Some(first_argument(
            &text[open + 1..past_parenthesis(text, open)? - 1],
        ))
    };
    let mut bound = find_word(&text[..global], bounds, start).and_then(argument);
    let mut at = global;
    loop {
        at = skip_blank(text, at);
        let length = text[at..].bytes().take_while(|byte| is_word(*byte)).count();
        if length == 0 {
            return None;
        }
        let word = &text[at..at + length];
        let next = skip_blank(text, at + length);
        let opens = text.as_bytes().get(next) == Some(&b'(');
        match word {
            _ if !opens => at = next,
            "__launch_bounds__" => {
                bound = argument(at);
                at = past_parenthesis(text, next)?;
            }
            "__attribute__" | "alignas" | "__align__" => at = past_parenthesis(text, next)?,
            _ => {
                return Some(Entry {
                    name: word.to_string(),
                    bound,
                })
            }
        }
    }
}

/// Converts each `extern __shared__` array to a pointer.
pub fn dynamic_shared(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len() + 256);
    let mut from = 0;
    while let Some(at) = find_word(text, "extern", from) {
        let shared = skip_blank(text, at + "extern".len());
        if find_word(text, "__shared__", shared) != Some(shared) {
            out.push_str(&text[from..at + 1]);
            from = at + 1;
            continue;
        }
        let end = at
            + text[at..]
                .find(';')
                .ok_or("`extern __shared__` without its end")?;
        let mut declared = text[shared + "__shared__".len()..end].trim();
        for attribute in ["__align__", "alignas", "__attribute__"] {
            if let Some(found) = find_word(declared, attribute, 0) {
                let open = skip_blank(declared, found + attribute.len());
                let past =
                    past_parenthesis(declared, open).ok_or("an attribute without its end")?;
                // Before or after the type; the memory has a larger alignment than any request.
                declared = if found == 0 {
                    declared[past..].trim()
                } else {
                    declared[..found].trim()
                };
            }
        }
        let (array, _) = declared
            .rsplit_once('[')
            .filter(|(_, size)| size.trim_end_matches(']').trim().is_empty())
            .ok_or_else(|| {
                format!("`extern __shared__ {declared}` is not an array without a size")
            })?;
        let array = array.trim_end();
        let split = array.len()
            - array
                .bytes()
                .rev()
                .take_while(|byte| is_word(*byte))
                .count();
        let (kind, name) = array.split_at(split);
        let kind = kind.trim();
        out.push_str(&text[from..at]);
        if inside_function(&text[..at]) {
            out.push_str(&format!(
                "{kind}* const {name} = ({kind}*)emu_dynamic_shared"
            ));
        } else {
            let line = text[..end].matches('\n').count() + 1;
            out.push_str(&format!(
                "\n#undef {name}\n#define {name} (({kind}*)emu_dynamic_shared)\n# {line}\nextern int emu_line_{at}"
            ));
        }
        from = end;
    }
    out.push_str(&text[from..]);
    Ok(out)
}

/// Whether a brace is open that belongs to neither `extern "C"` nor a namespace.
fn inside_function(before: &str) -> bool {
    let mut open: Vec<bool> = Vec::new();
    let mut last = 0;
    for (at, brace) in before.match_indices(['{', '}', ';']) {
        match brace {
            "{" => {
                let head = before[last..at].trim();
                open.push(!(head.ends_with('"') || find_word(head, "namespace", 0).is_some()));
            }
            "}" => drop(open.pop()),
            _ => {}
        }
        last = at + 1;
    }
    open.contains(&true)
}
