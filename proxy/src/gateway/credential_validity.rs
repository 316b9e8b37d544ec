//! The time for which a request's credential admits a long stream: until the credential expires, until it is revoked, or until
//! the issuer's key that verified it is no longer valid. The streams of each API key end separately. The streams of JWTs end
//! together when an issuer removes a key; clients whose tokens are still valid then open them again.
//!
//! | credential | expires | revoked |
//! |---|---|---|
//! | API key | at its `expires` | when the table in force has no key of its id, or a changed one |
//! | JWT | at its `exp` | when the keys of any issuer have lost one since the JWT was verified |
//! | opaque token | at its `exp` | when its issuer, which is asked repeatedly, reports it as invalid |
//! | token of the configuration | never | by a reload, after which all streams are admitted again |
//!
//! An issuer that does not respond revokes no opaque token. A login at the web UI bounds its streams as well, in addition to the
//! credential that it represents (`web_session`).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tooldock_base::grant::Grant;
use tooldock_credentials::keys::KeyStore;
use tooldock_filters::{Fields, Principal};

use super::Gateway;
use crate::stream::End;

/// The validity of the credential that admitted a request. Requests with a token of the configuration usually have no such value,
/// since most of these tokens never expire.
pub(super) struct CredentialValidity {
    ends: Option<SystemTime>,
    principal: Arc<str>,
    grant: Option<Arc<Grant>>,
    /// The value of [`Issuers::losses`](crate::issuers::Issuers::losses) when the request was admitted.
    losses: u64,
}

impl CredentialValidity {
    pub(super) fn of(principal: &Principal, gateway: &Gateway) -> Option<Self> {
        let (ends, grant) = (principal.ends(), principal.grant());
        (ends.is_some() || grant.is_some()).then(|| Self {
            ends,
            principal: Arc::clone(principal.name()),
            grant: grant.cloned(),
            losses: gateway.issuers.losses(),
        })
    }

    /// Returns true if the credential has not expired or been revoked since it admitted the request. For an opaque token, the
    /// issuer is not asked again.
    pub(super) fn counts(&self, gateway: &Gateway) -> bool {
        if self.ends.is_some_and(|end| end <= SystemTime::now()) {
            return false;
        }
        match &self.grant {
            Some(grant) if grant.key_id().is_some() => is_in_force(&gateway.keys, grant),
            Some(_) => gateway.issuers.losses() == self.losses,
            None => true,
        }
    }

    /// Returns the time until the credential expires; `None` if it does not expire.
    pub(super) fn left(&self) -> Option<Duration> {
        let left = |end: SystemTime| end.duration_since(SystemTime::now());
        self.ends.map(|end| left(end).unwrap_or_default())
    }

    /// Returns a future that completes when the credential of the request is revoked; `None` if it cannot be.
    pub(super) fn taken_back(&self, gateway: &Gateway, fields: &Fields<'_>) -> Option<End> {
        let grant = self.grant.as_ref()?;
        if grant.key_id().is_some() {
            let (keys, grant) = (Arc::clone(&gateway.keys), Arc::clone(grant));
            return Some(Box::pin(async move { outlive_key(&keys, &grant).await }));
        }
        let rules = gateway.rules.load();
        let opaque = rules.admission.oauth().revocable(fields);
        let issuers = Arc::clone(&gateway.issuers);
        match opaque {
            Some(token) => Some(Box::pin(
                issuers.watch_token(token, Arc::clone(&self.principal)),
            )),
            None => {
                let losses = self.losses;
                Some(Box::pin(
                    async move { issuers.lose_keys_after(losses).await },
                ))
            }
        }
    }
}

/// Waits until the API key with this grant is revoked or changed.
async fn outlive_key(keys: &KeyStore, grant: &Arc<Grant>) {
    let mut losses = keys.losses();
    loop {
        losses.mark_unchanged();
        if !is_in_force(keys, grant) {
            return;
        }
        if losses.changed().await.is_err() {
            return;
        }
    }
}

/// Returns true if the API key with this grant is unchanged. A changed key has another grant object.
fn is_in_force(keys: &KeyStore, grant: &Arc<Grant>) -> bool {
    let id = grant.key_id().and_then(|id| id.parse().ok());
    let tables = keys.tables();
    let table = tables.load();
    let key = id.and_then(|id| table.get(id));
    key.is_some_and(|key| Arc::ptr_eq(key.grant(), grant))
}
