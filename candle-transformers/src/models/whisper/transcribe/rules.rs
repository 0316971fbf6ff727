//! The rules for the next token.

use super::vocabulary::Special;

/// The latest time of a window's first word, in steps of 0.02 s.
const LATEST_START: u32 = 50;

/// The constraints on the decoder's tokens in one window.
pub(super) struct Rules<'a> {
    pub(super) special: &'a Special,
    /// Tokens that are never chosen.
    pub(super) never: &'a [u32],
    /// Whether segments have time tokens.
    pub(super) times: bool,
}

impl Rules<'_> {
    /// Takes the tokens that must not follow `text` out of the `logits`, one for each token.
    ///
    /// The rules are those of Whisper's first implementation, section 4.5 of the paper: a text does not begin with a space or its end; times
    /// come in pairs, after which text begins, and never go back; the first is at most one second; and where all times together are more
    /// probable than any text, a time comes.
    pub(super) fn apply(&self, logits: &mut [f32], text: &[u32]) {
        let special = self.special;
        let mut forbid = |token: u32| {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        };
        self.never.iter().copied().for_each(&mut forbid);
        special.never().for_each(&mut forbid);
        forbid(special.no_timestamps);
        if text.is_empty() {
            special.space.into_iter().for_each(&mut forbid);
            forbid(special.end);
        }
        let first_time = (special.first_time as usize).min(logits.len());
        if !self.times {
            logits[first_time..].fill(f32::NEG_INFINITY);
            return;
        }
        let is_time = |token: Option<&u32>| token.is_some_and(|t| *t >= special.first_time);
        let (last, before) = match text {
            [.., before, last] => (Some(last), Some(before)),
            [last] => (Some(last), None),
            [] => (None, None),
        };
        let opens = is_time(last) && before.is_some() && !is_time(before);
        if is_time(last) {
            if opens {
                // The end of a segment: the start of the next one follows, or the end of the text.
                logits[..(special.end as usize).min(first_time)].fill(f32::NEG_INFINITY)
            } else {
                logits[first_time..].fill(f32::NEG_INFINITY)
            }
        }
        if let Some(time) = text.iter().rev().find(|t| **t >= special.first_time) {
            let least = *time as usize + usize::from(!opens);
            let least = least.clamp(first_time, logits.len());
            logits[first_time..least].fill(f32::NEG_INFINITY);
        }
        if text.is_empty() {
            logits[..first_time].fill(f32::NEG_INFINITY);
            let latest = (first_time + LATEST_START as usize + 1).min(logits.len());
            logits[latest..].fill(f32::NEG_INFINITY);
        }
        let (words, times) = logits.split_at_mut(first_time);
        let most = words.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if log_sum_exp(times) > most {
            words.fill(f32::NEG_INFINITY);
        }
    }
}

/// log of the sum of exponentials; -infinity of nothing.
pub(super) fn log_sum_exp(logits: &[f32]) -> f32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if most == f32::NEG_INFINITY {
        return most;
    }
    let sum: f64 = logits.iter().map(|l| f64::from(l - most).exp()).sum();
    most + sum.ln() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten words, then end 10, start 11, transcribe 12, translate 13, no_timestamps 14, times from 15.
    fn special() -> Special {
        struct Ten;
        impl super::super::Vocabulary for Ten {
            fn id(&self, token: &str) -> Option<u32> {
                let known = [
                    "<|endoftext|>",
                    "<|startoftranscript|>",
                    "<|transcribe|>",
                    "<|translate|>",
                    "<|notimestamps|>",
                ];
                let at = known.iter().position(|known| *known == token);
                at.map(|at| 10 + at as u32)
                    .or_else(|| (token == "Ġ").then_some(3))
            }
            fn text(&self, _: &[u32]) -> candle_core::Result<String> {
                Ok(String::new())
            }
        }
        match Special::of(&Ten, 100) {
            Ok(special) => special,
            Err(err) => panic!("{err}"),
        }
    }

    /// The tokens that may follow, where all are as probable.
    fn allowed(times: bool, text: &[u32], logits: &[f32]) -> Vec<usize> {
        let special = special();
        let rules = Rules {
            special: &special,
            never: &[7],
            times,
        };
        let mut logits = logits.to_vec();
        rules.apply(&mut logits, text);
        (0..logits.len())
            .filter(|i| logits[*i].is_finite())
            .collect()
    }

    /// Times of low probability, so that they are not forced.
    fn shy_times() -> Vec<f32> {
        (0..100).map(|i| if i < 15 { 0. } else { -20. }).collect()
    }

    #[test]
    fn without_times() {
        let words = [0, 1, 2, 4, 5, 6, 8, 9];
        assert_eq!(allowed(false, &[], &[0.; 100]), words);
        let mut later = vec![0, 1, 2, 3, 4, 5, 6, 8, 9, 10];
        assert_eq!(allowed(false, &[1], &[0.; 100]), later);
        later.retain(|t| *t != 7);
        assert_eq!(allowed(false, &[1, 2], &[0.; 100]), later);
    }

    #[test]
    fn times_come_in_pairs_and_do_not_go_back() {
        // The first token is a time of at most one second.
        assert_eq!(
            allowed(true, &[], &shy_times()),
            (15..=65).collect::<Vec<_>>()
        );
        // Text follows the first time, and after text anything but an earlier time.
        let words = [0, 1, 2, 3, 4, 5, 6, 8, 9, 10];
        assert_eq!(allowed(true, &[20], &shy_times()), words);
        let after_text: Vec<_> = words.into_iter().chain(21..100).collect();
        assert_eq!(allowed(true, &[20, 1], &shy_times()), after_text);
        // A time after text: its pair, which may be the same, or the end.
        let pair: Vec<_> = [10].into_iter().chain(30..100).collect();
        assert_eq!(allowed(true, &[20, 1, 30], &shy_times()), pair);
        assert_eq!(allowed(true, &[20, 1, 30, 30], &shy_times()), words);
    }

    #[test]
    fn probable_times_are_taken() {
        // Eighty times of probability a tenth of the most probable word's are more than it.
        let logits: Vec<f32> = (0..100).map(|i| if i < 15 { 0. } else { -2.3 }).collect();
        assert_eq!(
            allowed(true, &[20, 1], &logits),
            (21..100).collect::<Vec<_>>()
        );
    }

    #[test]
    fn sums_of_exponentials() {
        assert_eq!(log_sum_exp(&[]), f32::NEG_INFINITY);
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY; 3]), f32::NEG_INFINITY);
        assert!((log_sum_exp(&[1000., 1000.]) - (1000. + 2f32.ln())).abs() < 1e-3);
    }
}
