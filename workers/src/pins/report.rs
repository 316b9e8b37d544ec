//! Records as operators are shown them: in the log, by commands, in `/ready` and in the web UI.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use tooldock_base::config::PinMode;
use tooldock_base::names::NamespaceName;

use super::difference::{Difference, shown};
use super::findings::{self, Finding};
use super::judge::short;
use super::record::{EntryRecord, PinFile, PinKind, PinState, Version};
use super::{PinEvent, Pins, PinsState};

/// Maximum number of names of each state that [`PinCounts`] has.
const NAMED_MAX: usize = 20;
/// Maximum number of names of one shape that are compared.
const ALIKE_MAX: usize = 4;
/// Maximum number of differences and findings that a log line names.
const LOGGED_MAX: usize = 5;
/// Maximum length of a value in a log line, in characters.
const LOGGED_VALUE_MAX: usize = 120;

/// A recorded definition.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pin {
    /// The namespace of the server.
    pub namespace: String,
    /// Kind of the definition.
    pub kind: PinKind,
    /// The name, or the URI template.
    pub name: String,
    /// State of the definition.
    pub state: PinState,
    /// The approved versions, the newest last.
    pub approved: Vec<PinVersion>,
    /// The versions that wait for approval, the newest last.
    pub pending: Vec<PinVersion>,
    /// The differences of the newest waiting version from the newest approved one; `None` if there is nothing to compare.
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
    /// The definition as JSON, with hidden characters as `\u{…}`; `None` if it is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
    /// Findings in the definition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// The differences of a waiting version from the newest approved one; `None` if there is nothing to compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differences: Option<Vec<Difference>>,
}

/// The definitions of a namespace that wait for an operator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PinCounts {
    /// Number of definitions in each state.
    #[serde(skip)]
    pub states: BTreeMap<PinState, usize>,
    /// The mode that is in force.
    pub mode: &'static str,
    /// Names of changed definitions, the first 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Names of new definitions, the first 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub new: Vec<String>,
    /// Names of definitions with findings, the first 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suspicious: Vec<String>,
    /// Number of further definitions that are not approved.
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
    /// Returns true if every definition is approved.
    pub fn is_settled(&self) -> bool {
        self.changed.is_empty() && self.new.is_empty() && self.suspicious.is_empty()
    }

    /// Adds the counts and names of another namespace's definitions.
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

    /// The definitions that wait, as a sentence of `explain`; `None` if none waits.
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
    /// The recorded definitions in the order of their names: of all namespaces that `may_see` admits, or of one with the servers
    /// that belong to it alone; of all names, or of one.
    pub fn list(
        &self,
        namespace: Option<&str>,
        name: Option<&str>,
        may_see: impl Fn(&str) -> bool,
    ) -> Vec<Pin> {
        let state = self.state();
        let mut found = Vec::new();
        for (own, record) in &state.records.namespaces {
            // The servers of an aggregate's own file stand with it.
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
        // Comparing takes time, in which sightings go on.
        drop(state);
        let pins = found.into_iter();
        pins.map(|(own, kind, name, entry)| pin(own, kind, name, &entry))
            .collect()
    }

    /// The definitions of a namespace that wait for an operator; `None` for a namespace whose definitions are not recorded.
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

    /// The recorded name that differs least from a name without a record: that of a definition of `namespace`, or of a namespace
    /// that `may_see` admits.
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

    /// The definitions of a namespace of which a version waits for approval.
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

    /// The recorded names of a namespace.
    pub(super) fn names(&self, namespace: &NamespaceName, kind: PinKind) -> Vec<String> {
        let state = self.state();
        let record = state.records.namespaces.get(namespace.as_str());
        let list = record.and_then(|it| it.lists.get(&kind));
        list.map_or_else(Vec::new, |it| it.entries.keys().cloned().collect())
    }

    /// Returns true if a version of a definition is approved. Without a readable file none is.
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

    /// Returns true if a version of a definition must be searched for findings: versions that are recorded were, and those of
    /// definitions with too many versions are not recorded.
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

    /// The finding for a name that looks like another recorded one.
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

/// Recorded names by their shapes, so that a name that looks like another is found without a search.
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

    /// Adds a name. Of each shape the first different names are kept.
    pub(super) fn add(&mut self, namespace: &str, kind: PinKind, name: &str) {
        let names = self.0.entry((kind, findings::shape(name))).or_default();
        if names.len() < ALIKE_MAX && !names.iter().any(|(other, _)| other == name) {
            names.push((name.to_owned(), namespace.to_owned()));
        }
    }

    /// Another name with the shape, and its namespace.
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

/// Logs an event with the findings of the version, and its differences from the approved one. `argument`: the name in a command.
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
