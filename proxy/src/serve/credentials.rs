//! Finds a credential by a key's id or a principal's name, in the rules and keys in force. Used by `explain`.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use tooldock_base::key_maker::KeyId;
use tooldock_base::names::ANONYMOUS;
use tooldock_credentials::keys::{self, ApiKey, KeyState, KeyTables};
use tooldock_upstream::Credentials;
use tooldock_workers::explain::{Credential, KnownPrincipal, Principals};

use crate::rules::Rules;

/// The rules and API keys in which credentials are looked up.
pub(super) struct CredentialLookup {
    pub(super) rules: Arc<ArcSwap<Rules>>,
    pub(super) keys: KeyTables,
}

impl Credentials for CredentialLookup {
    fn find(&self, who: &str) -> Result<Credential, String> {
        // The user may have passed the key itself instead of its id. The key is a secret, so the error does not repeat it.
        if keys::looks_like_key(who.as_bytes()) {
            return Err(
                "That is an API key. Name it by its id, the 12 letters and digits after its prefix."
                    .to_owned(),
            );
        }
        let table = self.keys.load();
        let key = who.parse::<KeyId>().ok().and_then(|id| table.get(id));
        if let Some(key) = key {
            return Ok(of_key(key));
        }
        if who.starts_with("key:") {
            let now = SystemTime::now();
            let counts = |key: &&Arc<ApiKey>| {
                **key.principal() == *who && key.record().state(now) == KeyState::Active
            };
            let mut named: Vec<_> = table.iter().filter(counts).collect();
            named.sort_by_key(|key| key.record().id);
            return match &*named {
                [] => Err(format!("No API key that counts belongs to {who}.")),
                [key] => Ok(of_key(key)),
                several => {
                    let ids = several
                        .iter()
                        .take(10)
                        .map(|key| key.record().id.to_string());
                    let ids: Vec<_> = ids.collect();
                    Err(format!(
                        "Several API keys belong to {who}; name one by its id, as {}.",
                        ids.join(", ")
                    ))
                }
            };
        }
        let rules = self.rules.load();
        let (principal, patterns) = rules.admission.named(who).ok_or_else(|| {
            let shown: String = who.chars().take(64).collect();
            let configured = rules.admission.principals().map(|(name, _)| name);
            let keys = table.iter().map(|key| &**key.principal());
            let known = Principals::in_words(configured.chain(keys));
            format!("No token, certificate or API key belongs to {shown:?}. The principals there are: {known}.")
        })?;
        let is_shut_out = who == ANONYMOUS && !rules.admits_anonymous();
        Ok(Credential {
            principal: Arc::clone(principal.name()),
            named: format!("the credential of {}", principal.name()),
            ended: is_shut_out.then(|| {
                format!("{ANONYMOUS} does not count: no listener admits requests without a credential (auth: none)")
            }),
            patterns,
            namespaces: Arc::clone(principal.namespaces()),
            grant: principal.grant().cloned(),
            notes: Vec::new(),
        })
    }

    fn principals(&self) -> Principals {
        let rules = self.rules.load();
        let table = self.keys.load();
        let now = SystemTime::now();
        let configured = rules.admission.principals();
        let configured = configured.map(|(name, credential)| (name, None, credential));
        let keys = table.iter();
        let keys = keys.map(|key| (&**key.principal(), Some(key.record().id), "API key"));
        Principals::first_of(configured.chain(keys), |(name, id, credential)| {
            let key = id.and_then(|id| table.get(id));
            let state = match key {
                Some(key) => key.record().state(now).as_str(),
                None if name == ANONYMOUS && !rules.admits_anonymous() => {
                    "not admitted by any listener"
                }
                None => KeyState::Active.as_str(),
            };
            KnownPrincipal {
                name: name.to_owned(),
                credential: credential.to_owned(),
                key_id: id.map(|id| id.to_string()),
                state: state.to_owned(),
            }
        })
    }
}

fn of_key(key: &ApiKey) -> Credential {
    let record = key.record();
    let mut notes = Vec::new();
    if !record.networks.is_empty() {
        let networks: Vec<_> = record.networks.iter().map(ToString::to_string).collect();
        notes.push(format!("the key counts only from {}", networks.join(", ")));
    }
    for limit in &record.limits {
        notes.push(format!("the key is limited to {limit} per second"));
    }
    let named = format!("API key {}", record.id);
    let state = record.state(SystemTime::now());
    Credential {
        principal: Arc::clone(key.principal()),
        ended: (state != KeyState::Active).then(|| format!("{named} is {}", state.as_str())),
        named,
        patterns: record.namespaces.clone(),
        namespaces: Arc::clone(key.namespaces()),
        grant: Some(Arc::clone(key.grant())),
        notes,
    }
}
