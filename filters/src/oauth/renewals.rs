//! Queue of opaque tokens in use, about which the issuer must be asked again before its previous answer expires.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tooldock_base::secret::Secret;

use crate::token::TokenDigest;

/// Maximum number of tokens in the queue, and maximum total length of their texts in bytes. A token that does not fit is not
/// renewed ahead of time: the issuer is asked about it after the previous answer has expired.
const RENEWALS_MAX: usize = 2_048;
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// A token about which the issuer must be asked again.
#[derive(Debug, Clone)]
pub struct Renewal {
    /// The token, which is sent to the issuer.
    pub token: Secret,
    /// The token's digest, by which the answer is stored. Must not appear in logs or responses.
    pub digest: TokenDigest,
}

/// Queue of one issuer's tokens about which it must be asked again.
#[derive(Default)]
pub(super) struct Renewals(Mutex<PendingRenewals>);

#[derive(Default)]
struct PendingRenewals {
    renewals: Vec<Renewal>,
    bytes: usize,
}

impl Renewals {
    /// Adds a token to the queue. Does nothing if the queue is full.
    pub(super) fn note(&self, digest: TokenDigest, token: &str) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = waiting.bytes + token.len();
        if waiting.renewals.len() < RENEWALS_MAX && bytes <= BYTES_MAX {
            waiting.bytes = bytes;
            let token = Secret::new(token);
            waiting.renewals.push(Renewal { token, digest });
        }
    }

    /// Removes and returns all tokens in the queue.
    pub(super) fn take(&self) -> Vec<Renewal> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting).renewals
    }
}

impl fmt::Debug for Renewals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Renewals")
    }
}
