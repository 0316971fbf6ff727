//! Discouraged phrases: the established terms are shorter and need no decoding.
//!
//! Markdown files contain none, except the old entries of CHANGELOG.md. The source files still have some; [`PHRASES`] holds their exact
//! number, so that no change can add one unnoticed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// A phrase, its replacement, and the number of its uses in source files and CHANGELOG.md.
type Phrase = (&'static str, &'static str, usize);

/// Lower a number when uses disappear; do not raise one.
const PHRASES: &[Phrase] = &[
    ("so many", "a name or a number: `count` rows, this many", 0),
    ("as they lie", "contiguous, in memory order, unchanged", 0),
    ("as it lies", "contiguous, unpacked, unchanged", 0),
    ("where it lies", "in place", 0),
    ("how it lies", "its layout, its strides", 0),
    ("what lies", "name it: the elements, the cache line", 0),
    ("in earnest", "real, in production", 0),
    ("brought to", "converted to, copied to, reduced to", 0),
    (
        "is no such",
        "does not exist, is out of range, is not a ...",
        0,
    ),
    ("is no", "is not a ...", 4),
    ("are no", "are not ...", 2),
    ("one behind the other", "contiguous, in order", 0),
    ("one after another", "one at a time, in sequence", 3),
    ("one after the other", "one at a time, in sequence", 1),
    ("of its own", "separate, another, or nothing", 0),
    ("of their own", "separate, or nothing", 0),
    ("its own way", "independently", 0),
    ("in place of", "instead of, replaces", 5),
    ("by way of", "through, via", 1),
    ("on its way", "in flight, in transit, being copied", 1),
    ("on their way", "in flight, in transit, being copied", 3),
    ("as far as", "up to, if present, where", 0),
    ("as many as", "the number of, the same number as", 1),
    ("at the most", "at most", 1),
    ("at the least", "at least", 0),
    ("from which on", "the minimum", 0),
    ("thousand million", "billion", 0),
    ("turn by turn", "one iteration at a time", 0),
    ("looked at", "inspected, read, indexed, considered", 1),
    ("stands before", "precedes, is fused with", 0),
    ("stand before", "precede", 0),
    ("stands in front", "precedes", 0),
    ("stand in front", "precede", 0),
    ("stands behind", "follows, implements", 0),
    ("stand behind", "follow", 1),
    ("stands beside", "is next to, accompanies", 0),
    ("stand beside", "are next to", 0),
    ("what is said", "the message, the text, the log line", 0),
    ("what is told", "the message, the log line", 1),
    (
        "is told",
        "the active voice: log, report, return, notify",
        5,
    ),
    (
        "are told",
        "the active voice: log, report, return, notify",
        6,
    ),
    (
        "was told",
        "the active voice: log, report, return, notify",
        0,
    ),
    ("is asked", "the active voice: request, query, poll", 4),
    ("are asked", "the active voice: request, query, poll", 4),
    (
        "was asked",
        "requested, or the active voice: request, query, poll",
        1,
    ),
    ("is let in", "is admitted", 0),
    ("are let in", "are admitted", 0),
    ("what becomes of", "the outcome of", 5),
    ("leaves behind", "keeps, writes, produces", 0),
    ("left behind", "remaining, kept", 1),
    ("anew", "again, from scratch", 5),
    ("amiss", "reject, complain about", 0),
    (
        SUMMARY,
        "the name of the thing: `Minimum number of rows`, since docs.rs shows this line alone",
        48,
    ),
];

/// The summary of a doc comment that is a relative clause.
const SUMMARY: &str = "/// what";

/// Correct uses of the words of a phrase.
const CORRECT: &[&str] = &[
    "there is no",
    "there are no",
    "is no longer",
    "are no longer",
    "is no more than",
    "are no more than",
    "at the most recent",
];

/// Locations listed for a phrase that is over its count.
const SHOWN: usize = 20;

/// A use of a phrase: its file, its line from 1, and the phrase's index in [`PHRASES`].
struct Use {
    file: String,
    line: usize,
    phrase: usize,
}

