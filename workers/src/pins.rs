//! Pinned definitions: tools, prompts and resource templates of servers as they were first listed, later changes of them, and
//! the operator's decisions about the changes.
//!
//! ```text
//!   page of a list ──▶ NamespacePins::judge ──▶ which entries are shown
//!                            │ sightings
//!                            ▼
//!                          Pins ──▶ pins.json (one writer)          ◀── tooldock pins approve, forget
//! ```
//!
//! | file | content |
//! |---|---|
//! | `definition.rs` | the canonical form of a definition, and its digest |
//! | `findings.rs` | search for text that is invisible to people, or addressed to models |
//! | `difference.rs` | the difference of two definitions, as text |
//! | `record.rs` | the records, and the rules by which a sighting changes them |
//! | `judge.rs` | the pins of one namespace: which entries of a page are shown |
//! | `file.rs` | reading and replacing `pins.json` |
//! | `report.rs` | records in the form that operators see |
//!
//! A sighting is a definition that a server listed. Sightings change the records in memory and are written at most every two
//! seconds, so that a server that keeps changing its tools causes few writes. Decisions of operators are written before they are
//! confirmed. Both are applied to the file's current content, because several gateways may share the file. A file that cannot be
//! read is never replaced; until it can be read, no definition is approved.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use tooldock_base::config::PinMode;
use tooldock_base::names::NamespaceName;

mod definition;
mod difference;
mod file;
mod findings;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod judge;
mod record;
mod report;
#[cfg(test)]
mod tests;

pub use difference::Difference;
pub use findings::{DEFINITION_MAX, Finding};
pub use judge::{Judgement, ListPage, NamespacePins, PageEntry};
pub use record::{Approval, PinKind, PinState};
use report::ShapeIndex;
pub use report::{Pin, PinCounts, PinVersion};

use file::{PinsFile, Stamp};
use record::{
    NAME_MAX, NAMES_MAX, PinFile, Seen, Sighting, SightingOutcome, Unwritten, VERSIONS_MAX,
};

/// Name of the pins' file in the data directory.
pub const PINS_FILE: &str = "pins.json";
/// Minimum time between two writes of sightings to the file.
const WRITE_EVERY: Duration = Duration::from_secs(2);
/// Interval at which the file is checked for changes by other gateways.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of changes of one namespace's definitions that are reported within [`EVENT_WINDOW`]; further ones are only
/// recorded.
const EVENTS_MAX: u32 = 50;
/// Period within which the reported changes of a namespace's definitions are counted.
const EVENT_WINDOW: Duration = Duration::from_secs(600);

/// A change of a pinned definition, reported to the log, the audit log and other observers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinEvent {
    /// The namespace of the server.
    pub namespace: NamespaceName,
    /// Kind of the definition.
    pub kind: PinKind,
    /// Name of the definition, shortened and without invisible characters.
    pub name: String,
    /// State of the definition after the change.
    pub state: PinState,
    /// Digest of the version that the server listed.
    pub digest: String,
    /// True if the definition is hidden from clients until it is approved.
    pub hidden: bool,
}

/// Observer of changes of pinned definitions.
pub type PinObserver = Box<dyn Fn(&PinEvent) + Send + Sync>;

/// Reason why an operator's decision was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum PinsError {
    /// The pins' file cannot be read or written.
    #[error("{0}")]
    File(String),
}

/// The pins of all namespaces.
pub struct Pins {
    /// The pins' file; `None` if the records are kept only in memory.
    file: Option<PinsFile>,
    state: Mutex<PinsState>,
    /// Pins by namespace. An entry is never removed: there is one for each server served since the process started.
    namespaces: Mutex<HashMap<NamespaceName, Arc<NamespacePins>>>,
    /// Namespaces for which an operator or another gateway has decided about definitions, and that were not announced yet.
    decided: Mutex<BTreeSet<NamespaceName>>,
    /// Wakes the task that announces decisions of operators.
    has_decided: Notify,
    /// Wakes the task that writes the file.
    has_news: Notify,
    observer: OnceLock<PinObserver>,
}

