//! Proposes tokens from the text itself: where an answer repeats a part of its prompt, such as code or a quotation, several proposed tokens
//! are right, and the model verifies them in the time of one.

/// Minimum length of the repeated suffix for its continuation to be proposed.
const LEAST: usize = 2;
/// Maximum length to compare: longer matches add no information.
const MOST: usize = 8;

/// The tokens after the latest earlier occurrence of the longest possible suffix of `tokens`: at most `most`, none if the suffix is new.
pub(super) fn proposal(tokens: &[u32], most: usize) -> &[u32] {
    let common = |end: usize| {
        let pairs = tokens[..end].iter().rev().zip(tokens.iter().rev());
        pairs.take(MOST).take_while(|(a, b)| a == b).count()
    };
    // The last of equal ones.
    let best = (1..tokens.len()).max_by_key(|end| common(*end));
    match best {
        Some(end) if common(end) >= LEAST => {
            let followed = &tokens[end..];
            &followed[..most.min(followed.len())]
        }
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::proposal;

    #[test]
    fn what_followed_the_longest_match_is_proposed() {
        for (tokens, most, expected) in [
            (&[][..], 4, &[][..]),
            (&[1], 4, &[]),
            (&[1, 1], 4, &[]),
            // One token in common is not enough.
            (&[1, 2, 3, 1], 4, &[]),
            (&[1, 2, 3, 4, 1, 2], 4, &[3, 4, 1, 2]),
            (&[1, 2, 3, 4, 1, 2], 2, &[3, 4]),
            (&[1, 2, 3, 4, 1, 2], 0, &[]),
            // The longer match, though another is later.
            (&[7, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2], 1, &[3]),
            // The later one among equals.
            (&[1, 2, 3, 1, 2, 4, 1, 2], 1, &[4]),
            // A text that repeats one token continues with it.
            (&[5, 5, 5, 5], 3, &[5]),
        ] {
            assert_eq!(proposal(tokens, most), expected, "{tokens:?}, {most}");
        }
    }

    #[test]
    fn long_repetitions_count_once() {
        let round: Vec<u32> = (0..20).collect();
        let tokens = [&round[..], &[99], &round, &[98], &round].concat();
        assert_eq!(proposal(&tokens, 2), [98, 0]);
    }
}