/// Fails if a Markdown file contains a phrase, or if the number of uses elsewhere differs from [`PHRASES`].
pub fn check(root: &Path) -> Result<String, String> {
    let names = git(
        root,
        &["ls-files", "-z", "--", "*.rs", "*.wgsl", "*.cu", "*.md"],
    )?;
    let (mut files, mut uses) = (0, Vec::new());
    for name in names.split_terminator('\0') {
        // A tracked file that is deleted in the working tree has no text.
        let Ok(bytes) = std::fs::read(root.join(name)) else {
            continue;
        };
        files += 1;
        for (line, phrase) in found(&String::from_utf8_lossy(&bytes)) {
            let file = name.to_string();
            uses.push(Use { file, line, phrase });
        }
    }
    if files == 0 {
        return Err("git lists no source files to check".to_string());
    }
    // The last commit and the working tree; unknown in a shallow clone.
    let changed = git(root, &["diff", "--name-only", "HEAD~1"]).unwrap_or_default();
    let complaints = complaints(PHRASES, &uses, &changed.lines().collect());
    if !complaints.is_empty() {
        return Err(complaints.join("\n"));
    }
    let left: usize = PHRASES.iter().map(|(_, _, allowed)| allowed).sum();
    Ok(format!(
        "{files} files, {left} uses left of {} discouraged phrases",
        PHRASES.len()
    ))
}

