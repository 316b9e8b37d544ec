//! The records of `pins.json`, and the rules by which a listed definition changes them. No I/O.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tooldock_base::config::PinMode;

use super::difference::{self, Difference};
use super::findings::Finding;

/// Format version of the file that this program writes. Files with a higher version are not read.
pub(super) const FORMAT: u64 = 1;
/// Maximum number of names that are recorded for a namespace, over all kinds; further definitions are not recorded.
pub(super) const NAMES_MAX: usize = 2_000;
/// Maximum size of the definitions and findings that are recorded for a namespace, in bytes: 4 MiB. Beyond it, only the digest of
/// a definition is recorded, and only the code of its first finding.
pub(super) const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Maximum length of a recorded name, in bytes; definitions with a longer name are not recorded.
pub(super) const NAME_MAX: usize = 1024;
/// Maximum number of approved versions of one definition; the oldest is dropped first.
const APPROVED_MAX: usize = 8;
/// Maximum number of unapproved versions of one definition; the oldest is dropped first.
const PENDING_MAX: usize = 4;
/// Number of recorded versions of one definition after which no more are recorded: the server then seems to vary the
/// definition from caller to caller.
pub(super) const VERSIONS_MAX: u32 = 16;
/// Maximum size of the sightings (listed definitions) that wait to be written to the file, in bytes: 16 MiB. The oldest are
/// dropped from those that wait; the records in memory still contain them.
pub(super) const UNWRITTEN_MAX: usize = 16 * 1024 * 1024;
/// Estimated size in memory of a sighting without its texts, in bytes.
const SIGHTING_SIZE: usize = 256;
/// Maximum number of pages of a server's first list. After that many pages, the first list counts as complete.
const FIRST_PAGES_MAX: u32 = 100;

/// Kind of a pinned definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PinKind {
    /// A tool, recorded by its name.
    Tool,
    /// A prompt, recorded by its name.
    Prompt,
    /// A resource template, recorded by its URI template.
    Template,
}

impl PinKind {
    /// The kind as an English word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Prompt => "prompt",
            Self::Template => "template",
        }
    }
}

/// State of a recorded definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PinState {
    /// The definition has no unapproved version.
    Approved,
    /// The definition has an unapproved version that differs from the approved ones.
    Changed,
    /// The definition appeared after the first list, and no version of it is approved yet.
    New,
    /// The definition has an unapproved version with findings.
    Suspicious,
}

impl PinState {
    /// All states of a recorded definition.
    pub const ALL: [Self; 4] = [Self::Approved, Self::Changed, Self::New, Self::Suspicious];

    /// The state as it is shown to operators.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Changed => "changed",
            Self::New => "new",
            Self::Suspicious => "suspicious",
        }
    }
}

/// The content of `pins.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PinFile {
    pub(super) format: u64,
    pub(super) namespaces: BTreeMap<String, NamespaceRecord>,
}

impl Default for PinFile {
    fn default() -> Self {
        Self {
            format: FORMAT,
            namespaces: BTreeMap::new(),
        }
    }
}

/// The records of one namespace in `pins.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct NamespaceRecord {
    pub(super) lists: BTreeMap<PinKind, ListRecord>,
    /// Size of the records; `None` if it must be counted again.
    #[serde(skip)]
    size: Option<RecordSize>,
}

/// Number and size of the records of a namespace.
#[derive(Debug, Clone, Copy, Default)]
struct RecordSize {
    names: usize,
    /// Size of the recorded definitions and findings, in bytes.
    bytes: usize,
}

impl PartialEq for NamespaceRecord {
    fn eq(&self, other: &Self) -> bool {
        self.lists == other.lists
    }
}

/// The records of one list of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ListRecord {
    /// True once the first list was read to its end; names that appear in later lists count as new.
    pub(super) complete: bool,
    /// Number of pages of the first list that were read so far.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) pages: u32,
    pub(super) entries: BTreeMap<String, EntryRecord>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature is serde's"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The recorded versions of one definition, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct EntryRecord {
    pub(super) approved: Vec<Version>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) pending: Vec<Version>,
    /// Number of versions that were recorded since the last approval. See [`VERSIONS_MAX`].
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) count: u32,
}

