//! Limits the work that a relay can cause.
//!
//! Whatever a relay sends costs us time, useful or not: events are parsed, then verified; answers to nothing, notices and pings are
//! parsed. So what is read of one connection is bounded by a token bucket. While it is empty nothing is read: the relay's messages wait
//! in the network's buffers and then at the relay, and none is lost. Other relays are not affected.

/// A unit is about ten microseconds of one core: a tenth of what an event costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Units in a second.
    pub rate: u64,
    /// Units that a connection which was quiet has at once.
    pub burst: u64,
}

impl Budget {
    /// For a configured relay: 10,000 events at once, then 1,000 in a second, a tenth of a core.
    pub const OWN: Self = Self {
        rate: 10_000,
        burst: 100_000,
    };
    /// For one that a customer named: 1,000 events at once, then 100 in a second, a hundredth of a core.
    pub const GUEST: Self = Self {
        rate: 1_000,
        burst: 10_000,
    };
}

/// The cost of an event in addition to its size, and of any other message.
pub(super) const EVENT: u64 = 10;
pub(super) const OTHER: u64 = 1;
/// Bytes that cost a unit.
const BYTES: u64 = 1024;

/// The remaining units, in thousandths: a millisecond adds `rate` of those.
#[derive(Debug)]
pub(super) struct Bucket {
    budget: Budget,
    left: i64,
    filled: u64,
    /// Nothing is read before this time.
    pause: u64,
    /// Whether that was reported, on this connection.
    told: bool,
}

impl Bucket {
    pub(super) fn new(budget: Budget) -> Self {
        Self {
            budget,
            left: Self::full(budget),
            filled: 0,
            pause: 0,
            told: false,
        }
    }

    fn full(budget: Budget) -> i64 {
        i64::try_from(budget.burst.saturating_mul(1000)).unwrap_or(i64::MAX)
    }

    /// Starts a new connection with the budget that the last one left, so that reconnecting gains nothing.
    pub(super) fn connected(&mut self) {
        self.told = false;
    }

    /// When the next message may be read.
    pub(super) fn pause(&self) -> u64 {
        self.pause
    }

    /// Pays for a message. `true` if it is the first on this connection after which reading pauses.
    pub(super) fn pay(&mut self, units: u64, bytes: usize, now: u64) -> bool {
        let rate = self.budget.rate.max(1);
        let gained = now.saturating_sub(self.filled).saturating_mul(rate);
        let gained = i64::try_from(gained).unwrap_or(i64::MAX);
        self.filled = now.max(self.filled);
        self.left = self
            .left
            .saturating_add(gained)
            .min(Self::full(self.budget));
        let units = units.saturating_add(bytes as u64 / BYTES);
        let cost = i64::try_from(units.saturating_mul(1000)).unwrap_or(i64::MAX);
        self.left = self.left.saturating_sub(cost);
        if self.left > 0 {
            return false;
        }
        // Until there is a tenth of a second's worth, so that there are few pauses and not one for each message.
        let missing = self.left.unsigned_abs() + rate * 100;
        self.pause = now + missing.div_ceil(rate);
        !std::mem::replace(&mut self.told, true)
    }
}
