//! Records in the form that operators see: in the log, in commands, in `/ready` and in the web UI.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use tooldock_base::config::PinMode;
use tooldock_base::names::NamespaceName;

use super::difference::{Difference, shown};
use super::findings::{self, Finding};
use super::judge::short;
use super::record::{EntryRecord, PinFile, PinKind, PinState, Version};
use super::{PinEvent, Pins, PinsState};

/// Maximum number of names that [`PinCounts`] contains for each state; further ones are only counted.
const NAMED_MAX: usize = 20;
/// Maximum number of names that the index of similar names stores for one shape.
const ALIKE_MAX: usize = 4;
/// Maximum number of differences, and of findings, in a log line.
const LOGGED_MAX: usize = 5;
/// Maximum length of a value in a log line about a pinned definition, in characters.
const LOGGED_VALUE_MAX: usize = 120;

/// A recorded definition, with its versions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pin {
    /// The namespace of the server.
    pub namespace: String,
    /// Kind of the recorded definition.
    pub kind: PinKind,
    /// Name of the recorded definition; for a resource template its URI template.
    pub name: String,
    /// State of the recorded definition.
    pub state: PinState,
    /// The approved versions, oldest first.
    pub approved: Vec<PinVersion>,
    /// The unapproved versions, oldest first.
    pub pending: Vec<PinVersion>,
    /// The differences between the newest approved and the newest unapproved version; `None` if one of them does not exist or is
    /// not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differences: Option<Vec<Difference>>,
    /// True if the definition has had so many versions that further ones are not recorded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub varying: bool,
}

/// A version of a recorded definition.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PinVersion {
    /// SHA-256 of the definition in its canonical form, in hexadecimal.
    pub digest: String,
    /// Time at which the version was first seen, in seconds since 1970.
    pub seen: u64,
    /// The definition as JSON, with invisible characters as `\u{…}`; `None` if it is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
    /// Findings in the definition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// The differences between the newest approved version and this unapproved one; `None` if one of them is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differences: Option<Vec<Difference>>,
}

/// Counts and names of a namespace's definitions that are not approved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PinCounts {
    /// Number of definitions of the namespace in each state.
    #[serde(skip)]
    pub states: BTreeMap<PinState, usize>,
    /// The mode of pins that is in force for the namespace.
    pub mode: &'static str,
    /// Names of definitions with a changed version; at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Names of new definitions; at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub new: Vec<String>,
    /// Names of definitions with findings; at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suspicious: Vec<String>,
    /// Number of unapproved definitions whose names are omitted from the lists of names.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: usize,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature is serde's"
)]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl PinCounts {
    /// Returns true if every definition of the namespace is approved.
    pub fn is_settled(&self) -> bool {
        self.changed.is_empty() && self.new.is_empty() && self.suspicious.is_empty()
    }

    /// Adds the counts and names in `other`, which are those of a second namespace.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        for (state, count) in other.states {
            *self.states.entry(state).or_insert(0) += count;
        }
        if other.mode == PinMode::Enforce.as_str() {
            self.mode = other.mode;
        }
        self.more += other.more;
        for (own, more) in [
            (&mut self.changed, other.changed),
            (&mut self.new, other.new),
            (&mut self.suspicious, other.suspicious),
        ] {
            own.extend(more);
            self.more += own.len().saturating_sub(NAMED_MAX);
            own.truncate(NAMED_MAX);
        }
        self
    }

    /// Returns the unapproved definitions as a sentence for the explanation of access; `None` if there are none.
    pub fn in_words(&self, namespace: &NamespaceName) -> Option<String> {
        let groups = [
            ("changed", &self.changed),
            ("new", &self.new),
            ("suspicious", &self.suspicious),
        ];
        let groups = groups.iter().filter(|(_, names)| !names.is_empty());
        let groups: Vec<_> = groups
            .map(|(state, names)| format!("{state}: {}", names.join(", ")))
            .collect();
        (!groups.is_empty()).then(|| {
            let hidden = match self.mode {
                "enforce" => "hidden until they are approved",
                _ => "served, since pins is not enforce",
            };
            format!(
                "definitions that were not approved ({}) are {hidden}: tooldock pins diff {namespace}",
                groups.join("; ")
            )
        })
    }
}

impl From<&Version> for PinVersion {
    fn from(version: &Version) -> Self {
        Self {
            digest: version.digest.clone(),
            seen: version.seen,
            definition: version.definition.as_deref().map(shown),
            findings: version.findings.clone(),
            differences: None,
        }
    }
}

