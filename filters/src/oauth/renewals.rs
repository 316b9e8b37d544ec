//! Opaque tokens in use whose issuer is to be asked again before its last answer ends.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tooldock_workers::secret::Secret;

use crate::token::TokenDigest;

/// Tokens that wait for renewal, and the bytes of their texts. A token beyond that is asked about when its answer has ended.
const RENEWALS_MAX: usize = 2_048;
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// A token that is to be asked about again.
#[derive(Debug, Clone)]
pub struct Renewal {
    /// The token.
    pub token: Secret,
    /// Its digest, which shows in no output.
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
    /// Has a token renewed, where there is room.
    pub(super) fn note(&self, digest: TokenDigest, token: &str) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = waiting.bytes + token.len();
        if waiting.renewals.len() < RENEWALS_MAX && bytes <= BYTES_MAX {
            waiting.bytes = bytes;
            let token = Secret::new(token);
            waiting.renewals.push(Renewal { token, digest });
        }
    }

    /// Takes all of them.
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
