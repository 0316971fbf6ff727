//! A set that forgets its oldest members.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// The most recently inserted items, up to a limit.
pub(super) struct Recent<T> {
    capacity: usize,
    set: HashSet<T>,
    order: VecDeque<T>,
}

impl<T: Copy + Eq + Hash> Recent<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            set: HashSet::new(),
            order: VecDeque::new(),
        }
    }

    pub(super) fn contains(&self, value: &T) -> bool {
        self.set.contains(value)
    }

    pub(super) fn insert(&mut self, value: T) {
        if !self.set.insert(value) {
            return;
        }
        self.order.push_back(value);
        if self.order.len() > self.capacity {
            if let Some(oldest) = self.order.pop_front() {
                self.set.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn the_oldest_goes_first() {
        let mut recent = Recent::new(2);
        for value in [1, 2, 2, 1, 3] {
            recent.insert(value);
        }
        assert!(!recent.contains(&1));
        assert!(recent.contains(&2) && recent.contains(&3));
        assert_eq!(recent.order.len(), 2);
    }
}
