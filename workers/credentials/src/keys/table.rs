//! The table of all API keys at one moment, against which every request is checked: the record of each key, in compiled form.
//!
//! A check costs one hash and one look-up in a map, regardless of the number of keys. Keys with equal scopes or equal namespaces
//! share the compiled form of these.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, Guard};
use tooldock_base::grant::{Grant, GrantSource};
use tooldock_base::key_maker::KeyId;
use tooldock_base::namespace_scope::NamespaceScope;
use tooldock_base::scope::{ScopeTable, ToolScope};

use super::record::{self, KeyLimit, KeyRecord, KeyState};
use super::store::KeyStore;
use super::text;

/// Resolution of a key's time of last use, in seconds. It is coarse, so that threads that serve the same key rarely write to
/// the shared value.
const USE_STEP_SECONDS: u64 = 60;

/// All API keys at one moment.
#[derive(Debug, Default)]
pub struct KeyTable {
    keys: HashMap<KeyId, Arc<ApiKey>>,
    scopes: Arc<ScopeTable>,
}

/// Minimum time between two checks of the file that requests with unknown keys cause.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// The table of keys in force. Clones share it, so a replaced table is visible to all of them.
#[derive(Debug, Clone, Default)]
pub struct KeyTables(Arc<CurrentTable>);

#[derive(Debug, Default)]
struct CurrentTable {
    table: ArcSwap<KeyTable>,
    /// Store whose file is checked if a request has an unknown key; not set in processes that do not follow the file.
    store: OnceLock<Weak<KeyStore>>,
    /// Time of the last check of the file. The lock is only tried, never waited for.
    looked: Mutex<Option<Instant>>,
}

impl KeyTables {
    /// The current table, for a short use. [`KeyTables::snapshot`] returns it for a longer one.
    pub fn load(&self) -> Guard<Arc<KeyTable>> {
        self.0.table.load()
    }

    /// The current table, which may be kept for any time.
    pub fn snapshot(&self) -> Arc<KeyTable> {
        self.0.table.load_full()
    }

    /// Verifies the text of a key, as [`KeyTable::verify`]. If the key's id is unknown, the file is checked first, because
    /// another process may just have created the key.
    ///
    /// # Errors
    ///
    /// [`KeyRefusal`]; callers must not reveal its kind to clients.
    pub fn verify(
        &self,
        text: &[u8],
        client: IpAddr,
        now: SystemTime,
    ) -> Result<Arc<ApiKey>, KeyRefusal> {
        match self.load().verify(text, client, now) {
            Err(KeyRefusal::Unknown) if self.look() => {
                self.load().verify(text, client, now).map(Arc::clone)
            }
            verified => verified.map(Arc::clone),
        }
    }

    /// Sets the store whose file is checked when a request has an unknown key.
    pub(super) fn look_into(&self, store: &Arc<KeyStore>) {
        let _ = self.0.store.set(Arc::downgrade(store));
    }

    /// Checks the file of API keys for changes, at most once in [`LOOK_PAUSE`]. Returns true if the file had changed and was
    /// read.
    fn look(&self) -> bool {
        let Some(store) = self.0.store.get().and_then(Weak::upgrade) else {
            return false;
        };
        let Ok(mut looked) = self.0.looked.try_lock() else {
            return false;
        };
        if looked.is_some_and(|at| at.elapsed() < LOOK_PAUSE) {
            return false;
        }
        *looked = Some(Instant::now());
        store.look_for_request()
    }

    pub(super) fn publish(&self, table: KeyTable) {
        self.0.table.store(Arc::new(table));
    }
}

/// An API key in the form compiled for verification.
#[derive(Debug)]
pub struct ApiKey {
    record: KeyRecord,
    principal: Arc<str>,
    namespaces: Arc<NamespaceScope>,
    grant: Arc<Grant>,
    limits: Arc<[KeyLimit]>,
    /// Time of the key's last request, in seconds since 1970.
    used: AtomicU64,
    /// The key's time of last use as the file contains it, in seconds since 1970.
    written: AtomicU64,
}

