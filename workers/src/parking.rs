//! How many calls of one namespace may wait for an answer of their client at once (`max_parked`).
//!
//! Such a call has given its place in the [`crate::gate::Gate`] back, so without this nothing would bound them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bounded number of places. Nobody waits for one.
#[derive(Debug)]
pub struct Parking {
    places: Arc<Semaphore>,
    max: usize,
}

/// A place; dropping it makes room.
#[derive(Debug)]
pub struct Parked {
    _place: OwnedSemaphorePermit,
}

/// As many calls ask as may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many calls of the namespace wait for an answer of their client")]
pub struct ParkingFull;

impl Parking {
    /// Room for `max` calls; with 0 no call may ask.
    pub fn new(max: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(max)),
            max,
        }
    }

    /// Takes a place.
    ///
    /// # Errors
    ///
    /// [`ParkingFull`] when there is none.
    pub fn enter(&self) -> Result<Parked, ParkingFull> {
        let place = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| ParkingFull)?;
        Ok(Parked { _place: place })
    }

    /// Calls that hold a place now.
    pub fn parked(&self) -> usize {
        self.max - self.places.available_permits()
    }

    /// Whether a parking of this limit would be the same as this one.
    pub fn has_limit(&self, max: usize) -> bool {
        self.max == max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_its_call_goes_on() {
        let parking = Parking::new(1);
        let place = parking.enter().expect("empty");
        assert_eq!(
            (parking.parked(), parking.enter().err()),
            (1, Some(ParkingFull))
        );
        drop(place);
        assert_eq!(parking.parked(), 0);
        assert!(parking.enter().is_ok());
        assert!(Parking::new(0).enter().is_err());
    }
}
