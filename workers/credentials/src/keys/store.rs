//! The store of API keys: one file, which every gateway process reads and one process at a time changes.
//!
//! A change acquires the lock, reads the file again, replaces it, and publishes the new table in this process. Then it waits
//! until the running gateways confirm that they have read the new file (`readers.rs`), so that the change is in force
//! everywhere when the function returns.
//!
//! All methods block, and must be called where blocking is allowed.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tooldock_base::file_lock::FileLock;
use tooldock_base::key_maker::{KeyId, KeyMaker};
use tooldock_base::scope::ScopeTable;
use tooldock_base::secret::Secret;

use super::credential::{self, KeyMakers};
use super::error::KeysError;
use super::file::{self, Stamp};
use super::lineage;
use super::readers;
use super::record::{KeyRecord, NewKey, whole_seconds};
use super::table::{KeyTable, KeyTables};
use super::text;

/// Maximum time that a writer waits for the lock while another writer holds it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum size of a file of keys that is read while a request waits, in bytes: about a thousand keys.
const LOOK_BYTES: u64 = 512 * 1024;

/// Maximum number of keys in the file, including those that became invalid in the last 90 days.
const KEYS_MAX: usize = 200_000;

/// Time after which an expired or revoked key is removed from the file.
const HISTORY: Duration = Duration::from_secs(90 * 24 * 3600);

/// Maximum delay until a key's last use is written to the file: each key causes at most one write in this time.
const USE_BEHIND: Duration = Duration::from_secs(3600);

/// The API keys of a file, with the tables against which requests are checked.
#[derive(Debug)]
pub struct KeyStore {
    path: PathBuf,
    tables: KeyTables,
    /// Lock held while the file is read and its table published, so that an older table never replaces a newer one. Never held
    /// across an await.
    state: Mutex<KeyStoreState>,
    losses: watch::Sender<u64>,
    changes: watch::Sender<()>,
    patience: Duration,
    /// Number of running gateways that did not confirm the last change in time.
    behind: AtomicUsize,
    /// Number of running gateways that confirmed the last change.
    confirmed: AtomicUsize,
}

#[derive(Debug)]
struct KeyStoreState {
    scopes: Arc<ScopeTable>,
    /// Entries of the configuration that may create keys; `None` if the configuration is unknown, and then no key that such an
    /// entry created is valid.
    makers: Option<KeyMakers>,
    /// Stamp (metadata that identify a version) of the file of keys that was read last, whether or not it could be used.
    seen: Option<Stamp>,
    /// Stamp (metadata that identify a version) of the last file of keys that could not be used, so that each is logged once.
    unusable: Option<Stamp>,
    /// True if the times of last use could not be written; the failure is then not logged again.
    uses_unwritten: bool,
}

impl KeyStoreState {
    /// Marks keys as revoked if the entry of the configuration that created them does not cover them; keys that a marked key
    /// created are marked, too. The file is not changed, since an entry may be added again.
    fn end_keys(&self, records: &mut [KeyRecord]) {
        let ended = match &self.makers {
            Some(makers) => makers.end_keys(records),
            None => KeyMakers::default().end_keys(records),
        };
        if ended {
            lineage::settle(records);
        }
    }
}

/// A newly created key. Only this value contains the key's text.
#[derive(Debug)]
pub struct MadeKey {
    /// The key's record in the file.
    pub record: KeyRecord,
    /// The text of the key, which its owner sends with requests.
    pub text: Secret,
}

impl KeyStore {
    /// Opens the store and reads the keys of the file. If the file is missing, there are no keys.
    ///
    /// # Errors
    ///
    /// When the file is damaged or cannot be read. A process that started without the keys would refuse their owners.
    pub fn open(path: PathBuf, scopes: ScopeTable) -> Result<Self, KeysError> {
        let store = Self {
            path,
            tables: KeyTables::default(),
            state: Mutex::new(KeyStoreState {
                scopes: Arc::new(scopes),
                makers: None,
                seen: None,
                unusable: None,
                uses_unwritten: false,
            }),
            losses: watch::Sender::new(0),
            changes: watch::Sender::new(()),
            patience: PATIENCE,
            behind: AtomicUsize::new(0),
            confirmed: AtomicUsize::new(0),
        };
        let (records, stamp) = file::read(&store.path)?;
        let mut state = store.state();
        let table = store.compiled(&state, &records)?;
        store.publish(&mut state, table, stamp);
        drop(state);
        Ok(store)
    }