impl Pins {
    /// Returns the recorded definitions, sorted by name. `namespace` selects one namespace and the servers that belong only to
    /// it; `name` selects one definition. Namespaces for which `may_see` returns false are omitted.
    pub fn list(
        &self,
        namespace: Option<&str>,
        name: Option<&str>,
        may_see: impl Fn(&str) -> bool,
    ) -> Vec<Pin> {
        let state = self.state();
        let mut found = Vec::new();
        for (own, record) in &state.records.namespaces {
            // Servers that belong only to an aggregate have the aggregate's name, followed by a dot, as prefix.
            let is_wanted = |it: &str| {
                let rest = own.strip_prefix(it);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            if !namespace.is_none_or(is_wanted) || !may_see(own) {
                continue;
            }
            for (kind, list) in &record.lists {
                for (entry_name, entry) in &list.entries {
                    if name.is_none_or(|it| it == entry_name) {
                        found.push((own.clone(), *kind, entry_name.clone(), entry.clone()));
                    }
                }
            }
        }
        // The lock is released here: the following comparisons take time, and sightings must not wait for them.
        drop(state);
        let pins = found.into_iter();
        pins.map(|(own, kind, name, entry)| pin(own, kind, name, &entry))
            .collect()
    }

    /// Counts and names of a namespace's unapproved definitions; `None` for a namespace whose definitions are not recorded.
    pub fn counts(&self, namespace: &NamespaceName) -> Option<PinCounts> {
        let mode = self.known(namespace)?.mode();
        let mut counts = PinCounts {
            mode: mode.as_str(),
            ..PinCounts::default()
        };
        let state = self.state();
        let record = state.records.namespaces.get(namespace.as_str());
        let lists = record.iter().flat_map(|it| it.lists.values());
        for (name, entry) in lists.flat_map(|it| &it.entries) {
            let own = entry.state();
            *counts.states.entry(own).or_insert(0) += 1;
            let named = match own {
                PinState::Approved => continue,
                PinState::Changed => &mut counts.changed,
                PinState::New => &mut counts.new,
                PinState::Suspicious => &mut counts.suspicious,
            };
            match named.len() < NAMED_MAX {
                true => named.push(short(name)),
                false => counts.more += 1,
            }
        }
        Some(counts)
    }

    /// Returns the recorded name that is most similar to `typed`: a definition of `namespace`, or, without one, a namespace for
    /// which `may_see` returns true. `None` if no name is similar.
    pub fn nearest(
        &self,
        namespace: Option<&str>,
        typed: &str,
        may_see: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let state = self.state();
        let mut known: HashSet<&str> = HashSet::new();
        match namespace {
            None => {
                let names = state.records.namespaces.keys().map(String::as_str);
                known.extend(names.filter(|it| may_see(it)));
            }
            Some(namespace) => {
                let record = state.records.namespaces.get(namespace);
                let lists = record.iter().flat_map(|it| it.lists.values());
                known.extend(lists.flat_map(|it| it.entries.keys()).map(String::as_str));
            }
        }
        let distance =
            |name: &str| strsim::damerau_levenshtein(&typed.to_lowercase(), &name.to_lowercase());
        let near = known.into_iter().filter(|it| it.len() <= 256);
        let (differs, name) = near.map(|name| (distance(name), name)).min()?;
        (differs * 5 <= 2 * typed.chars().count().max(name.chars().count()))
            .then(|| name.to_owned())
    }

    /// The definitions of a namespace that have an unapproved version.
    pub(super) fn waiting(&self, namespace: &NamespaceName) -> HashSet<(PinKind, String)> {
        let state = self.state();
        let record = state.records.namespaces.get(namespace.as_str());
        let lists = record.iter().flat_map(|it| &it.lists);
        let entries = lists.flat_map(|(kind, list)| list.entries.iter().map(|it| (*kind, it)));
        let waiting = entries.filter(|(_, (_, entry))| !entry.pending.is_empty());
        waiting
            .map(|(kind, (name, _))| (kind, name.clone()))
            .collect()
    }

    /// The recorded names of a namespace's definitions of one kind.
    pub(super) fn names(&self, namespace: &NamespaceName, kind: PinKind) -> Vec<String> {
        let state = self.state();
        let record = state.records.namespaces.get(namespace.as_str());
        let list = record.and_then(|it| it.lists.get(&kind));
        list.map_or_else(Vec::new, |it| it.entries.keys().cloned().collect())
    }

    /// Returns true if any version of a definition is approved. Returns false while the file cannot be read.
    pub(super) fn has_approved(
        &self,
        namespace: &NamespaceName,
        kind: PinKind,
        name: &str,
    ) -> bool {
        let state = self.state();
        let record = state.records.namespaces.get(namespace.as_str());
        let list = record.and_then(|it| it.lists.get(&kind));
        let entry = list.and_then(|it| it.entries.get(name));
        state.unreadable.is_none() && entry.is_some_and(|it| !it.approved.is_empty())
    }

    /// Returns true if a version of a definition must be searched for findings. A recorded version was already searched, and a
    /// definition with too many versions gets no more recorded ones, so neither is searched.
    pub(super) fn is_searched(
        &self,
        namespace: &NamespaceName,
        kind: PinKind,
        name: &str,
        digest: &str,
    ) -> bool {
        let state = self.state();
        let entry = state.records.entry(namespace.as_str(), kind, name);
        entry.is_none_or(|it| !it.is_varying() && !it.knows(digest))
    }

    /// Returns the finding for a name that looks like another recorded name; `None` if there is no such name.
    pub(super) fn look_alike(
        &self,
        namespace: &NamespaceName,
        kind: PinKind,
        name: &str,
    ) -> Option<Finding> {
        let shape = findings::shape(name);
        let mut state = self.state();
        let PinsState {
            records, shapes, ..
        } = &mut *state;
        let shapes = shapes.get_or_insert_with(|| ShapeIndex::of(records));
        let (other, of) = shapes.alike(kind, &shape, name)?;
        let is_own = of == namespace.as_str();
        Some(findings::look_alike(name, is_own.then_some(other)))
    }
}

/// Index of recorded names by shape, to look up a name that looks like another.
#[derive(Debug, Default)]
pub(super) struct ShapeIndex(HashMap<(PinKind, String), Vec<(String, String)>>);

impl ShapeIndex {
    fn of(records: &PinFile) -> Self {
        let mut index = Self::default();
        for (namespace, record) in &records.namespaces {
            for (kind, list) in &record.lists {
                for name in list.entries.keys() {
                    index.add(namespace, *kind, name);
                }
            }
        }
        index
    }

