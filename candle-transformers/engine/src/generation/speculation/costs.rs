//! The cost of a proposed token, as a part of a step without any: measured while a text is written.

use std::time::Duration;

/// A row more of a step, where nothing is known of the device yet.
const ROW: f64 = 0.1;
/// Rounds with proposals after which one without is due, so that its time stays known.
const STALE: usize = 64;
/// The weight of a slower round; it may have waited for something else, such as a kernel that had to be compiled.
const SLOWER: f64 = 0.1;

/// The times of one text's rounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    /// Seconds of a round without proposals.
    alone: Option<f64>,
    /// Rounds since the last of those.
    since: usize,
}

/// The cost of one source's proposals.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    /// As a part of a round without proposals, before it was measured.
    expected: f64,
    /// Seconds.
    each: Option<f64>,
}

/// An estimate after one more measurement: what is quicker is believed.
fn after(known: Option<f64>, seconds: f64) -> Option<f64> {
    Some(match known {
        Some(known) if seconds > known => known + SLOWER * (seconds - known),
        _ => seconds,
    })
}

impl Costs {
    /// Whether the next round should have no proposals, to be measured.
    pub(super) fn needs_alone(&self) -> bool {
        self.alone.is_none() || self.since >= STALE
    }

    /// A round without proposals took this long.
    pub(super) fn alone(&mut self, took: Duration) {
        self.alone = after(self.alone, took.as_secs_f64());
        self.since = 0;
    }

    /// A round with `made` proposals took this long.
    pub(super) fn with(&mut self, made: usize, took: Duration, cost: &mut Cost) {
        self.since += 1;
        if let Some(alone) = self.alone {
            let each = (took.as_secs_f64() - alone) / made as f64;
            cost.each = after(cost.each, each.max(0.));
        }
    }

    /// A proposal's cost, as a part of a round without any.
    pub(super) fn of(&self, cost: &Cost) -> f64 {
        match (self.alone, cost.each) {
            (Some(alone), Some(each)) if alone > 0. => each / alone,
            _ => cost.expected,
        }
    }
}

impl Cost {
    /// The costs of a source whose own work per token takes this fraction of a step.
    pub(super) fn expected(work: f64) -> Self {
        Self {
            expected: work + ROW,
            each: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cost, Costs};
    use std::time::Duration;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn costs_are_measured() {
        let (mut costs, mut cost) = (Costs::default(), Cost::expected(0.3));
        assert!(costs.needs_alone());
        assert_eq!(costs.of(&cost), 0.4);
        costs.alone(MS(100));
        assert!(!costs.needs_alone());
        costs.with(2, MS(140), &mut cost);
        assert!((costs.of(&cost) - 0.2).abs() < 1e-9);
        // One that waited for something else counts a tenth, a quicker one at once.
        costs.with(1, MS(220), &mut cost);
        assert!((costs.of(&cost) - 0.3).abs() < 1e-9);
        costs.with(1, MS(110), &mut cost);
        assert!((costs.of(&cost) - 0.1).abs() < 1e-9);
        costs.with(1, MS(90), &mut cost);
        assert_eq!(costs.of(&cost), 0.);
        for _ in 0..64 {
            costs.with(1, MS(90), &mut cost);
        }
        assert!(costs.needs_alone());
    }
}
