//! The phrases of a recording that is still running.

use super::detector::{in_samples, Detector};
use super::{Hearing, Options, SileroVad, SAMPLE_RATE, WINDOW};
use candle_core::Result;
use std::ops::Range;

/// A phrase without a pause is cut at this length: with its padding, Whisper hears it in one window of 30 seconds.
const LONGEST: usize = 29 * SAMPLE_RATE;

/// Splits a recording into phrases while it arrives: each ends when the pause after it is long enough.
///
/// ```no_run
/// use candle_transformers::models::silero_vad::{Options, Phrases, SileroVad};
/// # fn f(vad: SileroVad, parts: Vec<Vec<f32>>) -> candle_core::Result<()> {
/// let mut phrases = Phrases::new(vad, &Options::phrases())?;
/// for samples in parts {
///     for range in phrases.hear(&samples)? {
///         println!("samples {range:?} of the recording are a phrase");
///     }
/// }
/// let last = phrases.end()?;
/// # drop(last);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Phrases {
    vad: SileroVad,
    hearing: Hearing,
    splitter: Splitter,
    samples: usize,
}

impl Phrases {
    /// Before the first sample.
    ///
    /// # Errors
    /// The device fails.
    pub fn new(vad: SileroVad, options: &Options) -> Result<Self> {
        Ok(Self {
            hearing: vad.begin()?,
            vad,
            splitter: Splitter::new(options),
            samples: 0,
        })
    }

    /// Takes the next samples of the recording; returns the phrases that have ended, as samples from the beginning of the recording.
    ///
    /// # Errors
    /// If a sample is NaN, or the device fails.
    pub fn hear(&mut self, samples: &[f32]) -> Result<Vec<Range<usize>>> {
        let probabilities = self.vad.hear(&mut self.hearing, samples)?;
        self.samples += samples.len();
        let heard = probabilities.into_iter();
        Ok(heard.flat_map(|it| self.splitter.hear(it)).collect())
    }

    /// Whether somebody speaks, or has paused for less than ends a phrase.
    pub fn speaks(&self) -> bool {
        self.splitter.detector.begun().is_some()
    }

    /// The phrases that the end of the recording ends: the current one.
    ///
    /// # Errors
    /// The device fails.
    pub fn end(mut self) -> Result<Vec<Range<usize>>> {
        let last = self.vad.end(self.hearing)?;
        let cut = last.and_then(|last| self.splitter.hear(last));
        Ok(cut
            .into_iter()
            .chain(self.splitter.end(self.samples))
            .collect())
    }
}

/// Phrases from the probabilities of windows.
#[derive(Debug, Clone)]
struct Splitter {
    detector: Detector,
    padding: usize,
    /// The probabilities of the windows of the current phrase.
    current: Vec<f32>,
    /// The end of the phrase before.
    previous: usize,
}

impl Splitter {
    fn new(options: &Options) -> Self {
        Self {
            detector: Detector::new(options),
            padding: in_samples(options.padding).min(in_samples(options.min_silence)),
            current: Vec::new(),
            previous: 0,
        }
    }

    fn hear(&mut self, probability: f32) -> Option<Range<usize>> {
        let ended = self.detector.hear(probability);
        let Some(start) = self.detector.begun() else {
            self.current.clear();
            return ended.map(|range| self.phrase(range.start..range.end + self.padding));
        };
        self.current.push(probability);
        if self.current.len() * WINDOW < LONGEST {
            return None;
        }
        // Where speech is least probable in the second half, a word is least probably cut.
        let half = self.current.len() / 2;
        let windows = self.current.iter().enumerate().skip(half);
        let (quietest, _) = windows.min_by(|a, b| a.1.total_cmp(b.1))?;
        let cut = start + quietest * WINDOW;
        self.current.drain(..quietest);
        self.detector.begin_at(cut);
        Some(self.phrase(start..cut))
    }

    fn end(mut self, samples: usize) -> Option<Range<usize>> {
        let last = self.detector.clone().end(samples)?;
        Some(self.phrase(last.start..(last.end + self.padding).min(samples)))
    }

    /// The range with the padding before it, if no other phrase has that.
    fn phrase(&mut self, range: Range<usize>) -> Range<usize> {
        let start = range.start.saturating_sub(self.padding).max(self.previous);
        self.previous = range.end;
        start..range.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The phrases if these windows, from the first to before the second, are loud, in windows.
    fn heard(loud: &[(usize, usize)], windows: usize) -> Vec<(usize, usize)> {
        let mut splitter = Splitter::new(&Options {
            // Five windows, then two.
            min_silence: 0.16,
            padding: 0.064,
            ..Options::phrases()
        });
        let is_loud = |i: usize| loud.iter().any(|(start, end)| (*start..*end).contains(&i));
        let probability = |i: usize| f32::from(u8::from(is_loud(i)));
        let mut found: Vec<_> = (0..windows)
            .flat_map(|i| splitter.hear(probability(i)))
            .collect();
        found.extend(splitter.end(windows * WINDOW));
        assert!(found.iter().all(|range| range.end <= windows * WINDOW));
        let in_windows = |at: usize| at / WINDOW;
        let ranges = found.into_iter();
        ranges
            .map(|range| (in_windows(range.start), in_windows(range.end)))
            .collect()
    }

    #[test]
    fn pauses_end_phrases() {
        assert_eq!(heard(&[(10, 20), (25, 40)], 60), [(8, 22), (23, 42)]);
        // Four windows are not a pause, and seven are a noise.
        assert_eq!(heard(&[(10, 20), (24, 40)], 60), [(8, 42)]);
        assert!(heard(&[(10, 17)], 60).is_empty());
        // At both ends of the recording.
        assert_eq!(heard(&[(1, 20), (50, 60)], 60), [(0, 22), (48, 60)]);
        assert_eq!(heard(&[(1, 20)], 21), [(0, 21)]);
        assert!(heard(&[], 60).is_empty());
    }

    /// Whoever speaks without a pause is heard in parts, cut where it is quietest.
    #[test]
    fn long_phrases_are_cut() {
        let longest = LONGEST.div_ceil(WINDOW);
        let quiet = longest - 100;
        let found = heard(&[(2, quiet), (quiet + 1, 2 * longest)], 3 * longest);
        let lengths: Vec<_> = found.iter().map(|(start, end)| end - start).collect();
        assert_eq!(found[0], (0, quiet), "{found:?}");
        assert!(found.windows(2).all(|it| it[0].1 == it[1].0), "{found:?}");
        assert!(lengths.iter().all(|it| *it <= longest + 2), "{lengths:?}");
        assert_eq!(found.last().map(|it| it.1), Some(2 * longest + 2));
    }
}
