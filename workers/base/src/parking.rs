//! Limits the calls of one namespace that wait for an answer of their client (`max_parked`), and the share of one principal.
//!
//! A waiting call has released its permit of the [`crate::gate::Gate`], so without this limit the number of waiting calls would
//! be unbounded. A client can keep a call waiting for as long as `ask_timeout`: a principal with all permits would shut out the
//! others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits the calls that wait for a client's answer: each needs a permit. A call is refused immediately if no permit is free.
#[derive(Debug)]
pub struct Parking {
    /// Acquired permits by principal. The lock is held only for a short time, never across an await.
    places: Arc<Mutex<Shares>>,
    max: usize,
}

/// A call's permit to wait for its client. Dropping it frees the permit.
#[derive(Debug)]
pub struct ParkingPermit {
    places: Arc<Mutex<Shares>>,
    principal: Arc<str>,
}

/// Number of acquired permits, in total and by principal. Has entries only for principals with permits.
#[derive(Debug, Default)]
pub struct Shares {
    taken: usize,
    held: HashMap<Arc<str>, usize>,
}

/// Reason why a call that has a question to its client gets no permit to wait for the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParkingFull {
    /// All permits of the namespace are in use.
    #[error("too many calls of the namespace wait for an answer of their client")]
    Namespace,
    /// The principal has used up its share; the remaining permits are reserved for other principals.
    #[error("too many calls of this principal wait for an answer of their client")]
    Principal,
}

impl Parking {
    /// Creates a limit of `max` waiting calls; with 0 no call may wait for an answer of its client.
    pub fn new(max: usize) -> Self {
        Self {
            places: Arc::default(),
            max,
        }
    }

    /// Acquires a permit for a call of that principal. Callers without a principal share the empty name.
    ///
    /// # Errors
    ///
    /// [`ParkingFull`] if no permit is free for that principal.
    pub fn enter(&self, principal: &str) -> Result<ParkingPermit, ParkingFull> {
        let principal: Arc<str> = principal.into();
        let mut places = lock(&self.places);
        places.room(&principal, self.max)?;
        places.take(Arc::clone(&principal));
        drop(places);
        Ok(ParkingPermit {
            places: Arc::clone(&self.places),
            principal,
        })
    }

    /// Number of calls that currently wait for an answer of their client.
    pub fn parked(&self) -> usize {
        lock(&self.places).taken
    }

    /// Returns true if the maximum number of waiting calls is `max`.
    pub fn has_limit(&self, max: usize) -> bool {
        self.max == max
    }
}

impl Drop for ParkingPermit {
    fn drop(&mut self) {
        lock(&self.places).give_back(&self.principal);
    }
}

impl Shares {
    /// Checks that the principal may acquire another of `max` permits. An eighth of the permits, rounded down, is reserved for
    /// other principals, so that no principal can shut out the others.
    ///
    /// # Errors
    ///
    /// [`ParkingFull`]: the principal's share is used up, or all permits are.
    pub fn room(&self, principal: &str, max: usize) -> Result<(), ParkingFull> {
        let share = max - max / 8;
        let held = self.held.get(principal).copied().unwrap_or(0);
        if share < max && held >= share {
            return Err(ParkingFull::Principal);
        }
        if self.taken >= max {
            return Err(ParkingFull::Namespace);
        }
        Ok(())
    }

    /// Counts a permit as acquired by the principal.
    pub fn take(&mut self, principal: Arc<str>) {
        self.taken += 1;
        *self.held.entry(principal).or_insert(0) += 1;
    }

    /// Counts a permit as released by the principal. Releasing a permit that was not acquired has no effect.
    pub fn give_back(&mut self, principal: &str) {
        let Some(held) = self.held.get_mut(principal) else {
            return;
        };
        *held -= 1;
        if *held == 0 {
            self.held.remove(principal);
        }
        self.taken -= 1;
    }
}

fn lock(places: &Mutex<Shares>) -> MutexGuard<'_, Shares> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_its_call_goes_on() {
        let parking = Parking::new(1);
        let place = parking.enter("ada").expect("empty");
        assert_eq!(
            (parking.parked(), parking.enter("bob").err()),
            (1, Some(ParkingFull::Namespace))
        );
        drop(place);
        assert_eq!(parking.parked(), 0);
        assert!(parking.enter("ada").is_ok());
        assert!(Parking::new(0).enter("ada").is_err());
    }

    #[test]
    fn one_principal_leaves_an_eighth_of_the_places_to_others() {
        for (max, share) in [(1, 1), (7, 7), (8, 7), (15, 14), (64, 56)] {
            let parking = Parking::new(max);
            let mut of_ada: Vec<_> = std::iter::from_fn(|| parking.enter("ada").ok()).collect();
            assert_eq!(of_ada.len(), share, "of {max}");
            let of_bob = parking.enter("bob");
            assert_eq!(of_bob.is_ok(), share < max, "of {max}");
            drop(of_bob);
            of_ada.pop();
            let again = parking.enter("ada");
            assert!(again.is_ok(), "of {max}");
            drop((of_ada, again));
            assert_eq!(parking.parked(), 0);
            assert!(lock(&parking.places).held.is_empty());
        }
    }
}
