//! Probes by which `tooldock doctor` detects proxies in front of the gateway that modify requests or buffer streams.
//!
//! An operator gets nonces from the gateway (`/operator/doctor`), and sends one request with each nonce through the public URL. A
//! nonce is sealed with the session key, so that each replica with the key accepts it. It is valid for a minute, and each process
//! accepts it once. A probe without a nonce gets the response for an unknown path.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::seal::{NoRandomness, SessionKey};

/// Time for which a nonce is valid.
pub const LIFE: Duration = Duration::from_secs(60);
/// Maximum number of nonces in one response to an operator.
pub const NONCES_MAX: usize = 32;
/// Maximum number of nonces that one process accepts within [`LIFE`]; further nonces are refused.
const USED_MAX: usize = 256;
/// Number of random bytes in a nonce.
const RANDOM_BYTES: usize = 16;

/// Issues and checks the nonces of probes. Each nonce is accepted once.
pub struct Probes {
    key: SessionKey,
    /// Random parts of the nonces that were accepted, each with the nonce's expiry time in ms since 1970; oldest first.
    used: Mutex<VecDeque<(u64, [u8; RANDOM_BYTES])>>,
}

impl Probes {
    /// Creates the issuer of nonces; no nonce has been accepted yet. `key`: the session key, which seals the nonces.
    pub(crate) fn new(key: SessionKey) -> Self {
        Self {
            key,
            used: Mutex::default(),
        }
    }

    /// Seals a new nonce.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`], if the operating system's source fails.
    pub(crate) fn issue(&self) -> Result<String, NoRandomness> {
        self.issue_at(SystemTime::now())
    }

    fn issue_at(&self, now: SystemTime) -> Result<String, NoRandomness> {
        let mut nonce = millis(now + LIFE).to_be_bytes().to_vec();
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random)?;
        nonce.extend_from_slice(&random);
        self.key.seal_probe(&nonce)
    }

    /// Accepts a nonce once. Returns false for an invalid, expired or already used nonce.
    pub fn take(&self, nonce: &str) -> bool {
        self.take_at(nonce, SystemTime::now())
    }

    fn take_at(&self, nonce: &str, now: SystemTime) -> bool {
        let Some((ends, random)) = self.opened(nonce) else {
            return false;
        };
        let now = millis(now);
        // The clock of the replica that sealed the nonce may be ahead. A nonce that would be valid for longer than twice its
        // lifetime is refused.
        let latest = now + 2 * LIFE.as_millis() as u64;
        if ends <= now || ends > latest {
            return false;
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|(ends, _)| *ends > now);
        if used.len() >= USED_MAX || used.iter().any(|(_, other)| *other == random) {
            return false;
        }
        used.push_back((ends, random));
        true
    }

    fn opened(&self, nonce: &str) -> Option<(u64, [u8; RANDOM_BYTES])> {
        let plain = self.key.open_probe(nonce)?;
        let (ends, random) = plain.split_first_chunk::<8>()?;
        Some((u64::from_be_bytes(*ends), random.try_into().ok()?))
    }
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes(key: u8) -> Probes {
        Probes::new(SessionKey::from_bytes([key; 32]))
    }

    #[test]
    fn a_nonce_counts_once_for_a_minute_at_each_replica_of_its_key() {
        let now = SystemTime::now();
        let (own, replica, other) = (probes(1), probes(1), probes(2));
        let nonce = own.issue_at(now).unwrap();
        assert!(!other.take_at(&nonce, now));
        assert!(!own.take_at(&nonce, now + LIFE));
        assert!(!own.take_at(&nonce, now - 2 * LIFE));
        assert!(own.take_at(&nonce, now));
        assert!(!own.take_at(&nonce, now));
        assert!(replica.take_at(&nonce, now));
        for text in ["", "x", &own.key.seal_state(b"a state").unwrap()] {
            assert!(!own.take_at(text, now), "{text}");
        }
    }

    #[test]
    fn a_process_takes_a_bounded_number_of_nonces_at_a_time() {
        let now = SystemTime::now();
        let probes = probes(1);
        let take = |now| probes.take_at(&probes.issue_at(now).unwrap(), now);
        assert!((0..USED_MAX).all(|_| take(now)));
        assert!(!take(now));
        assert!(take(now + LIFE));
        assert_eq!(probes.used.lock().unwrap().len(), 1);
    }
}
