//! Checks that clients have received every event once and in order.

use std::collections::HashMap;

use serde::Serialize;

use super::client::Had;
use super::crowd::Crowd;

/// Numbers of faults in the events that some clients received, over all clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Deliveries {
    pub(crate) clients: usize,
    /// Number of received events, over all clients.
    pub(crate) events: usize,
    /// Published events that a client did not receive.
    pub(crate) lost: usize,
    /// Events that a client received again.
    pub(crate) doubled: usize,
    /// Received events that were not published.
    pub(crate) strange: usize,
    /// Events received after an event that was published later.
    pub(crate) out_of_order: usize,
}

impl Deliveries {
    /// Compares the events that the clients of a crowd received with the published ones.
    pub(crate) fn of(crowd: &Crowd, published: &[Had]) -> Self {
        let mut all = Self::default();
        for client in crowd.clients() {
            all.add(published, &client.events());
        }
        all
    }

    /// Compares the events that one client received with the published ones.
    fn add(&mut self, published: &[Had], had: &[Had]) {
        self.clients += 1;
        self.events += had.len();
        if had == published {
            return;
        }
        let places: HashMap<Had, usize> = published.iter().copied().zip(0..).collect();
        let mut times = vec![0_usize; published.len()];
        let mut furthest = None;
        for event in had {
            let Some(&place) = places.get(event) else {
                self.strange += 1;
                continue;
            };
            times[place] += 1;
            if furthest.is_some_and(|furthest| place < furthest) {
                self.out_of_order += 1;
            }
            furthest = furthest.max(Some(place));
        }
        self.lost += times.iter().filter(|times| **times == 0).count();
        self.doubled += times
            .iter()
            .map(|times| times.saturating_sub(1))
            .sum::<usize>();
    }

    /// Describes the faults; `None` if there are none.
    pub(crate) fn fault(&self) -> Option<String> {
        let Self {
            lost,
            doubled,
            strange,
            out_of_order,
            ..
        } = self;
        let wrong = lost + doubled + strange + out_of_order > 0;
        wrong.then(|| {
            format!("{lost} events lost, {doubled} doubled, {strange} never published, {out_of_order} out of order")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::Kind;
    use super::*;

    fn events(sequences: &[u64]) -> Vec<Had> {
        let event = |sequence: &u64| Had {
            sequence: *sequence,
            kind: Kind::Tools,
        };
        sequences.iter().map(event).collect()
    }

    fn compared(had: &[u64]) -> Deliveries {
        let mut deliveries = Deliveries::default();
        deliveries.add(&events(&[5, 6, 9]), &events(had));
        deliveries
    }

    #[test]
    fn everything_once_and_in_order_is_no_fault() {
        let mut deliveries = compared(&[5, 6, 9]);
        deliveries.add(&events(&[5]), &events(&[5]));
        assert_eq!((deliveries.clients, deliveries.events), (2, 4));
        assert_eq!(deliveries.fault(), None);
    }

    #[test]
    fn each_fault_is_counted_as_what_it_is() {
        let counts = |had: &[u64]| {
            let it = compared(had);
            assert!(it.fault().is_some(), "{had:?}");
            (it.lost, it.doubled, it.strange, it.out_of_order)
        };
        assert_eq!(counts(&[5, 9]), (1, 0, 0, 0));
        assert_eq!(counts(&[5, 6, 6, 9]), (0, 1, 0, 0));
        assert_eq!(counts(&[5, 6, 7, 9]), (0, 0, 1, 0));
        assert_eq!(counts(&[6, 5, 9]), (0, 0, 0, 1));
        assert_eq!(counts(&[]), (3, 0, 0, 0));
        assert_eq!(counts(&[5, 6, 9, 5]), (0, 1, 0, 1));
    }

    #[test]
    fn the_right_id_with_another_message_is_not_the_event() {
        let mut deliveries = Deliveries::default();
        let other = Had {
            sequence: 5,
            kind: Kind::Prompts,
        };
        deliveries.add(&events(&[5]), &[other]);
        assert_eq!((deliveries.lost, deliveries.strange), (1, 1));
    }
}
