//! API keys created by other keys: no key is valid longer or has more rights than the key that created it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tooldock_base::key_maker::KeyId;
use tooldock_base::scope::ADMIN;

use super::record::{KeyRecord, KeyState, NewKey, whole_seconds};

/// Maximum number of creators in the chain of one key, each created by the next. A key with a longer chain is not valid.
const MAKERS_MAX: usize = 16;
/// The namespace of the management tools, which `*` does not include.
const SYSTEM: &str = "_system";

/// Expiry and revocation of a key according to its own record only.
struct OwnExpiry {
    maker: Option<KeyId>,
    expires: Option<SystemTime>,
    revoked: Option<SystemTime>,
}

/// Limits each key to the validity of its creators: the key ends, by expiry or revocation, no later than any of them, and is
/// revoked if one of them is missing from the file.
pub(super) fn settle(records: &mut [KeyRecord]) {
    if records.iter().all(|record| record.maker.is_none()) {
        return;
    }
    let ends: HashMap<KeyId, OwnExpiry> = records
        .iter()
        .map(|record| {
            let end = OwnExpiry {
                maker: record.maker,
                expires: record.expires,
                revoked: record.revoked,
            };
            (record.id, end)
        })
        .collect();
    for record in records {
        let mut maker = record.maker;
        let mut makers = 0;
        while let Some(id) = maker {
            makers += 1;
            let Some(end) = ends.get(&id).filter(|_| makers <= MAKERS_MAX) else {
                record.revoked.get_or_insert(record.created);
                break;
            };
            record.expires = earlier(record.expires, end.expires);
            record.revoked = earlier(record.revoked, end.revoked);
            maker = end.maker;
        }
    }
}

fn earlier(one: Option<SystemTime>, other: Option<SystemTime>) -> Option<SystemTime> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Restricts the requested key to the rights of the key that creates it.
///
/// # Errors
///
/// The field that exceeds the creator's rights, or the reason why the creator may not create keys.
pub(super) fn within(
    mut wanted: NewKey,
    maker: &KeyRecord,
    records: &[KeyRecord],
    now: SystemTime,
) -> Result<NewKey, String> {
    if maker.state(now) != KeyState::Active {
        return Err(format!("the key {} counts no more", maker.id));
    }
    if !maker.limits.is_empty() {
        return Err(
            "a key with limits makes no keys, since each would have a budget of its own; ask the operator".into(),
        );
    }
    if makers_of(maker, records) >= MAKERS_MAX {
        return Err("name: keys that keys have made make no further ones so deep".into());
    }
    let is_admin = maker.scopes.iter().any(|scope| scope == ADMIN);
    if !is_admin && !wanted.scopes.iter().all(|it| maker.scopes.contains(it)) {
        let own = maker.scopes.join(", ");
        return Err(format!("scopes: this key makes keys for {own} alone"));
    }
    if !maker.opens_all_of(&wanted.namespaces) {
        let own = maker.namespaces.join(", ");
        return Err(format!("namespaces: this key makes keys for {own} alone"));
    }
    if !maker.networks.is_empty() {
        let is_own = |wanted| maker.networks.iter().any(|own| own.covers(wanted));
        if wanted.networks.is_empty() {
            wanted.networks.clone_from(&maker.networks);
        } else if !wanted.networks.iter().all(is_own) {
            return Err("networks: this key makes keys for its own networks alone".into());
        }
    }
    if let Some(end) = maker.expires {
        let left = end.duration_since(whole_seconds(now));
        let left = left.unwrap_or(Duration::ZERO);
        wanted.lifetime = Some(wanted.lifetime.map_or(left, |asked| asked.min(left)));
    }
    wanted.made_by = maker.makes(&wanted.name);
    Ok(wanted)
}

fn makers_of(key: &KeyRecord, records: &[KeyRecord]) -> usize {
    let mut makers = 0;
    let mut maker = key.maker;
    while let Some(id) = maker.filter(|_| makers <= MAKERS_MAX) {
        makers += 1;
        let record = records.iter().find(|record| record.id == id);
        maker = record.and_then(|record| record.maker);
    }
    makers
}

impl KeyRecord {
    /// Returns true if the key gives access to every namespace of a list of names and patterns. `*` matches all but `_system`.
    pub fn opens_all_of(&self, namespaces: &[String]) -> bool {
        opens_all(&self.namespaces, namespaces)
    }

    /// The creator of the key for display: the id of the creating key, or the principal of a creator that is not a key. A record
    /// written before ids were stored also yields the principal. `None` for a key that the operator created.
    pub fn shown_maker(&self) -> Option<String> {
        let id = self.maker.map(|id| id.to_string());
        let credential = || self.credential.as_ref().map(|it| it.principal.clone());
        id.or_else(credential)
            .or_else(|| self.made_by.as_ref().map(|names| format!("key:{names}")))
    }
}

/// Returns true if a list of names and patterns includes every namespace that another list includes. `*` matches each name and
/// pattern except `_system`.
pub(super) fn opens_all(own: &[String], wanted: &[String]) -> bool {
    let everywhere = own.iter().any(|it| it == "*");
    wanted
        .iter()
        .all(|wanted| own.contains(wanted) || (everywhere && wanted != SYSTEM))
}
