//! The fuzz targets over the valid inputs and over mutations of them. The fuzzer itself runs at night.

use candle_dvm::{nip90, relay};

#[path = "../../fuzz/src/targets.rs"]
mod targets;

/// Mutations of each input.
const MUTATIONS: usize = 100;

/// Every line is left out, doubled or cut short once; then random characters change.
fn replay(extension: &str, target: fn(&str)) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let entries = std::fs::read_dir(folder).expect("the folder of inputs");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    assert!(!paths.is_empty(), "no input *.{extension}");
    let mut state = 0x9e37_79b9_u32;
    let mut below = |end: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % end.max(1)
    };
    for path in paths {
        let text = std::fs::read_to_string(path).expect("an input");
        target(&text);
        let lines: Vec<&str> = text.split('\n').collect();
        for at in 0..lines.len() {
            let with =
                |middle: &[&str]| [&lines[..at], middle, &lines[at + 1..]].concat().join("\n");
            let half: String = lines[at]
                .chars()
                .take(lines[at].chars().count() / 2)
                .collect();
            target(&with(&[]));
            target(&with(&[lines[at], lines[at]]));
            target(&with(&[&half]));
        }
        let characters: Vec<char> = text.chars().collect();
        for _ in 0..MUTATIONS {
            let mut mutated = characters.clone();
            let at = below(mutated.len());
            mutated[at] = ['\0', '"', '|', '{', ']', '9', 'é', '\n'][below(8)];
            target(&mutated.iter().collect::<String>());
        }
    }
}

#[test]
fn any_event_is_read_or_refused() {
    replay("event", targets::event);
}

#[test]
fn a_relay_may_send_anything() {
    replay("relay", targets::relay);
}