    /// Path of the file of keys.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tables against which requests are checked.
    pub fn tables(&self) -> KeyTables {
        self.tables.clone()
    }

    /// The scopes that a new key may have.
    pub fn scopes(&self) -> Arc<ScopeTable> {
        Arc::clone(&self.state().scopes)
    }

    /// Channel whose value changes whenever any process has revoked or removed valid keys, or reduced their rights. Callers whose
    /// admission lasts longer than a request must then be admitted again.
    pub fn losses(&self) -> watch::Receiver<u64> {
        self.losses.subscribe()
    }

    /// Channel that is notified whenever a new table of keys is in force.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Creates a key for the operator. The key is valid when the function returns.
    ///
    /// # Errors
    ///
    /// When a field is not valid, for example an unknown scope, or when the file cannot be read or written. Nothing is then
    /// changed.
    pub fn create(&self, wanted: NewKey) -> Result<MadeKey, KeysError> {
        self.create_for(&KeyMaker::Operator, wanted)
    }

    /// Creates a key on behalf of another key. The new key has no more rights than its creator and becomes invalid with it.
    ///
    /// # Errors
    ///
    /// As [`KeyStore::create`]; when the creator is no longer valid, or the new key would have more rights than its creator.
    pub fn create_by(&self, maker: KeyId, wanted: NewKey) -> Result<MadeKey, KeysError> {
        self.create_for(&KeyMaker::Key(maker), wanted)
    }

    /// Creates a key on behalf of a caller. The new key has no more rights than its creator, becomes invalid with it, and its
    /// name is preceded by the creator's. A key of the operator is created as requested.
    ///
    /// # Errors
    ///
    /// As [`KeyStore::create_by`]; when the caller may not create keys.
    pub fn create_for(&self, maker: &KeyMaker, mut wanted: NewKey) -> Result<MadeKey, KeysError> {
        wanted.check().map_err(KeysError::Invalid)?;
        let mut state = self.state();
        let known = state.scopes.compile(&wanted.scopes);
        known.map_err(|error| KeysError::Invalid(format!("scopes: {error}")))?;
        let lock = self.lock("keys create")?;
        let (mut records, _) = file::read(&self.path)?;
        let now = SystemTime::now();
        wanted = match maker {
            KeyMaker::Operator => wanted,
            KeyMaker::Key(id) => {
                let mut records = records.clone();
                state.end_keys(&mut records);
                let found = records.iter().find(|record| record.id == *id);
                let found = found.ok_or(KeysError::NoSuchKey(*id))?;
                lineage::within(wanted, found, &records, now).map_err(KeysError::Invalid)?
            }
            KeyMaker::Credential(it) => {
                credential::within(wanted, it, now).map_err(KeysError::Invalid)?
            }
            KeyMaker::Barred(reason) => return Err(KeysError::Invalid((*reason).to_owned())),
        };
        wanted.check().map_err(KeysError::Invalid)?;
        records.retain(|record| !record.is_history(now, HISTORY));
        if records.len() >= KEYS_MAX {
            return Err(KeysError::TooMany(KEYS_MAX));
        }
        let mut id = text::new_id()?;
        while records.iter().any(|record| record.id == id) {
            id = text::new_id()?;
        }
        let text = text::generate(wanted.kind, id)?;
        let mut salt = [0; 16];
        getrandom::fill(&mut salt)?;
        let record = KeyRecord::new(id, wanted, maker, text.expose().as_bytes(), salt, now);
        records.push(record.clone());
        self.write(&mut state, &records)?;
        // The locks are released before the notification: all gateways, including this process, then read the file.
        drop(lock);
        drop(state);
        self.await_gateways();
        Ok(MadeKey { record, text })
    }

    /// Revokes a key, all keys that it created, and in turn all keys that those created. When the function returns, requests with
    /// them are refused. A key that is already revoked is not changed.
    ///
    /// # Errors
    ///
    /// When there is no such key, or the file cannot be read or written.
    pub fn revoke(&self, id: KeyId) -> Result<KeyRecord, KeysError> {
        let mut state = self.state();
        let lock = self.lock("keys revoke")?;
        let (mut records, _) = file::read(&self.path)?;
        let record = records.iter_mut().find(|record| record.id == id);
        let record = record.ok_or(KeysError::NoSuchKey(id))?;
        if record.revoked.is_some() {
            return Ok(record.clone());
        }
        record.revoked = Some(whole_seconds(SystemTime::now()));
        let revoked = record.clone();
        lineage::settle(&mut records);
        self.write(&mut state, &records)?;
        drop(lock);
        drop(state);
        self.await_gateways();
        Ok(revoked)
    }