struct PinsState {
    records: PinFile,
    /// Stamp (metadata that identify a version of the file) of the file from which `records` were read.
    stamp: Option<Stamp>,
    /// Reason why the file cannot be read; sightings are then kept only in memory. `None` if it can be read.
    unreadable: Option<String>,
    /// Reason why the last write of the file failed; `None` after a successful write.
    unwritten: Option<String>,
    /// Sightings that were not written to the file yet.
    waiting: Unwritten,
    /// Number of events reported by namespace, each with the start of the period in which they are counted.
    told: HashMap<NamespaceName, (Instant, u32)>,
    /// Index of the recorded names by shape, to find names that look alike; `None` if it must be built again.
    shapes: Option<ShapeIndex>,
    /// Namespaces for which no more definitions can be recorded. Remembered so that each is logged only once.
    full: HashSet<NamespaceName>,
}

impl PinsState {
    /// Logs that the first list of a server is completely recorded, which approves its definitions without an operator.
    fn log_first_list(&self, end: &Sighting) {
        let own = self.records.namespaces.get(&end.namespace);
        let list = own.and_then(|it| it.lists.get(&end.kind));
        if let (Seen::PageEnd { .. }, Some(list)) = (&end.what, list.filter(|it| it.complete)) {
            tracing::info!(
                namespace = end.namespace,
                "the first list of {}s of the server of namespace {} is recorded: its {} definitions are approved, but for \
                 suspicious ones",
                end.kind.as_str(),
                end.namespace,
                list.entries.len()
            );
        }
    }
}

impl Pins {
    /// Opens the pins' file of a data directory. If the file cannot be read, [`Pins::problem`] returns the reason.
    pub fn open(path: PathBuf) -> Arc<Self> {
        let pins = Self::new(Some(PinsFile::new(path)));
        pins.look();
        pins
    }

    /// Creates pins that are kept only in memory.
    pub fn in_memory() -> Arc<Self> {
        Self::new(None)
    }

    fn new(file: Option<PinsFile>) -> Arc<Self> {
        Arc::new(Self {
            file,
            state: Mutex::new(PinsState {
                records: PinFile::default(),
                stamp: None,
                unreadable: None,
                unwritten: None,
                waiting: Unwritten::default(),
                told: HashMap::new(),
                shapes: None,
                full: HashSet::new(),
            }),
            namespaces: Mutex::default(),
            decided: Mutex::default(),
            has_decided: Notify::new(),
            has_news: Notify::new(),
            observer: OnceLock::new(),
        })
    }

    /// Sets the observer of changes. Only the first call has an effect.
    pub fn observe(&self, observer: PinObserver) {
        let _ = self.observer.set(observer);
    }

    /// Returns the pins of a namespace, and creates them if necessary.
    pub fn of(self: &Arc<Self>, name: &NamespaceName) -> Arc<NamespacePins> {
        let mut all = lock(&self.namespaces);
        if let Some(own) = all.get(name) {
            return Arc::clone(own);
        }
        let waiting = self.waiting(name);
        let own = Arc::new(NamespacePins::new(name.clone(), Arc::clone(self), waiting));
        all.insert(name.clone(), Arc::clone(&own));
        own
    }

    /// Returns the pins of a namespace that has been served; `None` for other names.
    pub fn known(&self, name: &NamespaceName) -> Option<Arc<NamespacePins>> {
        lock(&self.namespaces).get(name).cloned()
    }

    /// Reason why the file cannot be read or written, with the remedy; `None` if there is no problem.
    pub fn problem(&self) -> Option<String> {
        let state = self.state();
        state.unreadable.clone().or_else(|| state.unwritten.clone())
    }

    /// Writes sightings and reads changes of other gateways, for as long as the process runs.
    pub async fn run(self: Arc<Self>) {
        let mut written = tokio::time::Instant::now();
        loop {
            let is_news = tokio::time::timeout(LOOK_EVERY, self.has_news.notified())
                .await
                .is_ok();
            if is_news {
                tokio::time::sleep_until(written + WRITE_EVERY).await;
            }
            let pins = Arc::clone(&self);
            let done = tokio::task::spawn_blocking(move || pins.settle());
            let _ = done.await;
            if is_news {
                written = tokio::time::Instant::now();
            }
        }
    }

