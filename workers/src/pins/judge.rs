//! The pins of one namespace: the decision which entries of a list may be shown.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sha2::{Digest as _, Sha256};
use tooldock_base::config::PinMode;
use tooldock_base::names::NamespaceName;

use super::definition::{canonical, digest};
use super::difference::shown;
use super::findings::{self, DEFINITION_MAX};
use super::record::{PinKind, Seen, Sighting, Version};
use super::{Pins, lock, now};

/// Maximum number of pages whose judgement is remembered.
const PAGES_MAX: usize = 64;
/// Maximum number of hidden names that are remembered for error messages.
const HIDDEN_MAX: usize = 10_000;
/// Maximum length of a name in messages, in characters.
const SHORT_MAX: usize = 128;

/// The pins of one namespace. The judgement of a page is remembered and reused until the page changes.
#[derive(Debug)]
pub struct NamespacePins {
    name: NamespaceName,
    pins: Arc<Pins>,
    mode: AtomicU8,
    /// Number of decisions that may have changed which entries are shown. When it grows, lists that were judged before must be
    /// judged again.
    generation: AtomicU64,
    /// Number of changes that made remembered judgements invalid. When it grows, pages that were judged before must be recorded
    /// again.
    epoch: AtomicU64,
    judged: Mutex<VecDeque<JudgedPage>>,
    /// Names of definitions whose most recently listed version was hidden.
    hidden: Mutex<HashSet<(PinKind, String)>>,
    /// Recorded names that the current complete list does not contain. Remembered so that each is logged only once.
    missing: Mutex<HashSet<(PinKind, String)>>,
}

#[derive(Debug)]
struct JudgedPage {
    key: [u8; 32],
    epoch: u64,
    judgement: Judgement,
    names: EntryNames,
}

/// An entry of a page of a list.
#[derive(Debug, Clone)]
pub struct PageEntry<'a> {
    /// The entry's name, or its URI template; `None` if the entry has none.
    pub name: Option<Arc<str>>,
    /// The entry's definition as JSON text, as the server sent it.
    pub definition: &'a str,
}

/// A page of a list, as the server sent it.
#[derive(Debug)]
pub struct ListPage<'a> {
    /// Kind of the page's entries.
    pub kind: PinKind,
    /// The page's entries, in their order.
    pub entries: Vec<PageEntry<'a>>,
    /// True if this is the first page of the list.
    pub first: bool,
    /// True if this is the last page of the list.
    pub last: bool,
}

/// The names of a page's entries, in their order.
type EntryNames = Arc<[Option<Arc<str>>]>;

/// Judgement of a page: for each entry, true if it may be shown and false if it is hidden.
pub type Judgement = Arc<[bool]>;

impl NamespacePins {
    /// Creates the pins of a namespace. `waiting` are the definitions with an unapproved version; they count as hidden until a
    /// list contains an approved version.
    pub(super) fn new(
        name: NamespaceName,
        pins: Arc<Pins>,
        waiting: HashSet<(PinKind, String)>,
    ) -> Self {
        Self {
            name,
            pins,
            mode: AtomicU8::new(encoded(PinMode::Off)),
            generation: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            judged: Mutex::default(),
            hidden: Mutex::new(waiting),
            missing: Mutex::default(),
        }
    }

    /// The mode of pins that is in force for the namespace.
    pub fn mode(&self) -> PinMode {
        decoded(self.mode.load(Ordering::Relaxed))
    }

    /// Sets the mode. If the old mode or the new mode hides entries, lists must be judged again.
    pub fn set_mode(&self, mode: PinMode) {
        let before = decoded(self.mode.swap(encoded(mode), Ordering::Relaxed));
        if before != mode {
            lock(&self.judged).clear();
            if before == PinMode::Enforce || mode == PinMode::Enforce {
                self.decided();
            }
        }
    }

