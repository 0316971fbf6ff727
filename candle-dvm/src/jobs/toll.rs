//! The proof of work that strangers have to show while many of them wait. It starts automatically, rises for as long as the queue stays
//! full, and falls again.

/// The first toll: some thousand hashes, which a person does not notice.
const FIRST: u8 = 12;
/// Bits more each time: sixteen times the work.
const STEP: u8 = 4;
/// Seconds between two steps up. A customer who reads a number has that long to do it.
const UP: u64 = 10;
/// Seconds between two steps down.
const DOWN: u64 = 1;

/// The price of a stranger's job, in work.
#[derive(Debug)]
pub struct Toll {
    most: u8,
    bits: u8,
    changed: u64,
    is_busy: bool,
}

impl Toll {
    /// No toll yet, and never more than `most` bits.
    pub fn new(most: u8) -> Self {
        Self {
            most,
            bits: 0,
            changed: 0,
            is_busy: false,
        }
    }

    /// The bits that a stranger's request needs now.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether strangers filled more than half of the queue, and still take more than an eighth.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Notes how many strangers wait in a queue of this size.
    pub fn update(&mut self, waiting: usize, queue: usize, now: u64) {
        let is_full = waiting > queue / 2;
        let is_calm = waiting <= queue / 8;
        self.is_busy = is_full || (self.is_busy && !is_calm);
        let since = now.saturating_sub(self.changed);
        let bits = match self.bits {
            0 if is_full => FIRST,
            bits if is_full && since >= UP => bits.saturating_add(STEP),
            0..=FIRST if is_calm && since >= DOWN => 0,
            bits if is_calm && since >= DOWN => bits - STEP,
            bits => bits,
        };
        let bits = bits.min(self.most);
        if bits != self.bits {
            self.bits = bits;
            self.changed = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    #[test]
    fn work_rises_while_the_queue_is_half_full_and_falls_when_it_is_not() {
        let mut toll = Toll::new(22);
        let mut at = |waiting, seconds| {
            toll.update(waiting, 64, NOW + seconds);
            (toll.bits(), toll.is_busy())
        };
        assert_eq!(at(32, 0), (0, false));
        assert_eq!(at(33, 0), (12, true));
        assert_eq!(at(64, 9), (12, true));
        assert_eq!(at(64, 10), (16, true));
        assert_eq!(at(64, 20), (20, true));
        assert_eq!(at(64, 30), (22, true), "the most");
        assert_eq!(at(64, 40), (22, true));
        assert_eq!(at(20, 50), (22, true), "in between nothing changes");
        assert_eq!(at(8, 51), (18, false));
        assert_eq!(at(8, 51), (18, false), "once a second");
        assert_eq!(at(9, 52), (18, false));
        assert_eq!(at(0, 52), (14, false));
        assert_eq!(at(0, 53), (10, false));
        assert_eq!(at(0, 54), (0, false));
        // A clock that is set back costs nothing but a while.
        assert_eq!(at(33, 0), (12, true));
    }

    #[test]
    fn an_operator_who_wants_none_gets_none() {
        let mut toll = Toll::new(0);
        toll.update(64, 64, NOW);
        assert_eq!((toll.bits(), toll.is_busy()), (0, true));
    }
}