    /// Reads changes of other gateways, and writes the sightings that are not in the file. Blocks.
    pub fn settle(&self) {
        self.look();
        let has_work = {
            let state = self.state();
            !state.waiting.is_empty() || state.unwritten.is_some()
        };
        if has_work {
            // A failure is logged by `write`, and returned by `problem` until a later write succeeds.
            let _ = self.write(|_| ());
        }
    }

    /// Waits for new decisions, and returns the names of their namespaces.
    pub async fn decisions(&self) -> BTreeSet<NamespaceName> {
        loop {
            let decided = std::mem::take(&mut *lock(&self.decided));
            if !decided.is_empty() {
                return decided;
            }
            self.has_decided.notified().await;
        }
    }

    /// Approves the unapproved version of each definition of a namespace, or only of the definition `name`. `digest` selects the
    /// version whose digest begins with it. A definition with several matching versions is skipped; if `name` is given, nothing
    /// is approved in that case. Blocks until the file is written.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or written.
    pub fn approve(
        &self,
        namespace: &NamespaceName,
        name: Option<&str>,
        digest: Option<&str>,
    ) -> Result<Approval, PinsError> {
        let done = self.write(|records| records.approve(namespace.as_str(), name, digest))?;
        if !done.approved.is_empty() {
            self.judge_anew([namespace]);
            self.decide([namespace.clone()]);
        }
        Ok(done)
    }

    /// Removes the records of a namespace, or only those with the name `name`. Returns the removed names. Blocks until the file
    /// is written.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or written.
    pub fn forget(
        &self,
        namespace: &NamespaceName,
        name: Option<&str>,
    ) -> Result<Vec<(PinKind, String)>, PinsError> {
        let dropped = self.write(|records| records.forget(namespace.as_str(), name))?;
        if !dropped.is_empty() {
            self.judge_anew([namespace]);
            self.decide([namespace.clone()]);
        }
        Ok(dropped)
    }

    /// Announces a decision about these namespaces, so that their lists are judged again. Namespaces in which pins are not
    /// enforced are skipped: decisions do not change the lists that clients see there.
    fn decide(&self, names: impl IntoIterator<Item = NamespaceName>) {
        let mut is_announced = false;
        for name in names {
            let pins = self.known(&name);
            let Some(pins) = pins.filter(|it| it.mode() == PinMode::Enforce) else {
                continue;
            };
            pins.decided();
            lock(&self.decided).insert(name);
            is_announced = true;
        }
        if is_announced {
            self.has_decided.notify_one();
        }
    }

