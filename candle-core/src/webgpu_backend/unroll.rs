//! Lines of WGSL repeated with a counted number in them: what arrays would be for where naga has none.

/// `text` with every `each i in N: line` as `N` lines with `#i` counted from 0; likewise `each i in N {` with what follows up to a
/// closing brace below it, and `each i in N, j in M` for all pairs. `counts` says how many `N` and `M` are.
///
/// `#i` is replaced wherever it is, so no index begins with another's name. A count may have a number in its name: `each i in N#j`.
///
/// Panics on other forms: the text is a part of this crate, and its tests unroll it.
pub(super) fn unroll(text: &str, counts: &[(&str, u32)]) -> String {
    let mut unrolled = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let trimmed = line.trim_start();
        let Some(head) = trimmed.strip_prefix("each ") else {
            unrolled.push_str(line);
            unrolled.push('\n');
            continue;
        };
        let indent = &line[..line.len() - trimmed.len()];
        let (head, body) = match head.strip_suffix(" {") {
            Some(head) => {
                let last = format!("{indent}}}");
                let body: Vec<_> = lines.by_ref().take_while(|line| *line != last).collect();
                (head, body.join("\n"))
            }
            None => {
                let (head, body) = head.split_once(": ").expect("each i in N: line");
                (head, format!("{indent}{body}"))
            }
        };
        let mut bodies = vec![body];
        for index in head.split(", ") {
            let (index, name) = index.split_once(" in ").expect("each i in N");
            let count = counts.iter().find(|(known, _)| *known == name);
            let (_, count) = count.unwrap_or_else(|| panic!("how many are {name}?"));
            let number = format!("#{index}");
            bodies = bodies
                .iter()
                .flat_map(|body| (0..*count).map(|i| body.replace(&number, &i.to_string())))
                .collect();
        }
        for body in bodies {
            unrolled.push_str(&unroll(&body, counts));
        }
    }
    unrolled
}

#[cfg(test)]
mod tests {
    use super::unroll;

    #[test]
    fn lines_and_blocks_are_repeated() {
        let counts = [("N", 2), ("M", 3), ("NONE", 0)];
        for (text, expected) in [
            ("a;", "a;\n"),
            ("  each i in N: x#i = #iu;", "  x0 = 0u;\n  x1 = 1u;\n"),
            ("each i in NONE: x#i;\nb;", "b;\n"),
            (
                "each i in N, j in M: #i#j;",
                "00;\n01;\n02;\n10;\n11;\n12;\n",
            ),
            (
                "  each i in N {\n    a#i;\n    if (c) {\n    }\n  }\n  b;",
                "    a0;\n    if (c) {\n    }\n    a1;\n    if (c) {\n    }\n  b;\n",
            ),
            (
                "each i in N {\n  each j in N: #i#j;\n}",
                "  00;\n  01;\n  10;\n  11;\n",
            ),
        ] {
            assert_eq!(unroll(text, &counts), expected, "{text}");
        }
    }
}
