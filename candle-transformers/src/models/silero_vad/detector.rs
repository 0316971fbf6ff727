//! From probabilities to stretches of speech, one window after the other.

use super::speech::Options;
use super::{SAMPLE_RATE, WINDOW};
use std::ops::Range;

/// Seconds as samples.
pub(super) fn in_samples(seconds: f64) -> usize {
    (seconds.max(0.) * SAMPLE_RATE as f64) as usize
}

/// Finds where speech begins and ends. Its ranges have no padding.
#[derive(Debug, Clone)]
pub(super) struct Detector {
    threshold: f32,
    end_threshold: f32,
    /// Samples of a pause that ends speech, and of the shortest speech.
    pause: usize,
    shortest: usize,
    /// The first sample of the next window.
    at: usize,
    /// The start of the current speech, and of the pause in it.
    begun: Option<usize>,
    paused: Option<usize>,
}

impl Detector {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            threshold: options.threshold,
            end_threshold: options.end_threshold,
            pause: in_samples(options.min_silence),
            shortest: in_samples(options.min_speech),
            at: 0,
            begun: None,
            paused: None,
        }
    }

    /// Takes the probability of the next window; returns the speech that ended if the pause after it is long enough now.
    pub(super) fn hear(&mut self, probability: f32) -> Option<Range<usize>> {
        let at = self.at;
        self.at += WINDOW;
        let speaks = probability >= self.threshold;
        match self.begun {
            None if speaks => (self.begun, self.paused) = (Some(at), None),
            None => {}
            Some(_) if speaks => self.paused = None,
            Some(start) if probability < self.end_threshold => {
                let silent = *self.paused.get_or_insert(at);
                if at + WINDOW - silent >= self.pause {
                    self.begun = None;
                    return self.long_enough(start..silent);
                }
            }
            Some(_) => {}
        }
        None
    }

    /// The speech that is still going on at the end of a recording of `samples`.
    pub(super) fn end(mut self, samples: usize) -> Option<Range<usize>> {
        let start = self.begun.take()?;
        self.long_enough(start..self.paused.unwrap_or(samples))
    }

    /// The start of the current speech.
    pub(super) fn begun(&self) -> Option<usize> {
        self.begun
    }

    /// Lets the current speech begin at sample `at`, which is in it.
    pub(super) fn begin_at(&mut self, at: usize) {
        self.begun = Some(at);
        self.paused = self.paused.map(|paused| paused.max(at));
    }

    fn long_enough(&self, range: Range<usize>) -> Option<Range<usize>> {
        (range.len() >= self.shortest).then_some(range)
    }
}
