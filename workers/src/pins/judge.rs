//! The pins of one namespace: which entries of a list may be shown.

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

/// Maximum number of judged pages that are remembered.
const PAGES_MAX: usize = 64;
/// Maximum number of hidden names that are remembered for errors.
const HIDDEN_MAX: usize = 10_000;
/// Maximum length of a name in messages, in characters.
const SHORT_MAX: usize = 128;

/// The pins of one namespace. Cheap to read: a page is judged once for as long as it stays the same.
#[derive(Debug)]
pub struct NamespacePins {
    name: NamespaceName,
    pins: Arc<Pins>,
    mode: AtomicU8,
    /// Counts the decisions by which lists that were judged before may look different now.
    generation: AtomicU64,
    /// Counts the changes of records by which pages that were judged before must be recorded anew.
    epoch: AtomicU64,
    judged: Mutex<VecDeque<JudgedPage>>,
    /// Names whose last version was not shown.
    hidden: Mutex<HashSet<(PinKind, String)>>,
    /// Names of the last whole list that were missing on the current one, so that each is logged once.
    missing: Mutex<HashSet<(PinKind, String)>>,
}

#[derive(Debug)]
struct JudgedPage {
    key: [u8; 32],
    epoch: u64,
    judgement: Judgement,
    names: EntryNames,
}

/// An entry of a list.
#[derive(Debug, Clone)]
pub struct PageEntry<'a> {
    /// The name, or the URI template; `None` for an entry without one.
    pub name: Option<Arc<str>>,
    /// The definition as the server wrote it.
    pub definition: &'a str,
}

/// A page of a list as the server wrote it.
#[derive(Debug)]
pub struct ListPage<'a> {
    /// Kind of the entries.
    pub kind: PinKind,
    /// The entries, in order.
    pub entries: Vec<PageEntry<'a>>,
    /// True for the first page.
    pub first: bool,
    /// True if no page follows.
    pub last: bool,
}

/// The names of a page's entries.
type EntryNames = Arc<[Option<Arc<str>>]>;

/// True for each entry of a page that may be shown.
pub type Judgement = Arc<[bool]>;

impl NamespacePins {
    /// The pins of a namespace. `waiting`: definitions of which a version waits for approval; they count as hidden until a list
    /// shows an approved version.
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

    /// The mode that is in force.
    pub fn mode(&self) -> PinMode {
        decoded(self.mode.load(Ordering::Relaxed))
    }

    /// Sets the mode. Lists that were judged before are outdated if entries are hidden in one of the two modes.
    pub fn set_mode(&self, mode: PinMode) {
        let before = decoded(self.mode.swap(encoded(mode), Ordering::Relaxed));
        if before != mode {
            lock(&self.judged).clear();
            if before == PinMode::Enforce || mode == PinMode::Enforce {
                self.decided();
            }
        }
    }

    /// Number of decisions by which lists that were judged before may look different now.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Records that lists must be judged anew.
    pub(super) fn decided(&self) {
        self.forget_pages();
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Forgets the pages that were judged before.
    pub(super) fn forget_pages(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Records the entries of a page. Returns which of them may be shown: all, unless pins are enforced.
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

    /// Judges an entry: true if its version is approved.
    fn entry(&self, kind: PinKind, mode: PinMode, entry: &PageEntry<'_>) -> bool {
        // Without a name there is nothing to approve.
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

    /// Logs recorded names that a whole list does not have.
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

    /// The sentence for callers of a definition that is not approved; `None` if it may be used. Names no command:
    /// callers are models, which must not be led to approve by themselves.
    pub fn held_back(&self, kind: PinKind, name: &str) -> Option<&'static str> {
        if self.mode() != PinMode::Enforce {
            return None;
        }
        if lock(&self.hidden).contains(&(kind, name.to_owned())) {
            return Some("its definition waits for the approval of an operator");
        }
        // A tool is called by its entry in the list; a prompt by its name alone.
        let is_unknown = kind == PinKind::Prompt && !self.pins.has_approved(&self.name, kind, name);
        is_unknown.then_some("no approved definition of this name is known: list the prompts first if the server has it")
    }
}

/// The key under which a page's judgement is remembered.
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

/// A name for messages: without characters that hide text, shortened.
pub(super) fn short(name: &str) -> String {
    let cut: String = name.chars().take(SHORT_MAX).collect();
    shown(&cut).replace(['\n', '\t'], " ")
}

/// A name as an argument of a shell command; `None` for names that a log line or a command cannot hold as they are.
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