/// Reason why a key is refused. For the log only: clients get the same response for all reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRefusal {
    /// The text is not a key: its length, a character, or its checksum is wrong.
    Malformed,
    /// No key has the id in the text.
    Unknown,
    /// A key with this id exists, but its secret part is different.
    WrongSecret,
    /// The key was revoked.
    Revoked,
    /// The lifetime of the key is over.
    Expired,
    /// The key may not be used from the client's network.
    Network,
}

impl KeyRefusal {
    /// The reason as text, for the log.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Malformed => "the API key's format or checksum is wrong",
            Self::Unknown => "no API key has this id",
            Self::WrongSecret => "the API key's secret is wrong",
            Self::Revoked => "the API key is revoked",
            Self::Expired => "the API key has expired",
            Self::Network => "the API key does not count from the client's network",
        }
    }
}

impl ApiKey {
    /// The record of the key.
    pub fn record(&self) -> &KeyRecord {
        &self.record
    }

    /// The principal of the key's requests.
    pub fn principal(&self) -> &Arc<str> {
        &self.principal
    }

    /// Namespaces that the key may access.
    pub fn namespaces(&self) -> &Arc<NamespaceScope> {
        &self.namespaces
    }

    /// Tools that the key may call.
    pub fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    /// Rate limits of the key.
    pub fn limits(&self) -> &Arc<[KeyLimit]> {
        &self.limits
    }

    /// Time of the key's last use, as known from this process or the file; `None` if it was never used.
    pub fn last_used(&self) -> Option<SystemTime> {
        let used = self.used.load(Ordering::Relaxed);
        (used > 0).then(|| UNIX_EPOCH + Duration::from_secs(used))
    }

    /// Returns true if the key's time of last use in the file is older than the one known to this process, by at least `step`.
    pub(super) fn is_written_behind(&self, step: Duration) -> bool {
        let written = self.written.load(Ordering::Relaxed);
        let since = self.used.load(Ordering::Relaxed).saturating_sub(written);
        since >= step.as_secs()
    }

