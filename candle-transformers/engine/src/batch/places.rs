//! How many texts run and wait, of all owners and of each.

use super::turns::Owner;
use crate::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The part of the places that is added for owners that have none: one owner cannot keep the others out.
const EXTRA: usize = 4;

/// Places for work, such as texts, of several owners.
pub struct Places {
    limit: usize,
    taken: Mutex<HashMap<Owner, usize>>,
}

/// One of them, free again when it is dropped.
pub struct Place {
    places: Arc<Places>,
    owner: Owner,
}

impl Places {
    /// This number of places; a quarter more for owners that have none.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            taken: Mutex::default(),
        })
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.map().values().sum()
    }

    /// Takes one.
    ///
    /// # Errors
    /// None is free for this owner.
    pub fn take(self: &Arc<Self>, owner: Owner) -> Result<Place> {
        let mut map = self.map();
        let limit = match map.contains_key(&owner) {
            true => self.limit,
            false => self.limit + self.limit / EXTRA,
        };
        if map.values().sum::<usize>() >= limit {
            return Err(Error::Busy(self.limit));
        }
        *map.entry(owner).or_default() += 1;
        Ok(Place {
            places: self.clone(),
            owner,
        })
    }

    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<Owner, usize>> {
        // A count is never half written.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut map = self.places.map();
        if let Some(count) = map.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                map.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Places;
    use crate::batch::Owner;

    #[test]
    fn one_owner_leaves_places_for_others() {
        let places = Places::new(8);
        let mut taken: Vec<_> = (0..8).map(|_| places.take(Owner(1)).unwrap()).collect();
        assert!(places.take(Owner(1)).is_err());
        taken.push(places.take(Owner(2)).unwrap());
        assert!(places.take(Owner(2)).is_err(), "it has one");
        taken.push(places.take(Owner(3)).unwrap());
        assert!(places.take(Owner(4)).is_err(), "all are taken");
        taken.truncate(7);
        assert_eq!(places.taken(), 7);
        assert!(places.take(Owner(1)).is_ok());
        drop(taken);
        assert_eq!(places.taken(), 0);
    }
}
