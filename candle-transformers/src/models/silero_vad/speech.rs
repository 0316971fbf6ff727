//! The stretches of speech in a whole recording.

use super::detector::{in_samples, Detector};
use super::{SAMPLE_RATE, WINDOW};
use std::ops::Range;

/// When a sequence of probabilities is speech.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Speech begins where the probability is at least this.
    pub threshold: f32,
    /// It ends where the probability stays below this.
    pub end_threshold: f32,
    /// Minimum duration of speech, in seconds; anything shorter is noise.
    pub min_speech: f64,
    /// A shorter pause, in seconds, ends nothing.
    pub min_silence: f64,
    /// Seconds kept before and after speech.
    pub padding: f64,
}

/// For a transcript: a pause between sentences ends nothing, and no sound of a word is lost.
impl Default for Options {
    fn default() -> Self {
        Self {
            threshold: 0.5,
            end_threshold: 0.35,
            min_speech: 0.25,
            min_silence: 2.,
            padding: 0.4,
        }
    }
}

impl Options {
    /// For [`Phrases`](super::Phrases): a shorter pause ends a phrase, so that its words come soon.
    pub fn phrases() -> Self {
        Self {
            min_silence: 0.7,
            padding: 0.3,
            ..Self::default()
        }
    }
}

/// The smaller part of a segment on the other side of a joint, in seconds, is not speech up to this length. It is twice the default
/// padding, and what Whisper's times are off by.
const STRAY: f64 = 1.;

/// The stretches of speech in a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Speech {
    /// The samples, in order; ranges do not touch.
    pub ranges: Vec<Range<usize>>,
}

impl Speech {
    /// From the probabilities of the windows of a recording of `samples`.
    pub fn of(probabilities: &[f32], samples: usize, options: &Options) -> Self {
        let mut detector = Detector::new(options);
        let windows = probabilities.iter().take(samples.div_ceil(WINDOW));
        let mut found: Vec<Range<usize>> = windows.flat_map(|it| detector.hear(*it)).collect();
        found.extend(detector.end(samples));
        let padding = in_samples(options.padding);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for range in found {
            let wide = range.start.saturating_sub(padding)..(range.end + padding).min(samples);
            match ranges.last_mut() {
                Some(last) if last.end >= wide.start => last.end = wide.end,
                _ => ranges.push(wide),
            }
        }
        Self { ranges }
    }

    /// Those samples alone, one range after the other.
    pub fn cut(&self, samples: &[f32]) -> Vec<f32> {
        let parts = self
            .ranges
            .iter()
            .filter_map(|range| samples.get(range.clone()));
        parts.flatten().copied().collect()
    }

    /// When in the recording a segment begins and ends, given in seconds of the result of [`cut`](Self::cut). Where two ranges meet there
    /// was silence: a segment that reaches a little beyond the joint does not begin or end there.
    pub fn span(&self, start: f64, end: f64) -> (f64, f64) {
        let (mut begins, mut ends) = (start, end);
        for joint in self.joints() {
            let (before, after) = (joint - start, end - joint);
            if before <= 0. || after <= 0. || before.min(after) > STRAY {
                continue;
            }
            if before < after {
                begins = joint;
            } else {
                ends = ends.min(joint);
            }
        }
        let (begins, ends) = (self.start(begins), self.end(ends));
        (begins, ends.max(begins))
    }

