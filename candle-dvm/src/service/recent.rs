//! Bounded caches: a set without its oldest members, and a map without the least recently used and the outdated entries.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
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

/// Values that hold for a while. Beyond the limit the one goes that was used longest ago.
pub(super) struct Cache<K, V> {
    capacity: usize,
    values: HashMap<K, Cached<V>>,
    /// Keys by when they were used: by count, not by a clock.
    used: BTreeMap<u64, K>,
    uses: u64,
}

struct Cached<V> {
    value: V,
    until: u64,
    used: u64,
}

impl<K: Copy + Eq + Hash, V> Cache<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            values: HashMap::new(),
            used: BTreeMap::new(),
            uses: 0,
        }
    }

    /// The value, if it holds at `now`.
    pub(super) fn get(&mut self, key: &K, now: u64) -> Option<&V> {
        let cached = self.values.get_mut(key)?;
        self.used.remove(&cached.used);
        if cached.until <= now {
            self.values.remove(key);
            return None;
        }
        self.uses += 1;
        cached.used = self.uses;
        self.used.insert(self.uses, *key);
        self.values.get(key).map(|cached| &cached.value)
    }

    /// Keeps a value until then.
    pub(super) fn insert(&mut self, key: K, value: V, until: u64) {
        self.uses += 1;
        let used = self.uses;
        let cached = Cached { value, until, used };
        if let Some(before) = self.values.insert(key, cached) {
            self.used.remove(&before.used);
        }
        self.used.insert(used, key);
        if self.values.len() > self.capacity {
            if let Some((_, oldest)) = self.used.pop_first() {
                self.values.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cache, Recent};

    #[test]
    fn what_is_used_stays_and_what_is_old_goes() {
        let mut cache = Cache::new(2);
        cache.insert('a', 1, 10);
        cache.insert('b', 2, 10);
        assert_eq!(cache.get(&'a', 9), Some(&1));
        cache.insert('c', 3, 20);
        assert_eq!(cache.get(&'b', 9), None, "used longest ago");
        assert_eq!(cache.get(&'a', 9), Some(&1));
        assert_eq!(cache.get(&'a', 10), None, "too old");
        cache.insert('c', 4, 30);
        assert_eq!(cache.get(&'c', 25), Some(&4));
        assert_eq!((cache.values.len(), cache.used.len()), (1, 1));
    }

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