    /// Discards remembered judgements of these namespaces' lists, so that the next list is recorded as if it had not been seen.
    fn judge_anew<'a>(&self, names: impl IntoIterator<Item = &'a NamespaceName>) {
        for pins in names.into_iter().filter_map(|name| self.known(name)) {
            pins.forget_pages();
        }
    }

    /// The names of all namespaces that have been served.
    fn served(&self) -> Vec<NamespaceName> {
        lock(&self.namespaces).keys().cloned().collect()
    }

    /// Reads the file again if it has changed.
    fn look(&self) {
        let Some(file) = &self.file else { return };
        let stamp = file.stamp();
        {
            let state = self.state();
            // A file that was removed while it was readable is not read: the next write creates it again from memory.
            let is_same = stamp == state.stamp || stamp.is_none() && state.unreadable.is_none();
            if is_same {
                return;
            }
        }
        let read = file.read();
        let mut state = self.state();
        match read {
            Ok((records, stamp)) => {
                let is_back = state.unreadable.take().is_some();
                if is_back {
                    let path = file.path().display();
                    match stamp.is_some() {
                        true => tracing::info!("{path} can be read again"),
                        false => tracing::warn!(
                            "{path} is gone: the next list of each server counts as its first one"
                        ),
                    }
                }
                state.shapes = None;
                let before = std::mem::replace(&mut state.records, records);
                state.stamp = stamp;
                state.see_waiting();
                let dropped = namespaces(&before, &state.records, PinFile::drops);
                let decided = namespaces(&before, &state.records, PinFile::decides);
                drop(state);
                self.judge_anew(&dropped);
                self.decide(match is_back {
                    // While the file was unreadable, every definition counted as unapproved, so all lists must be judged again.
                    true => self.served(),
                    false => decided,
                });
            }
            Err(problem) => {
                // The unreadable file's stamp (its metadata) is stored, so that the file is not read again before it changes.
                state.stamp = stamp;
                if state.unreadable.as_ref() != Some(&problem) {
                    tracing::error!("{problem}");
                    let first = state.unreadable.replace(problem).is_none();
                    drop(state);
                    if first {
                        // No definition counts as approved any more, so all lists must be judged again.
                        self.decide(self.served());
                    }
                }
            }
        }
    }

    /// Writes the records to the file, after adding the unwritten sightings and applying `change`. The file is not written if its
    /// content would stay the same.
    fn write<T>(&self, change: impl FnOnce(&mut PinFile) -> T) -> Result<T, PinsError> {
        let Some(file) = &self.file else {
            let mut state = self.state();
            state.waiting = Unwritten::default();
            return Ok(change(&mut state.records));
        };
        let failed = |problem: String| PinsError::File(problem);
        {
            let state = self.state();
            if let Some(problem) = &state.unreadable {
                return Err(failed(problem.clone()));
            }
        }
        let lock = file.lock().map_err(|error| self.cannot_write(error))?;
        // The file is read again first, because another gateway may have written it.
        self.look();
        let mut state = self.state();
        if let Some(problem) = &state.unreadable {
            return Err(failed(problem.clone()));
        }
        state.shapes = None;
        let before = state.records.clone();
        let changed = change(&mut state.records);
        let is_changed = before != state.records;
        if !is_changed && state.waiting.is_empty() && state.unwritten.is_none() {
            return Ok(changed);
        }
        let written = std::mem::take(&mut state.waiting);
        let records = state.records.clone();
        drop(state);
        let outcome = file.replace(&records);
        drop(lock);
        let mut state = self.state();
        match outcome {
            Ok(stamp) => {
                state.stamp = stamp;
                if state.unwritten.take().is_some() {
                    tracing::info!("{} is written again", file.path().display());
                }
                Ok(changed)
            }
            Err(error) => {
                // A decision that could not be written is undone in memory, since it would be lost at the next start.
                let later = std::mem::replace(&mut state.waiting, written);
                state.waiting.append(later);
                if is_changed {
                    state.records = before;
                    state.see_waiting();
                }
                drop(state);
                Err(self.cannot_write(error))
            }
        }
    }

    fn cannot_write(&self, error: String) -> PinsError {
        let mut state = self.state();
        if state.unwritten.as_ref() != Some(&error) {
            tracing::error!("{error}");
            state.unwritten = Some(error.clone());
        }
        PinsError::File(error)
    }

    /// Records a sighting in memory, and wakes the task that writes the file. Returns true if the listed version may be shown to
    /// clients where pins are enforced.
    fn see(&self, name: &NamespaceName, sighting: Sighting, hides: bool) -> bool {
        let mut state = self.state();
        let is_unreadable = state.unreadable.is_some();
        let before = match &sighting.what {
            Seen::Definition { name, version } => {
                let entry = state
                    .records
                    .entry(&sighting.namespace, sighting.kind, name);
                entry.is_some_and(|it| it.knows(&version.digest))
            }
            Seen::PageEnd { .. } => false,
        };
        let outcome = state.records.see(&sighting);
        let is_new = !before && outcome.is_recorded();
        if let (Seen::Definition { name, .. }, Some(shapes)) = (&sighting.what, &mut state.shapes)
            && is_new
        {
            shapes.add(&sighting.namespace, sighting.kind, name);
        }
        if is_new {
            state.waiting.push(sighting.clone());
            self.has_news.notify_one();
            state.log_first_list(&sighting);
        }
        let Seen::Definition {
            name: entry,
            version,
        } = &sighting.what
        else {
            return true;
        };
        if outcome == SightingOutcome::Full && state.full.insert(name.clone()) {
            tracing::warn!(
                namespace = %name,
                "the server of namespace {name} has more than {NAMES_MAX} definitions, or a name of more than {NAME_MAX} bytes: \
                 {} {:?} and further ones are not recorded",
                sighting.kind.as_str(),
                judge::short(entry)
            );
        }
        let reported = match outcome {
            SightingOutcome::Pending(reported) if !before => Some(reported),
            _ => None,
        };
        let is_told = reported.is_some()
            && {
                let (since, count) = state
                    .told
                    .entry(name.clone())
                    .or_insert((Instant::now(), 0));
                if since.elapsed() > EVENT_WINDOW {
                    (*since, *count) = (Instant::now(), 0);
                }
                *count = count.saturating_add(1);
                if *count == EVENTS_MAX + 1 {
                    tracing::warn!(
                        namespace = %name,
                        "the server of namespace {name} changes its definitions all the time: further changes are recorded, and not \
                         logged for {} minutes",
                        EVENT_WINDOW.as_secs() / 60
                    );
                }
                *count <= EVENTS_MAX
            };
        let findings = version.findings.clone();
        let entry_record = state
            .records
            .entry(&sighting.namespace, sighting.kind, entry);
        let differences = entry_record
            .filter(|_| is_told)
            .and_then(|it| it.differences());
        if !before && reported.is_some() && entry_record.is_some_and(|it| it.is_varying()) {
            tracing::warn!(
                namespace = %name,
                "{} {:?} of the server of namespace {name} has had more than {VERSIONS_MAX} versions: it varies, and further \
                 versions are neither recorded nor reported until a version is approved or the record is forgotten (tooldock \
                 pins)",
                sighting.kind.as_str(),
                judge::short(entry)
            );
        }
        drop(state);
        if let (Some(reported), true) = (reported, is_told) {
            let event = PinEvent {
                namespace: name.clone(),
                kind: sighting.kind,
                name: judge::short(entry),
                state: reported,
                digest: version.digest.clone(),
                hidden: hides,
            };
            let argument = judge::argument(entry);
            report::log(
                &event,
                argument.as_deref(),
                &findings,
                differences.as_deref(),
            );
            if let Some(observer) = self.observer.get() {
                observer(&event);
            }
        }
        if let SightingOutcome::Recorded { first: false } = outcome {
            tracing::info!(
                namespace = %name,
                "{} {:?} of the server of namespace {name} is new, and recorded",
                sighting.kind.as_str(),
                judge::short(entry)
            );
        }
        // While the file cannot be read, the recorded approvals are unknown, so no definition counts as approved.
        !is_unreadable
            && matches!(
                outcome,
                SightingOutcome::Known | SightingOutcome::Recorded { .. }
            )
    }

    fn state(&self) -> MutexGuard<'_, PinsState> {
        lock(&self.state)
    }
}

impl PinsState {
    /// Applies the unwritten sightings to the records.
    fn see_waiting(&mut self) {
        for sighting in self.waiting.iter() {
            self.records.see(sighting);
        }
    }
}

/// The namespaces for which `differ` returns true when it is called with both contents of the file.
fn namespaces(
    before: &PinFile,
    after: &PinFile,
    differ: impl Fn(&PinFile, &PinFile, &str) -> bool,
) -> Vec<NamespaceName> {
    let names = before.namespaces.keys().chain(after.namespaces.keys());
    let names: BTreeSet<&String> = names.collect();
    let changed = names.into_iter().filter(|it| differ(before, after, it));
    changed.filter_map(|name| server_name(name)).collect()
}

/// Converts a name in records or in an operator's command to a namespace. A server that belongs only to an aggregate has the name
/// `AGGREGATE.LABEL`; clients cannot address such a namespace.
pub fn server_name(text: &str) -> Option<NamespaceName> {
    match text.split_once('.') {
        Some((aggregate, label)) => {
            let aggregate: NamespaceName = aggregate.parse().ok()?;
            Some(aggregate.member(label))
        }
        None => text.parse().ok(),
    }
}

/// The current time in seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |it| it.as_secs())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pins")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}
