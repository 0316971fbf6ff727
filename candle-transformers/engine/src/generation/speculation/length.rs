//! The length of a proposal: by the rate of correct tokens, and by their cost.

/// The speed at which the estimate of a source of proposals adapts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// Number of the last proposals that count.
    memory: f64,
    /// Whether right proposals come in bursts: then a wrong one shortens the next proposal at once.
    in_bursts: bool,
    /// Maximum number of tokens between tries while proposals do not pay.
    longest_pause: usize,
}

impl Habits {
    /// For lookup: either a passage is repeated, and all is right, or nothing is.
    pub(super) const OF_LOOKUP: Self = Self {
        memory: 12.,
        in_bursts: true,
        longest_pause: 8,
    };
    /// For a draft model, whose rate of correct tokens is about the same everywhere in a text.
    pub(super) const OF_DRAFTS: Self = Self {
        memory: 40.,
        in_bursts: false,
        longest_pause: 64,
    };
}

/// The first pause, in tokens.
const SHORTEST_PAUSE: usize = 4;
/// Initial counts of correct and of tried proposals of a source.
const FIRST: (f64, f64) = (1.4, 2.);
/// Initial number of proposed tokens.
const FIRST_LENGTH: usize = 2;

/// The length of one source's proposals in one text.
#[derive(Clone, Debug)]
pub(super) struct Length {
    most: usize,
    habits: Habits,
    /// Proposals that were right, and those that were compared: after a wrong one none is.
    right: f64,
    tried: f64,
    /// No more than this are proposed next, so that it grows by steps.
    grown: usize,
    /// Rounds without a proposal until the next try, and how many there are after one that fails.
    rest: usize,
    pause: usize,
}

impl Length {
    /// At most `most` tokens at once.
    pub(super) fn new(most: usize, habits: Habits) -> Self {
        Self {
            most,
            habits,
            right: FIRST.0,
            tried: FIRST.1,
            grown: FIRST_LENGTH,
            rest: 0,
            pause: SHORTEST_PAUSE,
        }
    }

    /// The share of proposals that are right, of those before which all were.
    pub(super) fn share(&self) -> f64 {
        self.right / self.tried
    }

    /// Number of tokens to propose, where each costs `cost` of a step without any. One for a try if none pays and a try is due.
    pub(super) fn next(&self, cost: f64) -> usize {
        match self.best(self.share(), cost) {
            _ if self.rest > 0 => 0,
            0 => self.most.min(1),
            best => best.min(self.grown),
        }
    }

    /// The number with the most tokens per time, if this fraction of proposals is right.
    fn best(&self, share: f64, cost: f64) -> usize {
        let (mut tokens, mut likely) = (1., 1.);
        let (mut best, mut most) = (0, 1.);
        for count in 1..=self.most {
            likely *= share;
            tokens += likely;
            let gain = tokens / (1. + count as f64 * cost);
            if gain > most {
                (best, most) = (count, gain);
            }
        }
        best
    }

    /// Whether the next round has no proposal.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn is_resting(&self) -> bool {
        self.rest > 0
    }

    /// A round went by without a proposal.
    pub(super) fn rested(&mut self) {
        self.rest = self.rest.saturating_sub(1);
    }

    /// Records that `right` of `made` proposals were right, where each costs `cost` as in [`next`](Self::next).
    pub(super) fn saw(&mut self, made: usize, right: usize, cost: f64) {
        let all_right = right == made;
        let compared = (right + usize::from(!all_right)) as f64;
        let kept = (1. - 1. / self.habits.memory).powf(compared);
        self.right = self.right * kept + right as f64;
        self.tried = self.tried * kept + compared;
        let grown = if all_right {
            self.grown.max(2 * made)
        } else if self.habits.in_bursts {
            right.max(1)
        } else {
            (right + 1).max(self.grown / 2).max(FIRST_LENGTH)
        };
        self.grown = grown.min(self.most);
        if self.best(self.share(), cost) > 0 {
            self.pause = SHORTEST_PAUSE;
        } else if !all_right || self.best(1., cost) == 0 {
            self.rest = self.pause;
            self.pause = (2 * self.pause).min(self.habits.longest_pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Habits, Length};

    /// Writes 4,000 tokens, each of which a proposal contains with probability `chance`; returns the tokens per time of one step, and the
    /// number of rounds with a proposal.
    fn speed(mut length: Length, chance: f64, cost: f64) -> (f64, usize) {
        let mut state = 3u64;
        let mut is_right = |_: &usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 / (1u64 << 53) as f64) < chance
        };
        let (mut tokens, mut time, mut rounds) = (0, 0., 0);
        while tokens < 4000 {
            let made = length.next(cost);
            let right = (0..made).take_while(&mut is_right).count();
            match made {
                0 => length.rested(),
                _ => length.saw(made, right, cost),
            }
            rounds += usize::from(made > 0);
            tokens += right + 1;
            time += 1. + made as f64 * cost;
        }
        (f64::from(tokens as u32) / time, rounds)
    }

    #[test]
    fn the_length_follows_chance_and_cost() {
        for habits in [Habits::OF_LOOKUP, Habits::OF_DRAFTS] {
            let length = || Length::new(8, habits);
            // Almost all are right and cost next to nothing.
            let (gain, _) = speed(length(), 0.95, 0.05);
            assert!(gain > 3.5, "{habits:?}: {gain}");
            // What the best fixed length, 2, would give.
            let (gain, _) = speed(length(), 0.7, 0.2);
            assert!(gain > 0.93 * 2.19 / 1.4, "{habits:?}: {gain}");
            // None is worth its time: what is lost are the tries.
            let (gain, rounds) = speed(length(), 0.1, 0.5);
            assert!(gain > 0.93, "{habits:?}: {gain}");
            assert!((20..700).contains(&rounds), "{habits:?}: {rounds}");
        }
    }

    #[test]
    fn a_source_that_becomes_right_is_found() {
        for habits in [Habits::OF_LOOKUP, Habits::OF_DRAFTS] {
            let mut length = Length::new(8, habits);
            for right in [0, 8] {
                for _ in 0..400 {
                    match length.next(0.1) {
                        0 => length.rested(),
                        made => length.saw(made, right.min(made), 0.1),
                    }
                }
                assert_eq!(
                    length.next(0.1),
                    if right == 0 { 0 } else { 8 },
                    "{habits:?}"
                );
            }
        }
    }

    /// Right or not: what costs more than a step is tried now and then, and otherwise left.
    #[test]
    fn what_never_pays_is_left() {
        for habits in [Habits::OF_LOOKUP, Habits::OF_DRAFTS] {
            let (gain, rounds) = speed(Length::new(8, habits), 0.99, 1.1);
            assert!(gain > 0.9 && rounds > 20, "{habits:?}: {gain}, {rounds}");
        }
    }

    #[test]
    fn there_are_no_more_than_the_most() {
        for most in [0, 1, 3] {
            let mut length = Length::new(most, Habits::OF_LOOKUP);
            for _ in 0..9 {
                let made = length.next(0.01);
                assert!(made <= most);
                if made > 0 {
                    length.saw(made, made, 0.01);
                }
            }
            assert_eq!(length.next(0.01), most);
        }
    }
}
