//! Corrections of one server's lists: whether they are on, and the faults that were found, for the log and for `/ready`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use tooldock_base::config::PinMode;
use tooldock_base::names::NamespaceName;
use tooldock_protocol::version::Era;
use tooldock_workers::pins::NamespacePins;
use tooldock_workers::server_settings::ListMode;

use super::mend::{self, ListKind, MENDS_MAX, Mend};
use super::pinned;

/// Maximum number of faults that `/ready` shows for one server.
const SHOWN_MAX: usize = 50;
/// Maximum number of entries that a report names; further ones are only counted.
const NAMED_MAX: usize = 20;

/// State of the corrections of one server's lists. All connections to the server share it.
#[derive(Debug, Default)]
pub struct ListMending {
    /// True if lists are forwarded as the server wrote them; false if they are corrected.
    raw: AtomicBool,
    /// The corrections that were made. The lock is never held across an await.
    told: Mutex<MendLog>,
    /// The approved definitions (pins) of the server; unset if this process does not use pins.
    pins: OnceLock<Arc<NamespacePins>>,
}

#[derive(Debug, Default)]
struct MendLog {
    /// All corrections that were logged; they are not logged again.
    logged: HashSet<(ListKind, Mend)>,
    /// Corrections of the current lists.
    current: HashSet<(ListKind, Mend)>,
    /// Corrections of the current lists, in the order in which they were made.
    order: Vec<(ListKind, Mend)>,
}