    /// The number of running gateways that did not confirm the last change in time. They detect it within a second, when they
    /// check the file.
    pub fn gateways_behind(&self) -> usize {
        self.behind.load(Ordering::Relaxed)
    }

    /// Returns true if at least one running gateway confirmed the last change.
    pub fn has_running_gateway(&self) -> bool {
        self.confirmed.load(Ordering::Relaxed) > 0
    }

    fn await_gateways(&self) {
        let readers::NotifiedGateways { confirmed, behind } = readers::await_readers(&self.path);
        self.confirmed.store(confirmed, Ordering::Relaxed);
        self.behind.store(behind, Ordering::Relaxed);
        if behind > 0 {
            tracing::warn!(
                gateways = behind,
                "{}: gateways did not say in time that they go by the change of API keys",
                self.path.display()
            );
        }
    }

    /// All keys, oldest first. A key's time of last use is the later of the time in the file and the time known to this process.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn list(&self) -> Result<Vec<KeyRecord>, KeysError> {
        let (mut records, _) = file::read(&self.path)?;
        self.state().end_keys(&mut records);
        let table = self.tables.load();
        for record in &mut records {
            let known = table.get(record.id).and_then(|key| key.last_used());
            record.last_used = record.last_used.max(known);
        }
        records.sort_by_key(|record| (record.created, record.id));
        Ok(records)
    }

    /// Applies changes of other processes. If the file cannot be read, this is logged once, and the previous keys remain in
    /// force.
    pub fn refresh(&self) {
        let mut state = self.state();
        let stamp = Stamp::of(&self.path);
        if stamp != state.seen {
            self.read_again(&mut state, stamp);
        }
    }

    /// Reads the file because a writer announced a change, even if the file's metadata are unchanged.
    pub(super) fn reread(&self) {
        let mut state = self.state();
        let stamp = Stamp::of(&self.path);
        self.read_again(&mut state, stamp);
    }

    /// Checks the file because a request has an unknown key id. Returns true if the file had changed and was read. Does not wait
    /// for a lock, and does not read large files: [`KeyStore::follow`] reads these.
    pub(super) fn look_for_request(&self) -> bool {
        let Ok(mut state) = self.state.try_lock() else {
            return false;
        };
        let stamp = Stamp::of(&self.path);
        let is_small = stamp.is_some_and(|it| it.is_within(LOOK_BYTES));
        if stamp == state.seen || !is_small {
            return false;
        }
        self.read_again(&mut state, stamp);
        true
    }

    fn read_again(&self, state: &mut KeyStoreState, stamp: Option<Stamp>) {
        let was_there = state.seen.is_some() || !self.tables.load().is_empty();
        // The stamp is stored before the file is read: an unusable file is logged once, and read again only when it changes.
        state.seen = stamp;
        let path = self.path.display();
        let read = file::read(&self.path);
        if !was_there && matches!(read, Ok((_, None))) {
            // The file still does not exist, so no key was created yet, and there is no change to publish. A gateway gets
            // here while it starts, since it can be notified of changes before it has read the file.
            return;
        }
        let published = read.and_then(|(records, stamp)| {
            if stamp.is_none() {
                tracing::warn!("{path}: is gone: no API key counts until there is one again");
            }
            let table = self.compiled(state, &records)?;
            self.publish(state, table, stamp);
            Ok(())
        });
        match published {
            Ok(()) => {
                state.unusable = None;
                tracing::info!(
                    keys = self.tables.load().len(),
                    "{path}: API keys read again"
                );
            }
            Err(_) if state.unusable.is_some() && state.unusable == stamp => {}
            Err(error) => {
                state.unusable = stamp;
                tracing::error!(%error, "the API keys of before stay in force");
            }
        }
    }

    /// Replaces the table of scopes, and compiles all keys with it.
    pub fn set_scopes(&self, scopes: ScopeTable) {
        let mut state = self.state();
        if *state.scopes == scopes {
            return;
        }
        state.scopes = Arc::new(scopes);
        let table = self.tables.snapshot();
        let records: Vec<_> = table.iter().map(|key| key.record().clone()).collect();
        // Cannot fail: all records were compiled before, and scopes cannot make a record unusable.
        match self.compiled(&state, &records) {
            Ok(table) => {
                let seen = state.seen;
                self.publish(&mut state, table, seen);
            }
            Err(error) => tracing::error!(%error, "the API keys of before stay in force"),
        }
    }

    /// Sets the configuration entries (tokens, client certificates, issuers) whose credentials may create API keys. From now on,
    /// a key that such a credential created is valid only while its entry is among them, unchanged, and allows the key's
    /// namespaces.
    pub fn set_makers(&self, makers: KeyMakers) {
        let mut state = self.state();
        if state.makers.as_ref() == Some(&makers) {
            return;
        }
        state.makers = Some(makers);
        // The records are read from the file: in the table, a key whose entry was removed looks like a revoked key.
        let read = file::read(&self.path).or_else(|error| {
            tracing::error!(%error, "the API keys of before stay in force");
            let table = self.tables.snapshot();
            let records = table.iter().map(|key| key.record().clone()).collect();
            Ok::<_, KeysError>((records, state.seen))
        });
        let published = read.and_then(|(records, stamp)| {
            let table = self.compiled(&state, &records)?;
            self.publish(&mut state, table, stamp);
            Ok(())
        });
        if let Err(error) = published {
            tracing::error!(%error, "the API keys of before stay in force");
        }
    }

    /// Writes the times of last use of all keys, if the times in the file are far out of date.
    pub fn write_uses(&self) {
        let table = self.tables.snapshot();
        let behind = |record: &KeyRecord| {
            let used = table.get(record.id)?.last_used()?;
            let is_behind = record.last_used.is_none_or(|known| {
                used.duration_since(known)
                    .is_ok_and(|since| since >= USE_BEHIND)
            });
            is_behind.then_some(used)
        };
        if !table.iter().any(|key| key.is_written_behind(USE_BEHIND)) {
            return;
        }
        let mut state = self.state();
        let written = self.lock("keys in use").and_then(|_lock| {
            let (mut records, _) = file::read(&self.path)?;
            let mut changed = false;
            for record in &mut records {
                if let Some(used) = behind(record) {
                    record.last_used = Some(used);
                    changed = true;
                }
            }
            match changed {
                true => self.write(&mut state, &records),
                false => Ok(()),
            }
        });
        match written {
            Ok(()) => state.uses_unwritten = false,
            Err(error) if !state.uses_unwritten => {
                state.uses_unwritten = true;
                tracing::warn!(%error, "when API keys were used last cannot be written; they count all the same");
            }
            Err(_) => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, KeyStoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self, purpose: &str) -> Result<FileLock, KeysError> {
        let told = |source| KeysError::Io {
            doing: "make the folder of",
            path: self.path.clone(),
            source,
        };
        // The folder may not exist yet: the first key may be created before the gateway is started for the first time.
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(told)?;
        }
        let mut lock = self.path.clone().into_os_string();
        lock.push(".lock");
        let lock = FileLock::take(Path::new(&lock), purpose, self.patience)?;
        file::remove_unfinished(&self.path);
        Ok(lock)
    }

    /// Replaces the file and publishes the new table. The caller must hold the lock.
    fn write(&self, state: &mut KeyStoreState, records: &[KeyRecord]) -> Result<(), KeysError> {
        // The records are compiled first, so that a file that no process could use is never written.
        let table = self.compiled(state, records)?;
        file::write(&self.path, records)?;
        self.publish(state, table, Stamp::of(&self.path));
        Ok(())
    }

    fn compiled(
        &self,
        state: &KeyStoreState,
        records: &[KeyRecord],
    ) -> Result<KeyTable, KeysError> {
        let mut records = Cow::Borrowed(records);
        if records.iter().any(|record| record.credential.is_some()) {
            state.end_keys(records.to_mut());
        }
        let table = KeyTable::compile(&records, &state.scopes, &self.tables.load());
        table.map_err(|reason| KeysError::Damaged {
            path: self.path.clone(),
            reason,
        })
    }

    fn publish(&self, state: &mut KeyStoreState, table: KeyTable, stamp: Option<Stamp>) {
        let lost = table.takes_away_from(&self.tables.load(), SystemTime::now());
        self.tables.publish(table);
        state.seen = stamp;
        self.changes.send_replace(());
        if lost {
            // The loss is announced only after the new table is in force, since callers are then admitted again with that table.
            self.losses.send_modify(|count| *count += 1);
        }
    }
}

#[cfg(test)]
mod tests;