    /// Where ranges meet, in seconds of the result of [`cut`](Self::cut).
    fn joints(&self) -> impl Iterator<Item = f64> + '_ {
        let mut length = 0;
        let ends = self.ranges.iter().map(move |range| {
            length += range.len();
            length as f64 / SAMPLE_RATE as f64
        });
        ends.take(self.ranges.len().saturating_sub(1))
    }

    /// The time of a beginning.
    fn start(&self, seconds: f64) -> f64 {
        self.place(seconds, |left, len| left < len)
    }

    /// The time of an end: where two ranges meet, in the first.
    fn end(&self, seconds: f64) -> f64 {
        self.place(seconds, |left, len| left <= len)
    }

    fn place(&self, seconds: f64, is_here: fn(f64, f64) -> bool) -> f64 {
        let rate = SAMPLE_RATE as f64;
        // Whole samples, so that a joint is not a fraction of a sample before itself.
        let mut left = (seconds * rate).round();
        for range in &self.ranges {
            if is_here(left, range.len() as f64) {
                return (range.start as f64 + left) / rate;
            }
            left -= range.len() as f64;
        }
        self.ranges
            .last()
            .map_or(seconds, |last| last.end as f64 / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: usize = SAMPLE_RATE;

    /// The stretches of speech if these windows, from the first to before the second, are loud.
    fn heard(loud: &[(usize, usize)], windows: usize, options: &Options) -> Vec<(usize, usize)> {
        let is_loud = |i: usize| loud.iter().any(|(start, end)| (*start..*end).contains(&i));
        let probability = |i: usize| f32::from(u8::from(is_loud(i)));
        let probabilities: Vec<f32> = (0..windows).map(probability).collect();
        let samples = (windows * WINDOW).saturating_sub(100);
        let speech = Speech::of(&probabilities, samples, options);
        let ranges = speech.ranges.into_iter();
        ranges.map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn pauses_noises_and_what_is_kept_around() {
        let options = Options {
            min_silence: 0.32,
            padding: 0.,
            ..Options::default()
        };
        let windows = |start: usize, end: usize| (start * WINDOW, end * WINDOW);
        // Ten windows are a pause, nine are not; eight are speech, seven a noise.
        assert_eq!(heard(&[(5, 13)], 40, &options), [windows(5, 13)]);
        assert!(heard(&[(5, 12)], 40, &options).is_empty());
        let close = heard(&[(5, 13), (22, 30)], 60, &options);
        assert_eq!(close, [windows(5, 30)]);
        let two = heard(&[(5, 13), (23, 31)], 60, &options);
        assert_eq!(two, [windows(5, 13), windows(23, 31)]);
        // To the end, which is in the last window.
        let last = heard(&[(20, 30)], 30, &options);
        assert_eq!(last, [(20 * WINDOW, 30 * WINDOW - 100)]);
        assert!(heard(&[], 30, &options).is_empty());
        assert!(heard(&[], 0, &Options::default()).is_empty());
        let wide = Options {
            padding: 0.2,
            ..options
        };
        let whole = (0, 31 * WINDOW + 3200);
        assert_eq!(heard(&[(5, 13), (23, 31)], 60, &wide), [whole]);
    }

    #[test]
    fn between_the_thresholds_nothing_changes() {
        let options = Options {
            min_silence: 0.,
            min_speech: 0.,
            padding: 0.,
            ..Options::default()
        };
        let probabilities = [0.4, 0.6, 0.4, 0.3, 0.4, 0.5];
        let found = Speech::of(&probabilities, 6 * WINDOW, &options).ranges;
        assert_eq!(found, [WINDOW..3 * WINDOW, 5 * WINDOW..6 * WINDOW]);
    }

    #[test]
    fn times_of_what_was_cut_are_those_of_the_recording() {
        let speech = Speech {
            ranges: vec![SECOND..3 * SECOND, 10 * SECOND..11 * SECOND],
        };
        let samples: Vec<f32> = (0..12 * SECOND).map(|i| i as f32).collect();
        let cut = speech.cut(&samples);
        assert_eq!(
            (cut.len(), cut[0], cut[2 * SECOND]),
            (3 * SECOND, 16_000., 160_000.)
        );
        assert_eq!((speech.start(0.), speech.end(0.5)), (1., 1.5));
        assert_eq!((speech.start(2.), speech.end(2.)), (10., 3.));
        assert_eq!(
            (speech.start(2.5), speech.end(3.), speech.end(9.)),
            (10.5, 11., 11.)
        );
    }

    /// Whisper puts the boundary of two segments in the silence that is kept at a joint, or near it.
    #[test]
    fn segments_do_not_begin_or_end_across_silence() {
        let speech = Speech {
            ranges: vec![SECOND..4 * SECOND, 10 * SECOND..13 * SECOND],
        };
        assert_eq!(speech.span(0., 2.7), (1., 3.7));
        assert_eq!(speech.span(2.7, 5.), (10., 12.));
        assert_eq!(speech.span(0.5, 3.6), (1.5, 4.));
        assert_eq!(speech.span(3.6, 5.), (10.6, 12.));
        // Words that are on either side, and a segment of both ranges.
        assert_eq!(speech.span(2.8, 3.1), (3.8, 4.));
        assert_eq!(speech.span(2.9, 3.3), (10., 10.3));
        assert_eq!(speech.span(0., 6.), (1., 13.));
        assert_eq!(Speech { ranges: vec![] }.span(1., 2.), (1., 2.));
    }
}