    /// Adds a name. Only the first few different names of each shape are stored.
    pub(super) fn add(&mut self, namespace: &str, kind: PinKind, name: &str) {
        let names = self.0.entry((kind, findings::shape(name))).or_default();
        if names.len() < ALIKE_MAX && !names.iter().any(|(other, _)| other == name) {
            names.push((name.to_owned(), namespace.to_owned()));
        }
    }

    /// Returns another name with the same shape, and its namespace.
    fn alike(&self, kind: PinKind, shape: &str, name: &str) -> Option<(&str, &str)> {
        let names = self.0.get(&(kind, shape.to_owned()))?;
        let (other, namespace) = names.iter().find(|(other, _)| other != name)?;
        Some((other, namespace))
    }
}

fn pin(namespace: String, kind: PinKind, name: String, entry: &EntryRecord) -> Pin {
    let pending = entry.pending.iter().map(|it| PinVersion {
        differences: entry.differences_of(it),
        ..it.into()
    });
    let pending: Vec<_> = pending.collect();
    Pin {
        namespace,
        kind,
        name,
        state: entry.state(),
        approved: entry.approved.iter().map(PinVersion::from).collect(),
        differences: pending.last().and_then(|it| it.differences.clone()),
        pending,
        varying: entry.is_varying(),
    }
}

/// Logs a change of a definition, with the findings of the new version and its differences from the approved one. `argument` is
/// the definition's name as an argument of a shell command.
pub(super) fn log(
    event: &PinEvent,
    argument: Option<&str>,
    findings: &[Finding],
    differences: Option<&[Difference]>,
) {
    let PinEvent {
        namespace,
        kind,
        name,
        ..
    } = event;
    let kind = kind.as_str();
    let happened = match event.state {
        PinState::New => "is new",
        PinState::Suspicious => "has text that a person should look at",
        PinState::Approved | PinState::Changed => "differs from the approved one",
    };
    let cut = |text: &str| -> String { text.chars().take(LOGGED_VALUE_MAX).collect() };
    let value = |it: &Option<String>| it.as_deref().map_or_else(|| "nothing".to_owned(), cut);
    let found = findings.iter().take(LOGGED_MAX);
    let found = found.map(|it| format!("{} in {:?}: {}", it.code, it.place, cut(&it.detail)));
    let differ = differences.unwrap_or_default().iter().take(LOGGED_MAX);
    let differ = differ.map(|it| {
        format!(
            "{} was {} and is {}",
            cut(&it.path),
            value(&it.before),
            value(&it.after)
        )
    });
    let details: Vec<_> = found.chain(differ).collect();
    let details = match details.is_empty() {
        true => String::new(),
        false => format!(" ({})", details.join("; ").replace(['\n', '\t'], " ")),
    };
    let done = match event.hidden {
        true => "it is hidden",
        false => "it is served",
    };
    let which = argument.map_or_else(String::new, |it| format!(" {it}"));
    tracing::warn!(
        namespace = %namespace,
        kind,
        name,
        state = event.state.as_str(),
        digest = event.digest,
        "the definition of {kind} {name:?} of the server of namespace {namespace} {happened}{details}; {done}, see `tooldock pins \
         diff {namespace}{which}` and `tooldock pins approve` (configuration key pins)"
    );
}