/// A fault of one or several entries of a list, for the log and `/ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MendReport {
    /// The method that requests the list.
    list: &'static str,
    /// Names or positions of the entries with the fault; empty if the page itself has the fault.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entries: Vec<String>,
    /// Number of further entries with the fault that `entries` does not list.
    #[serde(skip_serializing_if = "is_zero")]
    more: usize,
    /// True if the entries were removed from the list; false if they were corrected.
    left_out: bool,
    /// Description of the fault.
    fault: String,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature is serde's"
)]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl ListMending {
    /// Turns corrections on or off. Returns true if that is a change.
    pub(crate) fn set(&self, mode: ListMode) -> bool {
        let raw = mode == ListMode::Raw;
        self.raw.swap(raw, Ordering::Relaxed) != raw
    }

    /// Returns true if lists are corrected; false if they are forwarded as the server wrote them.
    pub(super) fn is_on(&self) -> bool {
        !self.raw.load(Ordering::Relaxed)
    }

    /// Sets the approved definitions (pins) of the server. Only the first call has an effect, since a namespace has the same pins
    /// for as long as the process runs.
    pub(super) fn set_pins(&self, pins: Arc<NamespacePins>) {
        let _ = self.pins.set(pins);
    }

    /// Returns true if definitions are compared with approved ones.
    pub(super) fn is_pinned(&self) -> bool {
        self.pins.get().is_some_and(|it| it.mode() != PinMode::Off)
    }

    /// Counter of approvals of definitions (pins). If it has changed, lists that were read before are outdated.
    pub(super) fn pin_generation(&self) -> u64 {
        self.pins.get().map_or(0, |it| it.generation())
    }

    /// Records the definitions on a page, as the server wrote them. Returns the page without definitions that must be hidden
    /// until an operator approves them; `None` if there are none. `first` is true for the first page of a list.
    pub(super) fn pinned(&self, kind: ListKind, page: &Bytes, first: bool) -> Option<Bytes> {
        pinned::page(self.pins.get()?, kind, page, first)
    }

    /// Corrects a page of a list, and logs the corrections. Returns `None` if nothing is wrong. `asked_by` is the cursor (raw
    /// JSON) with which the page was requested. `taken` contains the names on earlier pages; the names on this page are added to
    /// it.
    pub(crate) fn page(
        &self,
        namespace: &NamespaceName,
        (kind, era): (ListKind, Era),
        (page, asked_by): (&Bytes, Option<&str>),
        taken: &mut HashSet<String>,
    ) -> Option<Bytes> {
        if !self.is_on() {
            return None;
        }
        let text = std::str::from_utf8(page).ok()?;
        let (mended, mends) = mend::page((kind, era), text, asked_by, taken)?;
        self.record_mends(namespace, kind, mends);
        Some(mended.into())
    }

    /// Reports about the faults in the current lists.
    pub fn reports(&self) -> Vec<MendReport> {
        let mut reports = Vec::new();
        for (kind, mend) in &self.lock().order {
            note(&mut reports, *kind, mend, SHOWN_MAX);
        }
        reports
    }

    /// Forgets the faults of the current lists, since the lists will be read again.
    pub(super) fn changed(&self) {
        let mut told = self.lock();
        told.current.clear();
        told.order.clear();
    }

    fn record_mends(&self, namespace: &NamespaceName, kind: ListKind, mends: Vec<Mend>) {
        let mut told = self.lock();
        let mut news: Vec<MendReport> = Vec::new();
        for mend in mends {
            let mend = (kind, mend);
            if told.current.len() < MENDS_MAX && told.current.insert(mend.clone()) {
                told.order.push(mend.clone());
            }
            if told.logged.len() < MENDS_MAX && told.logged.insert(mend.clone()) {
                note(&mut news, kind, &mend.1, usize::MAX);
            }
        }
        drop(told);
        for report in news {
            report.log(namespace);
        }
    }

    fn lock(&self) -> MutexGuard<'_, MendLog> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds a correction to the report about the same fault, or adds a new report if there are fewer than `max`.
fn note(reports: &mut Vec<MendReport>, kind: ListKind, mend: &Mend, max: usize) {
    let list = kind.method();
    let same = |it: &&mut MendReport| {
        it.list == list && it.left_out == mend.left_out && it.fault == mend.what
    };
    let is_full = reports.len() >= max;
    let known = reports.iter_mut().find(same);
    match (known, &mend.entry) {
        (Some(report), Some(entry)) if !report.entries.contains(entry) => {
            match report.entries.len() < NAMED_MAX {
                true => report.entries.push(entry.clone()),
                false => report.more += 1,
            }
        }
        (Some(_), _) => {}
        (None, entry) if !is_full => reports.push(MendReport {
            list,
            entries: entry.iter().cloned().collect(),
            more: 0,
            left_out: mend.left_out,
            fault: mend.what.clone(),
        }),
        (None, _) => {}
    }
}

impl MendReport {
    fn log(&self, namespace: &NamespaceName) {
        let (list, fault) = (self.list, &self.fault);
        let named: Vec<_> = self.entries.iter().map(|it| format!("{it:?}")).collect();
        let mut entries = named.join(", ");
        if self.more > 0 {
            entries = format!("{entries} and {} more", self.more);
        }
        let done = match (self.left_out, self.entries.len()) {
            (true, 0 | 1) => "is left out",
            (true, _) => "are left out",
            (false, 0 | 1) => "was mended",
            (false, _) => "were mended",
        };
        let subject = match self.entries.is_empty() {
            true => "the page",
            false => &entries,
        };
        tracing::warn!(
            namespace = %namespace,
            list,
            "in {list} of the server of namespace {namespace}, {subject} {done}: {fault} (configuration key lists)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(mending: &ListMending, text: &'static str) -> Option<Bytes> {
        let name = "git".parse().expect("a name");
        let kind = (ListKind::Tools, Era::Legacy);
        let page = Bytes::from_static(text.as_bytes());
        mending.page(&name, kind, (&page, None), &mut HashSet::new())
    }

    #[test]
    fn a_fault_is_reported_once_with_its_entries() {
        let mending = ListMending::default();
        let odd = r#"{"tools":[{"name":"a"},{"name":"b"},{"name":"c","inputSchema":false}],"nextCursor":null}"#;
        assert!(page(&mending, odd).is_some());
        let reports = mending.reports();
        assert!(page(&mending, odd).is_some());
        assert_eq!(mending.reports(), reports);
        assert_eq!(
            serde_json::to_value(&reports).expect("JSON"),
            serde_json::json!([
                { "list": "tools/list", "left_out": false, "fault": "its nextCursor is null" },
                { "list": "tools/list", "entries": ["a", "b"], "left_out": false, "fault": "its inputSchema is missing" },
                { "list": "tools/list", "entries": ["c"], "left_out": true, "fault": "its inputSchema allows nothing" },
            ])
        );
        mending.changed();
        assert_eq!(mending.reports(), []);
    }

    #[test]
    fn raw_lists_pass_as_they_are() {
        let mending = ListMending::default();
        assert!(mending.set(ListMode::Raw) && !mending.set(ListMode::Raw));
        assert_eq!(page(&mending, r#"{"tools":null}"#), None);
        assert_eq!(mending.reports(), []);
    }

    #[test]
    fn reports_are_bounded() {
        let mending = ListMending::default();
        let entries: Vec<_> = (0..5_000)
            .map(|at| format!(r#"{{"name":"t{at}"}}"#))
            .collect();
        let text = format!(r#"{{"tools":[{}]}}"#, entries.join(","));
        page(&mending, text.leak());
        let reports = mending.reports();
        assert_eq!((reports.len(), reports[0].entries.len()), (1, NAMED_MAX));
        assert_eq!(mending.lock().logged.len(), MENDS_MAX);
    }
}