/// The output of git.
fn git(root: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(args).current_dir(root).output();
    let output = output.map_err(|err| format!("git {}: {err}", args[0]))?;
    if !output.status.success() {
        return Err(format!(
            "git {}: {}",
            args[0],
            String::from_utf8_lossy(&output.stderr).trim_end()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a file may not contain any phrase.
fn is_strict(file: &str) -> bool {
    file.ends_with(".md") && file != "CHANGELOG.md"
}

/// One message per use in a Markdown file, and one per phrase whose count differs from `phrases`. Locations are taken from `changed` files
/// if one of them has the phrase.
fn complaints(phrases: &[Phrase], uses: &[Use], changed: &BTreeSet<&str>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (index, (phrase, instead, allowed)) in phrases.iter().enumerate() {
        let uses = uses.iter().filter(|used| used.phrase == index);
        let (strict, counted): (Vec<_>, Vec<_>) = uses.partition(|used| is_strict(&used.file));
        for Use { file, line, .. } in strict {
            complaints.push(format!("{file}:{line}: \"{phrase}\": write {instead}"));
        }
        let count = counted.len();
        if count > *allowed {
            complaints.push(format!(
                "\"{phrase}\": {count} uses, {allowed} are allowed: write {instead}"
            ));
            let in_change = |used: &&&Use| changed.contains(used.file.as_str());
            let mut shown: Vec<_> = counted.iter().filter(in_change).collect();
            if shown.is_empty() {
                shown = counted.iter().collect();
            }
            for used in shown.into_iter().take(SHOWN) {
                complaints.push(format!("  {}:{}", used.file, used.line));
            }
        } else if count < *allowed {
            complaints.push(format!(
                "\"{phrase}\": {count} uses, fewer than before: lower {allowed} to {count} in PHRASES of xtask/src/steps/words.rs"
            ));
        }
    }
    complaints
}

/// Line numbers, from 1, and indexes in [`PHRASES`] of the phrases in `text`, also across a line break of a comment and in identifiers. A
/// phrase after a quotation mark or a backtick is mentioned, not used.
fn found(text: &str) -> Vec<(usize, usize)> {
    let mut uses = Vec::new();
    // The text as one line, without comment markers, and the start of each of its lines.
    let mut joined = String::with_capacity(text.len());
    let mut starts = Vec::new();
    let mut in_doc = false;
    let summary = PHRASES.iter().position(|(phrase, ..)| *phrase == SUMMARY);
    for (number, line) in text.lines().enumerate() {
        starts.push(joined.len());
        let line = line.trim_start();
        if let (false, true, Some(summary)) = (in_doc, line.starts_with("/// What "), summary) {
            uses.push((number + 1, summary));
        }
        in_doc = line.starts_with("///");
        let line = line.trim_start_matches(['/', '!', '*', '>']).trim();
        joined.extend(line.chars().map(|c| match c {
            '_' => ' ',
            c => c.to_ascii_lowercase(),
        }));
        joined.push(' ');
    }
    for (index, (phrase, ..)) in PHRASES.iter().enumerate() {
        for (at, _) in joined.match_indices(phrase) {
            let before = joined[..at].chars().next_back();
            let after = joined[at + phrase.len()..].chars().next();
            let whole = ![before, after]
                .into_iter()
                .flatten()
                .any(char::is_alphanumeric);
            let mentioned = matches!(before, Some('"' | '`' | '“'));
            if whole && !mentioned && !is_part(&joined, at, phrase) {
                uses.push((starts.partition_point(|&start| start <= at), index));
            }
        }
    }
    uses.sort_unstable();
    uses
}

/// Whether the phrase at `at` is a part of a correct use, or of a longer phrase, such as `is no` of `is no such`: only that one counts.
fn is_part(text: &str, at: usize, phrase: &str) -> bool {
    let others = CORRECT.iter().copied();
    let others = others.chain(PHRASES.iter().map(|(other, ..)| *other));
    let mut longer = others.filter(|other| other.len() > phrase.len());
    longer.any(|other| {
        other.match_indices(phrase).any(|(offset, _)| {
            let start = at.checked_sub(offset);
            let text = start.and_then(|start| text.get(start..));
            text.is_some_and(|text| text.starts_with(other))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(file: &str, line: usize, phrase: usize) -> Use {
        let file = file.to_string();
        Use { file, line, phrase }
    }

    #[test]
    fn phrases_are_found_across_lines_and_in_any_case() {
        for (index, (phrase, ..)) in PHRASES.iter().enumerate() {
            let Some((first, rest)) = phrase.split_once(' ').filter(|_| *phrase != SUMMARY) else {
                continue;
            };
            for text in [
                format!("a {phrase} b"),
                format!("A {}.", phrase.to_uppercase()),
                format!("fn a_{}_b()", phrase.replace(' ', "_")),
                format!("/// a {first}\n    /// {rest} b\n"),
                format!("> a {first}\n> {rest} b\n"),
            ] {
                assert_eq!(found(&text), [(1, index)], "{text}");
                assert_eq!(found(&format!("one\n\n{text}")), [(3, index)], "{text}");
            }
        }
    }

    #[test]
    fn parts_of_words_and_mentions_are_not() {
        for text in [
            "also many rows",
            "so manyfold",
            "write `so many`",
            "not \"what lies\"",
            "there is no limit, and it is no longer read",
        ] {
            assert_eq!(found(text), [], "{text}");
        }
    }

    #[test]
    fn a_summary_that_is_a_relative_clause_is_found() {
        let summary = PHRASES.len() - 1;
        let text = "struct A;\n    /// What a row costs.\n    /// What follows is not the summary.\n    fn a();\n";
        assert_eq!(found(text), [(2, summary)]);
        assert_eq!(found("// What a row costs.\n/// The cost of a row."), []);
    }

    #[test]
    fn a_count_has_to_match_the_table() {
        const TABLE: &[Phrase] = &[("so many", "a number", 2), ("anew", "again", 0)];
        let changed = BTreeSet::from(["b.rs"]);
        let equal = [used("a.rs", 1, 0), used("CHANGELOG.md", 9, 0)];
        assert!(complaints(TABLE, &equal, &changed).is_empty());

        let above = [used("a.rs", 1, 0), used("b.rs", 2, 0), used("b.rs", 7, 0)];
        assert_eq!(
            complaints(TABLE, &above, &changed),
            [
                "\"so many\": 3 uses, 2 are allowed: write a number",
                "  b.rs:2",
                "  b.rs:7"
            ]
        );

        let below = complaints(TABLE, &above[..1], &changed);
        assert_eq!(below.len(), 1, "{below:?}");
        assert!(below[0].contains("lower 2 to 1"), "{below:?}");
    }

    #[test]
    fn markdown_may_not_use_a_phrase() {
        const TABLE: &[Phrase] = &[("so many", "a number", 1)];
        let uses = [used("a.rs", 1, 0), used("docs/a.md", 3, 0)];
        assert_eq!(
            complaints(TABLE, &uses, &BTreeSet::new()),
            ["docs/a.md:3: \"so many\": write a number"]
        );
    }

    #[test]
    fn a_tree_that_git_does_not_know_is_an_error() {
        assert!(check(Path::new("/")).is_err());
    }
}
