//! Limits on concurrent questions to an issuer about opaque tokens, and on waits of clients for its newer keys.
//!
//! A place is a permit to ask the issuer one question. Tokens that were accepted before and unknown tokens have separate places,
//! and each client address may ask only a few questions about unknown tokens. So a client that invents tokens cannot use up the
//! places that others need. Further questions wait in the order of their arrival.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tooldock_filters::network::network_of;

use super::lock;

/// Maximum number of concurrent questions to one issuer about tokens that were accepted before. The constant below is the maximum
/// for unknown tokens.
const COUNTED_MAX: usize = 128;
const UNKNOWN_MAX: usize = 128;

/// Maximum number of running and waiting questions about unknown tokens of one client address; further ones are refused.
const SHARE: usize = 16;

/// Maximum time for which a question waits for a place (a permit to ask the issuer). It is longer than a request waits for the
/// answer.
const PLACE_WAIT: Duration = Duration::from_secs(4);

/// Minimum time between two waits of a client address for newer keys.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum number of client addresses for which the last wait is stored. Further clients may not wait.
const PATIENT_MAX: usize = 4_096;

/// The places (permits) for concurrent questions to one issuer.
pub(super) struct Places {
    counted: Arc<Semaphore>,
    unknown: Arc<Semaphore>,
    /// Number of questions about unknown tokens, by client network. Networks without questions have no entry.
    shares: Mutex<HashMap<IpAddr, usize>>,
}

/// A question's entry in the limits of its issuer, with which it waits for a place. It is kept until the question is answered.
pub(super) struct Claim {
    places: Arc<Semaphore>,
    _share: Option<Share>,
}

/// Guard that counts a question about an unknown token at its client address. Dropping it ends the count.
struct Share {
    places: Arc<Places>,
    network: IpAddr,
}

impl Places {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            counted: Arc::new(Semaphore::new(COUNTED_MAX)),
            unknown: Arc::new(Semaphore::new(UNKNOWN_MAX)),
            shares: Mutex::default(),
        })
    }

    /// Creates the entry in the issuer's limits for a question about a token that was accepted before.
    pub(super) fn of_counted(&self) -> Claim {
        Claim {
            places: Arc::clone(&self.counted),
            _share: None,
        }
    }

    /// Creates the entry in the issuer's limits for a question about an unknown token; `None` if the client address has too many
    /// questions.
    pub(super) fn of_unknown(self: &Arc<Self>, client: IpAddr) -> Option<Claim> {
        let network = network_of(client);
        let mut shares = lock(&self.shares);
        let share = shares.entry(network).or_default();
        if *share >= SHARE {
            return None;
        }
        *share += 1;
        drop(shares);
        Some(Claim {
            places: Arc::clone(&self.unknown),
            _share: Some(Share {
                places: Arc::clone(self),
                network,
            }),
        })
    }
}

impl Claim {
    /// Waits for a place (a permit to ask the issuer), for at most [`PLACE_WAIT`]; `None` if none became free.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).acquire_owned();
        timeout(PLACE_WAIT, place).await.ok()?.ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = lock(&self.places.shares);
        if let Some(share) = shares.get_mut(&self.network) {
            *share -= 1;
            if *share == 0 {
                shares.remove(&self.network);
            }
        }
    }
}

/// The client addresses that have recently waited for newer keys of an issuer, each with the time of its wait.
#[derive(Default)]
pub(super) struct Patience(Mutex<HashMap<IpAddr, Instant>>);

impl Patience {
    /// Returns true, and stores the time, if a client may wait for newer keys. If false, the client's token is refused
    /// immediately, since no known key has signed it.
    pub(super) fn take(&self, client: IpAddr, now: Instant) -> bool {
        let network = network_of(client);
        let mut waited = lock(&self.0);
        if waited
            .get(&network)
            .is_some_and(|last| now < *last + PATIENCE)
        {
            return false;
        }
        if waited.len() >= PATIENT_MAX {
            waited.retain(|_, last| now < *last + PATIENCE);
        }
        let fits = waited.len() < PATIENT_MAX;
        if fits {
            waited.insert(network, now);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_tokens_take_no_place_of_others_and_no_more_than_their_share() {
        let places = Places::new();
        let flooder = address("192.0.2.1");
        let claims: Vec<_> = (0..SHARE).map(|_| places.of_unknown(flooder)).collect();
        assert!(claims.iter().all(Option::is_some));
        assert!(places.of_unknown(flooder).is_none());
        let other = places.of_unknown(address("192.0.2.2")).expect("a share");
        assert!(other.place().await.is_some());
        drop(claims);
        assert!(places.of_unknown(flooder).is_some(), "given back");

        let many = |number: usize| address(&format!("2001:db8:0:{number:x}::1"));
        let mut taken = Vec::new();
        for number in 0..UNKNOWN_MAX {
            let claim = places.of_unknown(many(number)).expect("a share");
            taken.push((claim.place().await.expect("a place"), claim));
        }
        let late = places.of_unknown(many(UNKNOWN_MAX)).expect("a share");
        assert!(late.place().await.is_none(), "all are taken");
        assert!(places.of_counted().place().await.is_some());
        {
            let (waits, place) = (late.place(), taken.pop());
            tokio::pin!(waits);
            let early = timeout(Duration::from_secs(1), &mut waits).await;
            assert!(early.is_err());
            drop(place);
            assert!(waits.await.is_some(), "in its turn");
        }
        drop((taken, late, other));
        assert!(lock(&places.shares).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_waits_for_newer_keys_once_in_a_while() {
        let patience = Patience::default();
        let one = address("192.0.2.1");
        let now = Instant::now();
        let take = |client, seconds| patience.take(client, now + Duration::from_secs(seconds));
        assert_eq!(
            [take(one, 0), take(one, 29), take(one, 30)],
            [true, false, true]
        );
        assert!(take(address("192.0.2.2"), 0));
        for number in 0..2 * PATIENT_MAX {
            take(
                address(&format!(
                    "2001:db8:{:x}:{:x}::1",
                    number >> 12,
                    number & 0xfff
                )),
                31,
            );
        }
        assert!(lock(&patience.0).len() <= PATIENT_MAX);
    }
}