    fn note_use(&self, now: SystemTime) {
        let now = seconds(now);
        let before = self.used.load(Ordering::Relaxed);
        if now >= before.saturating_add(USE_STEP_SECONDS) {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    /// Returns true if the key's record equals another one, except for the time of last use.
    fn is(&self, other: &KeyRecord) -> bool {
        let last_used = self.record.last_used;
        self.record
            == KeyRecord {
                last_used,
                ..other.clone()
            }
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

impl KeyTable {
    /// Finds the key with this text. Succeeds if the key is valid for this client at this time, and records the use.
    ///
    /// # Errors
    ///
    /// [`KeyRefusal`], which must not be revealed to clients.
    pub fn verify(
        &self,
        text: &[u8],
        client: IpAddr,
        now: SystemTime,
    ) -> Result<&Arc<ApiKey>, KeyRefusal> {
        let id = text::id_of(text).ok_or(KeyRefusal::Malformed)?;
        let key = self.keys.get(&id);
        // The text is hashed even if no key has the id, so that the response time does not reveal if the id exists.
        let salt = key.map_or([0; 16], |key| key.record.salt.0);
        let hash = record::hash(&salt, text);
        let key = key.ok_or(KeyRefusal::Unknown)?;
        if !key.record.hash.matches(&hash) {
            return Err(KeyRefusal::WrongSecret);
        }
        match key.record.state(now) {
            KeyState::Active => {}
            KeyState::Expired => return Err(KeyRefusal::Expired),
            KeyState::Revoked => return Err(KeyRefusal::Revoked),
        }
        let networks = &key.record.networks;
        if !networks.is_empty() && !networks.iter().any(|it| it.contains(client)) {
            return Err(KeyRefusal::Network);
        }
        key.note_use(now);
        Ok(key)
    }

    /// The key with this id, even if it is no longer valid.
    pub fn get(&self, id: KeyId) -> Option<&Arc<ApiKey>> {
        self.keys.get(&id)
    }

    /// All keys, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ApiKey>> {
        self.keys.values()
    }

    /// Principals with at least one key that is valid at the time `now`.
    pub fn principals(&self, now: SystemTime) -> HashSet<Arc<str>> {
        let active = self
            .iter()
            .filter(|key| key.record.state(now) == KeyState::Active);
        active.map(|key| Arc::clone(key.principal())).collect()
    }

    /// Number of keys in the table.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Compiles the records of a file. For unchanged keys, the compiled form in the table `before` is used again.
    ///
    /// # Errors
    ///
    /// Names the record with a name or pattern that the store would not have written.
    pub(super) fn compile(
        records: &[KeyRecord],
        scopes: &Arc<ScopeTable>,
        before: &Self,
    ) -> Result<Self, String> {
        let same_scopes = before.scopes == *scopes;
        let mut compiled = KeyCompiler {
            scopes: Arc::clone(scopes),
            ..KeyCompiler::default()
        };
        let mut keys = HashMap::with_capacity(records.len());
        for record in records {
            let old = before.keys.get(&record.id);
            let same = old.filter(|old| same_scopes && old.is(record));
            let used = record.last_used.map_or(0, seconds);
            let key = match same {
                Some(same) => {
                    same.used.fetch_max(used, Ordering::Relaxed);
                    same.written.store(used, Ordering::Relaxed);
                    Arc::clone(same)
                }
                None => {
                    let known = old.map_or(0, |old| old.used.load(Ordering::Relaxed));
                    Arc::new(compiled.key(record.clone(), known.max(used))?)
                }
            };
            keys.insert(key.record.id, key);
        }
        compiled.warn_of_unknown_scopes();
        Ok(Self {
            keys,
            scopes: Arc::clone(scopes),
        })
    }

    /// Returns true if a key that is valid in the table `before` is missing in this table or has changed.
    pub(super) fn takes_away_from(&self, before: &Self, now: SystemTime) -> bool {
        before.keys.iter().any(|(id, old)| {
            old.record.state(now) == KeyState::Active
                && self.keys.get(id).is_none_or(|new| !Arc::ptr_eq(old, new))
        })
    }
}

/// Compiled scopes and namespaces. While a table is compiled, keys with equal scopes or equal namespaces share them.
#[derive(Default)]
struct KeyCompiler {
    scopes: Arc<ScopeTable>,
    tools: HashMap<Vec<String>, Arc<ToolScope>>,
    namespaces: HashMap<Vec<String>, Arc<NamespaceScope>>,
    /// Id of a key with an unknown scope, the name of that scope, and the number of such keys.
    unknown: Option<(KeyId, String, usize)>,
}

impl KeyCompiler {
    fn key(&mut self, record: KeyRecord, used: u64) -> Result<ApiKey, String> {
        let told = |error: String| format!("key {}: {error}", record.id);
        record::check_name(&record.name).map_err(told)?;
        let namespaces = match self.namespaces.get(&record.namespaces) {
            Some(known) => Arc::clone(known),
            None => {
                let scope = NamespaceScope::new(&record.namespaces);
                let scope = Arc::new(scope.map_err(|error| told(format!("namespaces: {error}")))?);
                self.namespaces
                    .insert(record.namespaces.clone(), Arc::clone(&scope));
                scope
            }
        };
        Ok(ApiKey {
            principal: record.principal().into(),
            namespaces,
            grant: Arc::new(Grant {
                tools: self.tools(&record),
                source: GrantSource::Key {
                    id: record.id.as_str().into(),
                },
            }),
            limits: record.limits.as_slice().into(),
            used: used.into(),
            written: record.last_used.map_or(0, seconds).into(),
            record,
        })
    }

    /// The tools that a key's scopes allow. A scope that was removed from the configuration allows no tool; the key's remaining
    /// scopes stay valid.
    fn tools(&mut self, record: &KeyRecord) -> Arc<ToolScope> {
        if let Some(known) = self.tools.get(&record.scopes) {
            return Arc::clone(known);
        }
        let scopes = &self.scopes;
        let tools = scopes.compile(&record.scopes).unwrap_or_else(|error| {
            let (id, message) = (record.id, error.to_string());
            let entry = self.unknown.get_or_insert((id, message, 0));
            entry.2 += 1;
            let is_known = |name: &&String| scopes.names().any(|known| known == name.as_str());
            let known: Vec<_> = record.scopes.iter().filter(is_known).collect();
            let rest = scopes.compile(&known);
            rest.expect("scopes of these names exist")
        });
        let tools = Arc::new(tools);
        self.tools.insert(record.scopes.clone(), Arc::clone(&tools));
        tools
    }

    fn warn_of_unknown_scopes(&self) {
        if let Some((id, error, lists)) = &self.unknown {
            tracing::warn!(
                key = %id,
                %error,
                lists,
                "API keys have scopes that do not exist; these scopes open no tool"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tooldock_base::key_maker::KeyMaker;
    use tooldock_base::secret::Secret;

    use super::super::record::NewKey;
    use super::super::text::{self, KeyKind};
    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn made(count: usize) -> (Vec<KeyRecord>, Vec<Secret>) {
        let wanted = NewKey {
            name: "ci".into(),
            made_by: None,
            scopes: vec!["read".into()],
            namespaces: vec!["dev-*".into(), "github".into()],
            networks: Vec::new(),
            limits: Vec::new(),
            lifetime: None,
            kind: KeyKind::Gateway,
        };
        let now = SystemTime::now();
        (0..count)
            .map(|_| {
                let id = text::new_id().unwrap();
                let text = text::generate(KeyKind::Gateway, id).unwrap();
                let sent = text.expose().as_bytes();
                let record =
                    KeyRecord::new(id, wanted.clone(), &KeyMaker::Operator, sent, [7; 16], now);
                (record, text)
            })
            .unzip()
    }

    /// The time of a thousand checks, for people who run this with `--no-capture`.
    fn checked(table: &KeyTable, keys: &[Secret]) -> Duration {
        let started = Instant::now();
        for key in keys.iter().cycle().take(1000) {
            let found = table.verify(key.expose().as_bytes(), HERE, SystemTime::now());
            assert!(found.is_ok());
        }
        started.elapsed()
    }

    #[test]
    fn a_hundred_thousand_keys_share_what_is_compiled_and_a_change_compiles_only_what_changed() {
        let scopes = Arc::default();
        let (mut records, keys) = made(100_000);
        let started = Instant::now();
        let table = KeyTable::compile(&records, &scopes, &KeyTable::default()).unwrap();
        println!("compiled in {:?}", started.elapsed());
        let one = KeyTable::compile(&records[..1], &scopes, &KeyTable::default()).unwrap();
        println!("1,000 checks among 1: {:?}", checked(&one, &keys[..1]));
        println!("1,000 checks among 100,000: {:?}", checked(&table, &keys));

        let first = table.get(records[0].id).unwrap();
        for key in table.iter() {
            assert!(Arc::ptr_eq(&key.grant.tools, &first.grant.tools));
            assert!(Arc::ptr_eq(&key.namespaces, &first.namespaces));
        }
        records[5].revoked = Some(SystemTime::now());
        records[6].last_used = Some(SystemTime::now());
        let started = Instant::now();
        let next = KeyTable::compile(&records, &scopes, &table).unwrap();
        println!("compiled again in {:?}", started.elapsed());
        let again = |at: usize| {
            let id = records[at].id;
            Arc::ptr_eq(table.get(id).unwrap(), next.get(id).unwrap())
        };
        assert!(again(4) && !again(5) && again(6));
        assert!(next.takes_away_from(&table, SystemTime::now()));
        assert!(!table.takes_away_from(&table, SystemTime::now()));
        let refused = next.verify(keys[5].expose().as_bytes(), HERE, SystemTime::now());
        assert_eq!(refused.err(), Some(KeyRefusal::Revoked));
    }
}
