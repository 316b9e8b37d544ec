//! Opaque tokens in use whose issuer must be asked again before its last answer expires.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tooldock_base::secret::Secret;

use crate::token::TokenDigest;

/// Maximum number of tokens that wait for renewal, and of bytes of their texts. A token beyond these bounds is asked about
/// after its answer has expired.
const RENEWALS_MAX: usize = 2_048;
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// A token whose answer must be renewed.
#[derive(Debug, Clone)]
pub struct Renewal {
    /// The token to ask about.
    pub token: Secret,
    /// The token's digest. Not shown in any output.
    pub digest: TokenDigest,
}

/// The tokens of one issuer that wait for renewal.
#[derive(Default)]
pub(super) struct Renewals(Mutex<PendingRenewals>);

#[derive(Default)]
struct PendingRenewals {
    renewals: Vec<Renewal>,
    bytes: usize,
}

impl Renewals {
    /// Queues a token for renewal. Does nothing if the queue is full.
    pub(super) fn note(&self, digest: TokenDigest, token: &str) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = waiting.bytes + token.len();
        if waiting.renewals.len() < RENEWALS_MAX && bytes <= BYTES_MAX {
            waiting.bytes = bytes;
            let token = Secret::new(token);
            waiting.renewals.push(Renewal { token, digest });
        }
    }

    /// Removes and returns all queued tokens.
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
