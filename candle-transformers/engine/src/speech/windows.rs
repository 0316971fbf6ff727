//! Splits a recording for models that take one window at a time.

use std::ops::Range;

/// Samples a second, in Hz.
pub(super) const RATE: usize = 16_000;
/// The longest window: 30 seconds.
const LONGEST: usize = 30 * RATE;
/// Windows are cut where this much is quietest: 0.1 seconds.
const PAUSE: usize = RATE / 10;
/// Minimum length of a window: a second, so that the next window is never a single word.
const SHORTEST: usize = RATE;
/// The level below which sound is silence: 80 dB below the loudest that there is.
const SILENCE: f32 = 1e-4;

/// The windows of `samples` at 16 kHz, in their order: each is at most 30 seconds long and ends where its second half is quietest. One
/// that is silent is left out.
pub(super) fn windows(samples: &[f32]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    while samples.len() - start > LONGEST {
        let last = LONGEST.min(samples.len() - start - SHORTEST);
        let cut = start + LONGEST / 2 + quietest(&samples[start + LONGEST / 2..start + last]);
        found.push(start..cut);
        start = cut;
    }
    found.push(start..samples.len());
    let is_heard = |window: &Range<usize>| {
        let mut window = samples[window.clone()].iter();
        window.any(|sample| sample.abs() >= SILENCE || sample.is_nan())
    };
    found.retain(is_heard);
    found
}

/// The middle of the quietest [`PAUSE`], the last one if there are several: windows are long then.
fn quietest(samples: &[f32]) -> usize {
    let energy = |sample: f32| f64::from(sample) * f64::from(sample);
    let width = PAUSE.min(samples.len());
    let mut sum: f64 = samples[..width].iter().copied().map(energy).sum();
    let (mut least, mut at) = (sum, 0);
    for i in width..samples.len() {
        // Rounding must not make a pause of zeros louder than another one.
        sum = (sum + energy(samples[i]) - energy(samples[i - width])).max(0.);
        if sum <= least {
            (least, at) = (sum, i + 1 - width);
        }
    }
    at + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tone of `seconds`, silent for 0.2 s from each of `pauses` on.
    fn tone(seconds: f64, pauses: &[f64]) -> Vec<f32> {
        let is_pause = |t: f64| pauses.iter().any(|p| (*p..p + 0.2).contains(&t));
        let sample = |i: usize| match i as f64 / RATE as f64 {
            t if is_pause(t) => 0.,
            t => (t * 500.).sin() as f32 * 0.5,
        };
        (0..(seconds * RATE as f64) as usize).map(sample).collect()
    }

    /// The window, if there is one alone.
    fn only(samples: &[f32]) -> Option<Range<usize>> {
        match windows(samples).as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        }
    }

    /// Windows follow each other, last at most 30 seconds, and are cut in pauses.
    #[test]
    fn cuts_are_in_pauses() {
        let samples = tone(74., &[5., 21., 40., 44.]);
        let found = windows(&samples);
        let ends: Vec<f64> = found.iter().map(|w| w.end as f64 / RATE as f64).collect();
        assert_eq!(found.len(), 3, "{ends:?}");
        assert!(
            (21.0..21.2).contains(&ends[0]) && (44.0..44.2).contains(&ends[1]),
            "{ends:?}"
        );
        assert_eq!((found[0].start, ends[2]), (0, 74.));
        for pair in found.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
        assert!(found.iter().all(|w| w.len() <= LONGEST));
    }

    /// Short recordings are one window; a little more than 30 seconds leaves a second for the next one.
    #[test]
    fn ends() {
        assert_eq!(only(&tone(30., &[])), Some(0..LONGEST));
        assert_eq!(only(&tone(0.01, &[])), Some(0..160));
        let found = windows(&tone(30.01, &[]));
        assert_eq!(found.len(), 2);
        assert!(found[1].len() >= SHORTEST, "{found:?}");
    }

    #[test]
    fn silence_is_left_out() {
        assert!(windows(&[]).is_empty());
        assert!(windows(&vec![1e-5; RATE]).is_empty());
        let mut samples = tone(20., &[]);
        samples.extend(vec![0.; 60 * RATE]);
        let found = windows(&samples);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].start, 0);
        // NaN reaches the model, which reports it.
        assert_eq!(only(&[f32::NAN; 8]), Some(0..8));
    }
}
