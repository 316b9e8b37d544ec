//! The time for which the credential of a request admits a long stream: until the credential's own end, until it is revoked, or
//! until the key that verified it is no longer valid. The streams of an API key end separately; those of JWTs end together when
//! an issuer removes a key, and clients whose tokens are still valid open them again.
//!
//! | credential | ends by itself | taken back |
//! |---|---|---|
//! | API key | at its `expires` | the table in force has another key of its id, or none |
//! | JWT | at its `exp` | the keys of any issuer have lost one since it was verified |
//! | opaque token | at its `exp` | its issuer says so: it is asked again; an issuer without an answer takes nothing back |
//! | token of the configuration | never | by a reload, which admits all streams again |
//!
//! A login at the web UI bounds its streams as well, in addition to the credential that it represents (`web_session`).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tooldock_base::grant::Grant;
use tooldock_credentials::keys::KeyStore;
use tooldock_filters::{Fields, Principal};

use super::Gateway;
use crate::stream::End;

/// The credential that admitted a request. `None` for most tokens of the configuration.
pub(super) struct Lasting {
    ends: Option<SystemTime>,
    principal: Arc<str>,
    grant: Option<Arc<Grant>>,
    /// The value of [`Issuers::losses`](crate::issuers::Issuers::losses) when the request was admitted.
    losses: u64,
}

impl Lasting {
    pub(super) fn of(principal: &Principal, gateway: &Gateway) -> Option<Self> {
        let (ends, grant) = (principal.ends(), principal.grant());
        (ends.is_some() || grant.is_some()).then(|| Self {
            ends,
            principal: Arc::clone(principal.name()),
            grant: grant.cloned(),
            losses: gateway.issuers.losses(),
        })
    }

    /// Returns true if the credential is as valid as when it admitted the request. An opaque token is not asked about again.
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

    /// The time until the credential ends by itself.
    pub(super) fn left(&self) -> Option<Duration> {
        let left = |end: SystemTime| end.duration_since(SystemTime::now());
        self.ends.map(|end| left(end).unwrap_or_default())
    }

    /// Resolves when the credential of the request is no longer valid.
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
                issuers.outlive(token, Arc::clone(&self.principal)),
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

/// Waits until the key with that grant is no longer valid, or opens other tools.
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

/// Returns true if the key with that grant is unchanged, since an unchanged key is compiled once.
fn is_in_force(keys: &KeyStore, grant: &Arc<Grant>) -> bool {
    let id = grant.key_id().and_then(|id| id.parse().ok());
    let tables = keys.tables();
    let table = tables.load();
    let key = id.and_then(|id| table.get(id));
    key.is_some_and(|key| Arc::ptr_eq(key.grant(), grant))
}
