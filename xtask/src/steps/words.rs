//! Phrases that make a reader decode the text. The trade has shorter words for what they say.

use std::path::Path;
use std::process::Command;

/// A phrase, and what to write instead.
const PHRASES: [(&str, &str); 8] = [
    ("so many", "a name or a number: `count` rows, this many"),
    ("as they lie", "contiguous, in memory order, unchanged"),
    ("what lies", "name it: the elements, the cache line"),
    ("in earnest", "real, in production"),
    ("brought to", "converted to, copied to, reduced to"),
    (
        "is no such",
        "does not exist, is out of range, is not a ...",
    ),
    ("one behind the other", "contiguous, in order"),
    ("of its own", "separate, another, or nothing"),
];

/// Fails if a tracked source or text file contains one of the phrases, also across a line break of a comment.
pub fn check(root: &Path) -> Result<String, String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--", "*.rs", "*.wgsl", "*.md"])
        .current_dir(root)
        .output()
        .map_err(|err| format!("git ls-files: {err}"))?;
    if !listed.status.success() {
        return Err(format!(
            "git ls-files: {}",
            String::from_utf8_lossy(&listed.stderr).trim_end()
        ));
    }
    let (mut files, mut places) = (0, Vec::new());
    let names = String::from_utf8_lossy(&listed.stdout);
    for name in names.split_terminator('\0') {
        // A file that is tracked but deleted in the working tree has no text.
        let Ok(bytes) = std::fs::read(root.join(name)) else {
            continue;
        };
        files += 1;
        for (line, phrase) in found(&String::from_utf8_lossy(&bytes)) {
            let (phrase, instead) = PHRASES[phrase];
            places.push(format!("{name}:{line}: \"{phrase}\": write {instead}"));
        }
    }
    if files == 0 {
        return Err("git lists no source files to check".to_string());
    }
    if !places.is_empty() {
        return Err(places.join("\n"));
    }
    Ok(format!(
        "{files} files without the {} phrases",
        PHRASES.len()
    ))
}

/// Line numbers, from 1, and indexes in [`PHRASES`] of the phrases in `text`. A phrase that a quotation mark or a backtick
/// precedes is mentioned, not used.
fn found(text: &str) -> Vec<(usize, usize)> {
    // The text as one line, without comment markers, and where each of its lines begins.
    let mut joined = String::with_capacity(text.len());
    let mut starts = Vec::new();
    for line in text.lines() {
        starts.push(joined.len());
        let line = line.trim_start();
        let line = line.trim_start_matches(['/', '!', '*', '>']).trim();
        joined.extend(line.chars().map(|c| c.to_ascii_lowercase()));
        joined.push(' ');
    }
    let mut places = Vec::new();
    for (index, (phrase, _)) in PHRASES.iter().enumerate() {
        for (at, _) in joined.match_indices(phrase) {
            let before = joined[..at].chars().next_back();
            let after = joined[at + phrase.len()..].chars().next();
            let whole = ![before, after]
                .into_iter()
                .flatten()
                .any(char::is_alphanumeric);
            if whole && !matches!(before, Some('"' | '`' | '“')) {
                places.push((starts.partition_point(|&start| start <= at), index));
            }
        }
    }
    places.sort_unstable();
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_across_lines_and_in_any_case() {
        for (index, (phrase, _)) in PHRASES.iter().enumerate() {
            let (first, rest) = phrase.split_once(' ').expect("several words");
            for text in [
                format!("a {phrase} b"),
                format!("A {}.", phrase.to_uppercase()),
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
        ] {
            assert_eq!(found(text), [], "{text}");
        }
    }

    #[test]
    fn a_tree_that_git_does_not_know_is_an_error() {
        assert!(check(Path::new("/")).is_err());
    }
}