/// A recorded version of a definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Version {
    /// SHA-256 of the canonical definition, in hexadecimal.
    pub(super) digest: String,
    /// Time at which the version was first seen, in seconds since 1970.
    pub(super) seen: u64,
    /// The canonical definition; `None` if it was too large to be recorded, or is no longer needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) definition: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) findings: Vec<Finding>,
}

/// A definition, or the end of a page, in a list of a server.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sighting {
    pub(super) namespace: String,
    pub(super) kind: PinKind,
    pub(super) mode: PinMode,
    pub(super) what: Seen,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Seen {
    /// A version of a definition that the server listed.
    Definition { name: Arc<str>, version: Version },
    /// The end of a page of the list; `last` is true if no page follows.
    PageEnd { last: bool },
}

/// Effect of a sighting on the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SightingOutcome {
    /// The version is approved already, or the end of a page changes nothing.
    Known,
    /// The version was recorded and is approved, because it is in the first list, or is a new definition and the mode is `warn`.
    /// Also the result for the end of a page of the first list.
    Recorded { first: bool },
    /// The version is recorded but not approved.
    Pending(PinState),
    /// The version was not recorded, because the records of the namespace are full.
    Full,
    /// The version was not recorded, because the definition has had too many versions.
    Varying,
}

impl SightingOutcome {
    /// Returns true if the sighting changed the records.
    pub(super) fn is_recorded(self) -> bool {
        match self {
            Self::Recorded { .. } | Self::Pending(_) => true,
            Self::Known | Self::Full | Self::Varying => false,
        }
    }
}

/// Result of an operator's approval.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Approval {
    /// The approved versions: kind, name and digest of each.
    pub approved: Vec<(PinKind, String, String)>,
    /// Definitions of which no version was approved, because several unapproved versions match the given digest: kind, name and
    /// digests of each.
    pub skipped: Vec<(PinKind, String, Vec<String>)>,
}

/// Sightings (listed definitions) that were not written to the file yet. Contains each version once, and at most
/// [`UNWRITTEN_MAX`] bytes in total.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    sightings: VecDeque<Sighting>,
    versions: HashSet<(String, PinKind, Arc<str>, String)>,
    bytes: usize,
}

impl Unwritten {
    pub(super) fn push(&mut self, sighting: Sighting) {
        if sighting
            .version()
            .is_some_and(|it| !self.versions.insert(it))
        {
            return;
        }
        self.bytes += sighting.size();
        self.sightings.push_back(sighting);
        while self.bytes > UNWRITTEN_MAX {
            let Some(oldest) = self.sightings.pop_front() else {
                break;
            };
            self.bytes -= oldest.size();
            if let Some(version) = oldest.version() {
                self.versions.remove(&version);
            }
        }
    }

