//! The slots of the run queue: which job gets one, and which job has to leave for it.
//!
//! Keys cost nothing, results do. So strangers, whose keys never had a result, share at most three quarters of the queue, and a known
//! customer who finds no free slot gets that of the newest stranger.

use super::{JobId, Refusal};

/// The part of the queue that strangers do not get.
const KEPT: usize = 4;

/// A job that waits in the queue, or runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The job.
    pub id: JobId,
    /// Later jobs have higher numbers.
    pub number: u64,
    /// Whether its customer had a result before.
    pub is_known: bool,
    /// Whether it can still be asked to leave: it neither runs nor was paid for.
    pub can_leave: bool,
}

/// The numbers of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// For everybody.
    pub all: usize,
    /// Number of them that are reserved for known customers.
    pub kept: usize,
}

impl Places {
    /// The slots of `queue` waiting and `running` running jobs.
    pub fn new(queue: usize, running: usize) -> Self {
        Self {
            all: queue.saturating_add(running),
            kept: queue / KEPT,
        }
    }

    /// Whether one more job gets a slot, and which one has to leave for it. Changes nothing.
    ///
    /// # Errors
    /// [`Refusal::QueueFull`].
    pub fn admit(
        &self,
        is_known: bool,
        seats: impl Iterator<Item = Seat>,
    ) -> Result<Option<JobId>, Refusal> {
        let (mut taken, mut strangers) = (0, 0);
        let mut newest: Option<Seat> = None;
        for seat in seats {
            taken += 1;
            if seat.is_known {
                continue;
            }
            strangers += 1;
            if seat.can_leave && newest.is_none_or(|other| other.number < seat.number) {
                newest = Some(seat);
            }
        }
        let has_room = taken < self.all && (is_known || strangers < self.all - self.kept);
        match (has_room, is_known, newest) {
            (true, ..) => Ok(None),
            (false, true, Some(stranger)) => Ok(Some(stranger.id)),
            (false, ..) => Err(Refusal::QueueFull),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(n: u8, is_known: bool) -> Seat {
        Seat {
            id: JobId([n; 32]),
            number: u64::from(n),
            is_known,
            can_leave: n > 0,
        }
    }

    fn seats(known: u8, strangers: u8) -> Vec<Seat> {
        let known = (0..known).map(|n| seat(n, true));
        known
            .chain((0..strangers).map(|n| seat(n, false)))
            .collect()
    }

    #[test]
    fn strangers_leave_a_quarter_of_the_queue_to_known_customers() {
        let places = Places::new(8, 1);
        let admit = |is_known, known, strangers| {
            places.admit(is_known, seats(known, strangers).into_iter())
        };
        assert_eq!(admit(false, 0, 6), Ok(None));
        assert_eq!(admit(false, 0, 7), Err(Refusal::QueueFull));
        assert_eq!(admit(true, 0, 7), Ok(None));
        assert_eq!(admit(false, 3, 6), Err(Refusal::QueueFull));
        assert_eq!(admit(false, 8, 0), Ok(None), "known ones may take all");
    }

    #[test]
    fn a_known_customer_gets_the_place_of_the_newest_stranger_who_waits() {
        let places = Places::new(8, 1);
        let admit = |seats: Vec<Seat>| places.admit(true, seats.into_iter());
        let mut full = seats(3, 6);
        assert_eq!(admit(full.clone()), Ok(Some(JobId([5; 32]))));
        full.reverse();
        assert_eq!(admit(full), Ok(Some(JobId([5; 32]))), "in any order");
        // The one stranger here runs.
        assert_eq!(admit(seats(8, 1)), Err(Refusal::QueueFull));
        assert_eq!(admit(seats(9, 0)), Err(Refusal::QueueFull));
    }
}