    /// Number of decisions that may have changed which entries are shown. If it has changed, lists must be judged again.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Counts a decision, after which lists must be judged again.
    pub(super) fn decided(&self) {
        self.forget_pages();
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes the remembered judgements of pages invalid.
    pub(super) fn forget_pages(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Records the entries of a page, and returns for each entry if it may be shown. All may be shown unless pins are enforced.
    pub fn judge(&self, page: &ListPage<'_>) -> Judgement {
        let (mode, epoch) = (self.mode(), self.epoch.load(Ordering::Acquire));
        if mode == PinMode::Off {
            return page.entries.iter().map(|_| true).collect();
        }
        let key = key(page, mode);
        if let Some((judgement, names)) = self.remembered(&key, epoch) {
            self.note_hidden(page.kind, &names, &judgement);
            return judgement;
        }
        let hides = mode == PinMode::Enforce;
        let judgement: Judgement = page
            .entries
            .iter()
            .map(|entry| self.entry(page.kind, mode, entry) || !hides)
            .collect();
        let end = Seen::PageEnd { last: page.last };
        self.pins
            .see(&self.name, self.sighting(page.kind, mode, end), hides);
        let names: EntryNames = page.entries.iter().map(|it| it.name.clone()).collect();
        self.note_hidden(page.kind, &names, &judgement);
        if page.first && page.last {
            self.note_missing(page.kind, &names);
        }
        let mut judged = lock(&self.judged);
        if judged.len() >= PAGES_MAX {
            judged.pop_front();
        }
        judged.push_back(JudgedPage {
            key,
            epoch,
            judgement: Arc::clone(&judgement),
            names,
        });
        judgement
    }

    /// Records an entry, and returns true if its version is approved.
    fn entry(&self, kind: PinKind, mode: PinMode, entry: &PageEntry<'_>) -> bool {
        // An entry without a name cannot be recorded and approved.
        let Some(name) = &entry.name else {
            return false;
        };
        let canonical = canonical(entry.definition);
        let digest = digest(&canonical);
        let mut findings = Vec::new();
        if self.pins.is_searched(&self.name, kind, name, &digest) {
            findings = findings::of_definition(name, &canonical);
            findings.extend(self.pins.look_alike(&self.name, kind, name));
        }
        let definition = (canonical.len() <= DEFINITION_MAX).then(|| canonical.into());
        let version = Version {
            digest,
            seen: now(),
            definition,
            findings,
        };
        let name = Arc::clone(name);
        let seen = Seen::Definition { name, version };
        let hides = mode == PinMode::Enforce;
        self.pins
            .see(&self.name, self.sighting(kind, mode, seen), hides)
    }

    fn sighting(&self, kind: PinKind, mode: PinMode, what: Seen) -> Sighting {
        Sighting {
            namespace: self.name.to_string(),
            kind,
            mode,
            what,
        }
    }

    fn remembered(&self, key: &[u8; 32], epoch: u64) -> Option<(Judgement, EntryNames)> {
        let judged = lock(&self.judged);
        let found = judged
            .iter()
            .find(|it| it.key == *key && it.epoch == epoch)?;
        Some((Arc::clone(&found.judgement), Arc::clone(&found.names)))
    }

    fn note_hidden(&self, kind: PinKind, names: &[Option<Arc<str>>], judgement: &[bool]) {
        let mut hidden = lock(&self.hidden);
        for (name, shown) in names.iter().zip(judgement) {
            let Some(name) = name else { continue };
            match shown {
                true if hidden.is_empty() => {}
                true => {
                    hidden.remove(&(kind, name.to_string()));
                }
                false if hidden.len() < HIDDEN_MAX => {
                    hidden.insert((kind, name.to_string()));
                }
                false => {}
            }
        }
    }

    /// Logs recorded names that a complete list does not contain.
    fn note_missing(&self, kind: PinKind, names: &[Option<Arc<str>>]) {
        let listed: HashSet<&str> = names.iter().flatten().map(|it| &**it).collect();
        let recorded = self.pins.names(&self.name, kind);
        let mut missing = lock(&self.missing);
        missing.retain(|(own, name)| *own != kind || !listed.contains(name.as_str()));
        for name in recorded {
            if !listed.contains(name.as_str()) && missing.insert((kind, name.clone())) {
                tracing::info!(
                    namespace = %self.name,
                    "the server of namespace {} does not list {} {:?} any more; its record is kept",
                    self.name,
                    kind.as_str(),
                    short(&name)
                );
            }
        }
    }

    /// Returns the reason why a definition may not be used, as a sentence for callers; `None` if it may be used. The sentence
    /// names no command, because callers are models, which must not be led to approve the definition themselves.
    pub fn held_back(&self, kind: PinKind, name: &str) -> Option<&'static str> {
        if self.mode() != PinMode::Enforce {
            return None;
        }
        if lock(&self.hidden).contains(&(kind, name.to_owned())) {
            return Some("its definition waits for the approval of an operator");
        }
        // A tool can be called only after a list of tools was judged. A prompt can be requested by name without any list.
        let is_unknown = kind == PinKind::Prompt && !self.pins.has_approved(&self.name, kind, name);
        is_unknown.then_some("no approved definition of this name is known: list the prompts first if the server has it")
    }
}

/// Key under which the judgement of a page is remembered: a hash over the page and the mode.
fn key(page: &ListPage<'_>, mode: PinMode) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update([
        page.kind as u8,
        encoded(mode),
        u8::from(page.first),
        u8::from(page.last),
    ]);
    for entry in &page.entries {
        hash.update((entry.definition.len() as u64).to_le_bytes());
        hash.update(entry.definition);
    }
    hash.finalize().into()
}

/// Returns a name for messages: shortened, and without invisible characters.
pub(super) fn short(name: &str) -> String {
    let cut: String = name.chars().take(SHORT_MAX).collect();
    shown(&cut).replace(['\n', '\t'], " ")
}

/// Returns a name as an argument of a shell command; `None` for a name that a log line or a command cannot contain unchanged.
pub(super) fn argument(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with('-') || short(name) != name {
        return None;
    }
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "_-./:@".contains(it);
    Some(match name.chars().all(is_plain) {
        true => name.to_owned(),
        false => format!("'{}'", name.replace('\'', r"'\''")),
    })
}

fn encoded(mode: PinMode) -> u8 {
    match mode {
        PinMode::Off => 0,
        PinMode::Warn => 1,
        PinMode::Enforce => 2,
    }
}

fn decoded(mode: u8) -> PinMode {
    match mode {
        0 => PinMode::Off,
        1 => PinMode::Warn,
        _ => PinMode::Enforce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_commands_are_quoted_for_a_shell() {
        for (name, expected) in [
            ("add_issue", Some("add_issue")),
            ("file:///{path}", Some("'file:///{path}'")),
            ("a;rm -rf ~", Some("'a;rm -rf ~'")),
            ("it's", Some(r"'it'\''s'")),
            ("$(id)", Some("'$(id)'")),
            ("-x", None),
            ("a\nb", None),
            ("a\u{200b}", None),
            ("", None),
        ] {
            assert_eq!(argument(name).as_deref(), expected, "{name:?}");
        }
    }
}