    /// Appends the sightings of `later`.
    pub(super) fn append(&mut self, later: Self) {
        for sighting in later.sightings {
            self.push(sighting);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sightings.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sighting> {
        self.sightings.iter()
    }
}

impl Sighting {
    /// Identifies the listed version by namespace, kind, name and digest; `None` for the end of a page.
    fn version(&self) -> Option<(String, PinKind, Arc<str>, String)> {
        let Seen::Definition { name, version } = &self.what else {
            return None;
        };
        let digest = version.digest.clone();
        Some((self.namespace.clone(), self.kind, Arc::clone(name), digest))
    }

    /// Size of the sighting in memory, in bytes.
    fn size(&self) -> usize {
        let texts = match &self.what {
            Seen::Definition { name, version } => name.len() + version.size(),
            Seen::PageEnd { .. } => 0,
        };
        SIGHTING_SIZE + texts
    }
}

impl PinFile {
    /// The record of a definition.
    pub(super) fn entry(&self, namespace: &str, kind: PinKind, name: &str) -> Option<&EntryRecord> {
        let list = self.namespaces.get(namespace)?.lists.get(&kind)?;
        list.entries.get(name)
    }

    /// Returns true if the approved versions of a namespace differ between the contents `before` and `after` of the file.
    pub(super) fn decides(before: &Self, after: &Self, namespace: &str) -> bool {
        before.approved(namespace) != after.approved(namespace)
    }

    /// Returns true if `before` has a record of a definition of the namespace that `after` does not have, or if the approved
    /// versions differ.
    pub(super) fn drops(before: &Self, after: &Self, namespace: &str) -> bool {
        let is_dropped = before.lists(namespace).any(|(kind, list)| {
            let is_kept = |name: &String| after.entry(namespace, kind, name).is_some();
            !list.entries.keys().all(is_kept)
        });
        is_dropped || Self::decides(before, after, namespace)
    }

    fn lists(&self, namespace: &str) -> impl Iterator<Item = (PinKind, &ListRecord)> {
        let own = self.namespaces.get(namespace).into_iter();
        own.flat_map(|it| it.lists.iter().map(|(kind, list)| (*kind, list)))
    }

    /// The approved versions of a namespace: kind, name and digest of each.
    fn approved(&self, namespace: &str) -> BTreeSet<(PinKind, &str, &str)> {
        let lists = self.lists(namespace);
        let entries = lists.flat_map(|(kind, list)| list.entries.iter().map(move |it| (kind, it)));
        let versions = entries.flat_map(|(kind, (name, entry))| {
            let approved = entry.approved.iter();
            approved.map(move |it| (kind, name.as_str(), it.digest.as_str()))
        });
        versions.collect()
    }

    /// Records a sighting, and returns its effect.
    pub(super) fn see(&mut self, sighting: &Sighting) -> SightingOutcome {
        let own = match self.namespaces.get_mut(&sighting.namespace) {
            Some(own) => own,
            None => self
                .namespaces
                .entry(sighting.namespace.clone())
                .or_default(),
        };
        match &sighting.what {
            Seen::Definition { name, version } => {
                own.see(sighting.kind, sighting.mode, name, version)
            }
            Seen::PageEnd { last } => {
                let has_records = own.lists.values().any(|it| !it.entries.is_empty());
                let list = own.lists.entry(sighting.kind).or_default();
                // If nothing of a server is recorded yet, an empty list does not count as the server's first list: the server
                // may still be starting.
                if !list.complete && has_records {
                    list.pages += 1;
                    list.complete = *last || list.pages >= FIRST_PAGES_MAX;
                    if list.complete {
                        list.pages = 0;
                    }
                    return SightingOutcome::Recorded { first: true };
                }
                SightingOutcome::Known
            }
        }
    }

    /// Approves the unapproved version of each definition of a namespace, or only of the definition `name`. `digest` selects the
    /// version whose digest begins with it. A definition with several matching versions is skipped; if `name` is given, nothing
    /// is approved in that case.
    pub(super) fn approve(
        &mut self,
        namespace: &str,
        name: Option<&str>,
        digest: Option<&str>,
    ) -> Approval {
        let mut done = Approval::default();
        let Some(own) = self.namespaces.get_mut(namespace) else {
            return done;
        };
        own.size = None;
        let is_wanted = |it: &Version| digest.is_none_or(|begin| it.digest.starts_with(begin));
        let mut approved = Vec::new();
        for (kind, list) in &mut own.lists {
            for (own_name, entry) in &mut list.entries {
                if name.is_some_and(|name| name != own_name) {
                    continue;
                }
                let wanted = entry.pending.iter().filter(|it| is_wanted(it));
                let mut wanted: Vec<String> = wanted.map(|it| it.digest.clone()).collect();
                if wanted.len() > 1 {
                    done.skipped.push((*kind, own_name.clone(), wanted));
                } else if let Some(digest) = wanted.pop() {
                    done.approved.push((*kind, own_name.clone(), digest));
                    approved.push(entry);
                }
            }
        }
        if name.is_some() && !done.skipped.is_empty() {
            done.approved.clear();
            return done;
        }
        for entry in approved {
            let versions = entry.pending.extract_if(.., |it| is_wanted(it));
            entry.approved.extend(versions);
            entry.count = 0;
            entry.tidy();
        }
        done
    }

    /// Removes the records of a namespace, or only those with the name `name`. Returns the removed names.
    pub(super) fn forget(&mut self, namespace: &str, name: Option<&str>) -> Vec<(PinKind, String)> {
        let mut dropped = Vec::new();
        let Some(name) = name else {
            let own = self.namespaces.remove(namespace).unwrap_or_default();
            for (kind, list) in own.lists {
                dropped.extend(list.entries.into_keys().map(|it| (kind, it)));
            }
            return dropped;
        };
        if let Some(own) = self.namespaces.get_mut(namespace) {
            own.size = None;
            for (kind, list) in &mut own.lists {
                if list.entries.remove(name).is_some() {
                    dropped.push((*kind, name.to_owned()));
                }
            }
        }
        dropped
    }
}

impl NamespaceRecord {
    fn see(
        &mut self,
        kind: PinKind,
        mode: PinMode,
        name: &Arc<str>,
        version: &Version,
    ) -> SightingOutcome {
        let list = self.lists.entry(kind).or_default();
        if let Some(entry) = list.entries.get_mut(&**name) {
            if entry.is_approved(&version.digest) {
                return SightingOutcome::Known;
            }
            let mut waiting = entry.pending.iter();
            if let Some(at) = waiting.position(|it| it.digest == version.digest) {
                // The version that the server has just listed becomes the newest pending version.
                entry.pending[at..].rotate_left(1);
                return SightingOutcome::Pending(entry.state());
            }
            if entry.is_varying() {
                return SightingOutcome::Varying;
            }
        }
        let size = match self.size {
            Some(size) => size,
            None => self.counted(),
        };
        let list = self.lists.entry(kind).or_default();
        let is_known = list.entries.contains_key(&**name);
        if !is_known && (size.names >= NAMES_MAX || name.len() > NAME_MAX) {
            self.size = Some(size);
            return SightingOutcome::Full;
        }
        let mut version = version.clone();
        if size.bytes + version.size() > BYTES_MAX {
            version.definition = None;
        }
        if size.bytes + version.size() > BYTES_MAX {
            // The first finding is kept, so that the version still counts as suspicious.
            version.findings.truncate(1);
            for finding in &mut version.findings {
                finding.place.clear();
                finding.detail.clear();
            }
        }
        let first = !list.complete;
        let is_clean = version.findings.is_empty();
        let entry = list.entries.entry(name.to_string()).or_default();
        entry.count += 1;
        let before = entry.bytes();
        // A definition without findings is approved if it is in the first list, or, with the mode `warn`, if it is new.
        let outcome = if is_clean && !is_known && (first || mode != PinMode::Enforce) {
            entry.approved.push(version);
            SightingOutcome::Recorded { first }
        } else {
            entry.pending.push(version);
            entry.tidy();
            SightingOutcome::Pending(entry.state())
        };
        self.size = Some(RecordSize {
            names: size.names + usize::from(!is_known),
            bytes: size.bytes + entry.bytes() - before,
        });
        outcome
    }

    fn counted(&self) -> RecordSize {
        let mut size = RecordSize::default();
        for list in self.lists.values() {
            size.names += list.entries.len();
            size.bytes += list.entries.values().map(EntryRecord::bytes).sum::<usize>();
        }
        size
    }
}

impl Version {
    /// Size of the definition and its findings, in bytes.
    fn size(&self) -> usize {
        let findings = self.findings.iter();
        let findings = findings.map(|it| it.code.len() + it.place.len() + it.detail.len());
        self.definition.as_ref().map_or(0, |it| it.len()) + findings.sum::<usize>()
    }
}

impl EntryRecord {
    /// All recorded versions, beginning with the approved ones.
    pub(super) fn versions(&self) -> impl Iterator<Item = &Version> {
        self.approved.iter().chain(&self.pending)
    }

    /// Size of all recorded versions, in bytes.
    fn bytes(&self) -> usize {
        self.versions().map(Version::size).sum()
    }

    pub(super) fn knows(&self, digest: &str) -> bool {
        self.versions().any(|it| it.digest == digest)
    }

    /// Returns true if the definition has so many recorded versions that no more are recorded.
    pub(super) fn is_varying(&self) -> bool {
        self.count > VERSIONS_MAX
    }

    /// Returns true if the version with this digest is approved.
    pub(super) fn is_approved(&self, digest: &str) -> bool {
        self.approved.iter().any(|it| it.digest == digest)
    }

    /// State of the definition, which follows from its versions.
    pub(super) fn state(&self) -> PinState {
        if self.pending.is_empty() {
            PinState::Approved
        } else if self.pending.iter().any(|it| !it.findings.is_empty()) {
            PinState::Suspicious
        } else if self.approved.is_empty() {
            PinState::New
        } else {
            PinState::Changed
        }
    }

    /// The differences between the newest approved and the newest unapproved version; `None` if one of them does not exist or its
    /// definition was too large to be recorded.
    pub(super) fn differences(&self) -> Option<Vec<Difference>> {
        self.differences_of(self.pending.last()?)
    }

    /// The differences between the newest approved version and `version`.
    pub(super) fn differences_of(&self, version: &Version) -> Option<Vec<Difference>> {
        let before = self.approved.last()?.definition.as_ref()?;
        let after = version.definition.as_ref()?;
        Some(difference::between(before, after))
    }

    /// Drops the oldest versions beyond the maximum number.
    fn tidy(&mut self) {
        for (versions, max) in [
            (&mut self.approved, APPROVED_MAX),
            (&mut self.pending, PENDING_MAX),
        ] {
            let extra = versions.len().saturating_sub(max);
            versions.drain(..extra);
        }
        // The text of each approved version except the newest is dropped, because differences are shown only from the newest.
        let old = self.approved.len().saturating_sub(1);
        for version in &mut self.approved[..old] {
            version.definition = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(digest: &str) -> Version {
        Version {
            digest: digest.to_owned(),
            seen: 1,
            definition: Some(format!("{{\"d\":\"{digest}\"}}").into()),
            findings: Vec::new(),
        }
    }

    fn see(file: &mut PinFile, mode: PinMode, name: &str, version: Version) -> SightingOutcome {
        file.see(&Sighting {
            namespace: "git".to_owned(),
            kind: PinKind::Tool,
            mode,
            what: Seen::Definition {
                name: name.into(),
                version,
            },
        })
    }

    fn end(file: &mut PinFile, last: bool) {
        file.see(&Sighting {
            namespace: "git".to_owned(),
            kind: PinKind::Tool,
            mode: PinMode::Warn,
            what: Seen::PageEnd { last },
        });
    }

    fn suspicious(digest: &str) -> Version {
        Version {
            findings: vec![Finding {
                code: "instruction".to_owned(),
                place: String::new(),
                detail: String::new(),
            }],
            ..version(digest)
        }
    }

    use PinMode::{Enforce, Warn};
    use SightingOutcome::{Full, Known, Pending, Recorded};

    #[test]
    fn the_first_list_is_recorded_whole_however_many_pages_it_has() {
        for mode in [Warn, Enforce] {
            let mut file = PinFile::default();
            // An empty list of a server without records is no first list.
            end(&mut file, true);
            assert_eq!(
                see(&mut file, mode, "a", version("1")),
                Recorded { first: true }
            );
            end(&mut file, false);
            assert_eq!(
                see(&mut file, mode, "b", version("1")),
                Recorded { first: true }
            );
            end(&mut file, true);
            let later = see(&mut file, mode, "c", version("1"));
            let expected = match mode {
                Enforce => Pending(PinState::New),
                _ => Recorded { first: false },
            };
            assert_eq!(later, expected, "{mode:?}");
            assert_eq!(see(&mut file, mode, "a", version("1")), Known);
        }
    }

    #[test]
    fn an_empty_list_of_a_server_with_records_is_its_first_list() {
        let mut file = PinFile::default();
        see(&mut file, Enforce, "a", version("1"));
        end(&mut file, true);
        let mut sighting = Sighting {
            namespace: "git".to_owned(),
            kind: PinKind::Prompt,
            mode: Enforce,
            what: Seen::PageEnd { last: true },
        };
        file.see(&sighting);
        sighting.what = Seen::Definition {
            name: "ask".into(),
            version: version("1"),
        };
        assert_eq!(file.see(&sighting), Pending(PinState::New));
    }

    #[test]
    fn a_first_list_that_never_ends_is_over_after_a_number_of_pages() {
        let mut file = PinFile::default();
        for page in 0..FIRST_PAGES_MAX {
            let name = format!("t{page}");
            assert_eq!(
                see(&mut file, Enforce, &name, version("1")),
                Recorded { first: true }
            );
            end(&mut file, false);
        }
        assert_eq!(
            see(&mut file, Enforce, "late", version("1")),
            Pending(PinState::New)
        );
    }

    #[test]
    fn a_definition_with_findings_waits_even_in_the_first_list() {
        let mut file = PinFile::default();
        for mode in [Warn, Enforce] {
            assert_eq!(
                see(&mut file, mode, "a", suspicious("1")),
                Pending(PinState::Suspicious)
            );
        }
        assert_eq!(file.approve("git", Some("a"), None).approved.len(), 1);
        assert_eq!(see(&mut file, Enforce, "a", suspicious("1")), Known);
    }

    #[test]
    fn a_change_waits_and_several_versions_can_be_approved() {
        let mut file = PinFile::default();
        see(&mut file, Warn, "a", version("1"));
        end(&mut file, true);
        assert_eq!(
            see(&mut file, Warn, "a", version("2")),
            Pending(PinState::Changed)
        );
        let entry = file.entry("git", PinKind::Tool, "a").expect("a record");
        assert_eq!(entry.differences().map(|it| it.len()), Some(1));
        // Only the version that the operator saw.
        see(&mut file, Warn, "a", version("3"));
        assert_eq!(
            file.approve("git", Some("a"), Some("2")).approved,
            [(PinKind::Tool, "a".to_owned(), "2".to_owned())]
        );
        for digest in ["1", "2"] {
            assert_eq!(see(&mut file, Enforce, "a", version(digest)), Known);
        }
        assert_eq!(
            see(&mut file, Enforce, "a", version("3")),
            Pending(PinState::Changed)
        );
        assert_eq!(file.approve("git", None, None).approved.len(), 1);
        assert_eq!(see(&mut file, Enforce, "a", version("3")), Known);
        assert_eq!(file.approve("other", None, None), Approval::default());
    }

    #[test]
    fn a_version_is_not_approved_unseen_because_another_one_waits() {
        let mut file = PinFile::default();
        for name in ["a", "b"] {
            see(&mut file, Warn, name, version("1"));
        }
        for digest in ["21", "22"] {
            see(&mut file, Warn, "a", version(digest));
        }
        see(&mut file, Warn, "b", version("23"));
        let digests = vec!["21".to_owned(), "22".to_owned()];
        let skipped = vec![(PinKind::Tool, "a".to_owned(), digests)];
        // Refused without a digest, and by a beginning that both have.
        for digest in [None, Some("2")] {
            let before = file.clone();
            let done = file.approve("git", Some("a"), digest);
            assert_eq!((done.approved.len(), &done.skipped), (0, &skipped));
            assert_eq!(file, before);
        }
        // A version that the server has again is the last one.
        see(&mut file, Warn, "a", version("21"));
        let entry = file.entry("git", PinKind::Tool, "a").expect("a record");
        let waiting: Vec<_> = entry.pending.iter().map(|it| &*it.digest).collect();
        assert_eq!(waiting, ["22", "21"]);
        let done = file.approve("git", None, None);
        assert_eq!(
            done.approved,
            [(PinKind::Tool, "b".to_owned(), "23".to_owned())]
        );
        assert_eq!(done.skipped.len(), 1);
        assert_eq!(file.approve("git", Some("a"), Some("21")).approved.len(), 1);
    }

    #[test]
    fn a_definition_with_too_many_versions_is_not_recorded_any_more_until_one_is_approved() {
        let mut file = PinFile::default();
        for turn in 1..=VERSIONS_MAX {
            see(&mut file, Warn, "a", version(&turn.to_string()));
        }
        let last = see(&mut file, Warn, "a", version("last"));
        assert_eq!(last, Pending(PinState::Changed));
        let before = file.clone();
        for turn in 100..200 {
            let outcome = see(&mut file, Enforce, "a", version(&turn.to_string()));
            assert_eq!(outcome, SightingOutcome::Varying);
        }
        assert_eq!(see(&mut file, Enforce, "a", version("1")), Known);
        assert_eq!(file, before);
        assert_eq!(
            file.approve("git", Some("a"), Some("last")).approved.len(),
            1
        );
        assert_eq!(
            see(&mut file, Enforce, "a", version("next")),
            Pending(PinState::Changed)
        );
    }

    #[test]
    fn sightings_that_cannot_be_written_are_bounded_by_their_size() {
        let sighting = |digest: &str| Sighting {
            namespace: "git".to_owned(),
            kind: PinKind::Tool,
            mode: Warn,
            what: Seen::Definition {
                name: "a".into(),
                version: Version {
                    definition: Some("x".repeat(64 * 1024).into()),
                    ..version(digest)
                },
            },
        };
        let mut waiting = Unwritten::default();
        for turn in 0..1_000 {
            for _ in 0..2 {
                waiting.push(sighting(&turn.to_string()));
            }
        }
        assert_eq!(
            waiting.iter().count(),
            UNWRITTEN_MAX / (64 * 1024 + SIGHTING_SIZE + 1)
        );
        // The newest are kept, and one that was dropped may wait again.
        assert_eq!(waiting.iter().last(), Some(&sighting("999")));
        waiting.push(sighting("0"));
        assert_eq!(waiting.iter().last(), Some(&sighting("0")));
        let mut earlier = Unwritten::default();
        earlier.push(sighting("0"));
        earlier.append(waiting);
        assert!(earlier.bytes <= UNWRITTEN_MAX);
    }

    #[test]
    fn records_are_bounded_however_often_a_server_changes() {
        let mut file = PinFile::default();
        for turn in 0..1_000 {
            see(&mut file, Warn, "a", version(&turn.to_string()));
        }
        let entry = file.entry("git", PinKind::Tool, "a").expect("a record");
        assert_eq!(
            (entry.approved.len(), entry.pending.len()),
            (1, PENDING_MAX)
        );
        for name in 1..NAMES_MAX {
            see(&mut file, Warn, &format!("t{name}"), version("1"));
        }
        assert_eq!(see(&mut file, Warn, "more", version("1")), Full);
        // A known name has room for a change.
        assert_eq!(
            see(&mut file, Warn, "t1", version("2")),
            Pending(PinState::Changed)
        );
        let mut file = PinFile::default();
        let long = "n".repeat(NAME_MAX + 1);
        assert_eq!(see(&mut file, Warn, &long, version("1")), Full);
    }

    #[test]
    fn definitions_beyond_the_room_of_a_namespace_keep_their_digests_alone() {
        let mut file = PinFile::default();
        let large = |digest: &str| Version {
            definition: Some("x".repeat(64 * 1024).into()),
            ..version(digest)
        };
        for name in 0..100 {
            see(&mut file, Warn, &format!("t{name}"), large("1"));
        }
        let list = &file.namespaces["git"].lists[&PinKind::Tool];
        let kept = list.entries.values().flat_map(EntryRecord::versions);
        let kept = kept.filter(|it| it.definition.is_some()).count();
        assert_eq!(kept, BYTES_MAX / (64 * 1024));
        assert_eq!(list.entries.len(), 100);
    }

    #[test]
    fn findings_count_as_recorded_bytes_and_leave_a_definition_suspicious() {
        let mut file = PinFile::default();
        let large = Finding {
            code: "instruction".to_owned(),
            place: "p".repeat(200),
            detail: "d".repeat(200),
        };
        let findings = vec![large; 8];
        for name in 0..NAMES_MAX {
            let version = Version {
                definition: Some("x".repeat(4096).into()),
                findings: findings.clone(),
                ..version("1")
            };
            see(&mut file, Warn, &format!("t{name}"), version);
        }
        let list = &file.namespaces["git"].lists[&PinKind::Tool];
        let size: usize = list
            .entries
            .values()
            .flat_map(EntryRecord::versions)
            .map(Version::size)
            .sum();
        assert!(
            size <= BYTES_MAX + NAMES_MAX * "instruction".len(),
            "{size}"
        );
        assert!(
            list.entries
                .values()
                .all(|it| it.state() == PinState::Suspicious)
        );
        assert_eq!(list.entries.len(), NAMES_MAX);
    }

    #[test]
    fn what_is_forgotten_is_recorded_anew() {
        let mut file = PinFile::default();
        see(&mut file, Enforce, "a", version("1"));
        see(&mut file, Enforce, "b", version("1"));
        end(&mut file, true);
        assert_eq!(
            file.forget("git", Some("a")),
            [(PinKind::Tool, "a".to_owned())]
        );
        assert_eq!(
            see(&mut file, Enforce, "a", version("2")),
            Pending(PinState::New)
        );
        assert_eq!(file.forget("git", None).len(), 2);
        assert_eq!(
            see(&mut file, Enforce, "a", version("3")),
            Recorded { first: true }
        );
        assert_eq!(file.forget("other", None), []);
    }
}
