//! Tools, prompts and resources that the upstream of a namespace offers: the only store of the tools and the last good lists.
//!
//! ```text
//!   tools that files declare ───────────────────────┐
//!   pages on their way to clients ──▶ Catalogue ──▶ ToolList ──▶ View ──▶ REST, OpenAPI, counts,
//!   one reading at a time (pager) ──▶   (pages)                           mirrored headers, argument checks
//! ```
//!
//! | subject | module |
//! |---|---|
//! | the tools at one moment, by name | `list` |
//! | the tools that a caller may see and call | `view` |
//! | pages as the server wrote them, for when it is unavailable | `pages` |
//! | the shared reading that all requests wait for, and how pages are requested | `refresh`, `pager` |
//! | lists as the gateway wrote them | `written` |
//! | documents made of them | `documents` |
//! | arguments checked against a schema of the list | [`arguments`] |
//! | results checked against the output schema of their tool | `results` |
//! | definitions compared with the recorded ones, and hidden until they are approved | `pinned` |
//! | pages mended for strict clients, and the faults of a server's lists | [`mend`], [`cursor`], `mending` |
//! | arguments sent as JSON in strings, converted to the types of the schema | [`coerce`] |
//!
//! The tools that a namespace's files declare are a [`ToolList`] that never changes. A server's tools have a version, which
//! changes whenever the tools may have changed: the server announced a change, the process that listed them was replaced, or a
//! client was shown different tools. The tools are read again on demand when the version has changed or the list is old. While
//! a server cannot be reached, its last list is used.
//!
//! Only lists that all clients share are cached: a list from a session's own process may be valid for that session alone. A
//! client's `tools/list` request is always sent to the server.
//!
//! There is no lookup table for tool lists and catalogues: a namespace keeps its own from first use (`Namespace::attached`) for
//! as long as it is served. A table beside the registry would be a second place for a reload to swap.
//!
//! The list of a Python namespace is part of the snapshot. A `tools/list` for a server that speaks MCP is sent to the server each
//! time; its pages, and those that the gateway reads (`pager`, from `mcp-upstream/upstream/client/catalogue.rs` and, for each
//! new shared connection, from `mcp-upstream/stdio/process/replay.rs`), become the list for REST, mirrored headers, argument
//! checks and repeated calls. They answer while the server is unavailable. Pages are mended on both ways: for clients in
//! `mcp-upstream/upstream/client/call.rs`, for the gateway in `pager`; `mending` logs each mend once and keeps the faults for
//! `/ready`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use tooldock_base::error::CallError;
use tooldock_base::names::NamespaceName;
use tooldock_protocol::version::Era;
use tooldock_workers::pins::NamespacePins;
use tooldock_workers::server_settings::ListMode;

pub mod arguments;
pub mod coerce;
pub mod cursor;
mod documents;
mod list;
pub mod mend;
mod mending;
mod pager;
mod pages;
mod pinned;
mod refresh;
mod results;
#[cfg(test)]
mod tests;
mod view;
mod written;

use list::ToolPage;
pub use list::{ToolEntry, ToolList};
pub use mend::ListKind;
pub use mending::ListMending;
pub use mending::MendReport;
pub use pager::{PageSource, listed_by};
pub use pages::PageKey;
use pages::{Pages, TOOLS_LIST};
use refresh::BegunReading;
pub use refresh::{ListReading, ReadingOutcome, late};
pub use results::ResultCheck;
pub use view::{Access, View};

/// Age up to which the list of a server that announces no changes is current.
const FRESH: Duration = Duration::from_secs(300);
/// Age up to which the list of a server that announces changes is current, while it announces none.
const FRESH_IF_ANNOUNCED: Duration = Duration::from_secs(3600);
/// Maximum number of tools whose hints are kept.
const HINTS_MAX: usize = 10_000;

/// The tools and lists that one server offers to all clients. Empty by `Default`.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// Catalogue state. The lock is never held across an await.
    inner: Mutex<CatalogueState>,
    /// The mode in which the server's lists are mended, and the log of their faults.
    lists: Arc<ListMending>,
    results: results::Results,
    /// Sends the version of the tools whenever they are to be read again.
    announced: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct CatalogueState {
    pages: Pages,
    /// True for each tool whose calls may be repeated.
    hints: HashMap<Arc<str>, bool>,
    /// True when the hints must be read again, even from unchanged pages.
    stale: bool,
    version: u64,
    /// The decision about pins after which everything here was read.
    generation: u64,
    /// The last complete list of tools, of the current `version` or of an earlier one.
    tools: Option<KnownTools>,
    /// True when the server announces changes of its tools.
    announces: bool,
    /// The reading in progress, which all callers share.
    reading: Option<Arc<ListReading>>,
}

#[derive(Debug)]
struct KnownTools {
    list: Arc<ToolList>,
    /// The era of the connection that listed the tools.
    era: Era,
    read: Instant,
}

/// A new version. Versions are never reused, so that a server's version is not mistaken for its successor's.
fn next_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Catalogue {
    /// An empty catalogue, of a server whose lists are mended by `lists`.
    pub fn mended_by(lists: Arc<ListMending>) -> Self {
        Self {
            lists,
            ..Self::default()
        }
    }

    /// The mode in which the server's lists are mended, and the log of their faults.
    pub fn lists(&self) -> &Arc<ListMending> {
        &self.lists
    }

    /// Sets the mode in which subsequent lists are mended.
    pub fn set_lists(&self, mode: ListMode) {
        if self.lists.set(mode) {
            self.changed();
        }
    }

    /// Sets the pins of the server's definitions.
    pub fn set_pins(&self, pins: Option<Arc<NamespacePins>>) {
        if let Some(pins) = pins {
            self.lists.set_pins(pins);
        }
    }

    /// The page of a list without definitions that are not approved, mended; `None` if that changes nothing or the page is
    /// stored already.
    pub fn mended(
        &self,
        namespace: &NamespaceName,
        (kind, key): (ListKind, Option<&PageKey>),
        (page, era): (&Bytes, Era),
    ) -> Option<Bytes> {
        if !self.is_to_be_mended(key, page) {
            return None;
        }
        let first = key.is_some_and(|key| key.cursor.is_none());
        let pinned = self.lists.pinned(kind, page, first);
        let page = pinned.as_ref().unwrap_or(page);
        let mended = self.mended_page(namespace, (kind, key), (page, era));
        mended.or(pinned)
    }

    fn mended_page(
        &self,
        namespace: &NamespaceName,
        (kind, key): (ListKind, Option<&PageKey>),
        (page, era): (&Bytes, Era),
    ) -> Option<Bytes> {
        let Some(key) = key else {
            let taken = &mut HashSet::new();
            return self.lists.page(namespace, (kind, era), (page, None), taken);
        };
        let first = key.cursor.as_ref().map(|_| key.first());
        let first = first.and_then(|key| self.recall(&key));
        let mut taken = first.map_or_else(HashSet::new, |first| mend::names(kind, &first));
        // A server that does not know the cursor may answer with its first page. The names on that page are not
        // duplicates.
        if mend::names(kind, page).is_subset(&taken) {
            taken.clear();
        }
        let page = (page, key.cursor.as_deref());
        self.lists.page(namespace, (kind, era), page, &mut taken)
    }

    /// Returns true if a page must be searched for faults: lists are mended or pinned, and the page differs from the stored
    /// page. Pages are stored in the form for clients.
    pub fn is_to_be_mended(&self, key: Option<&PageKey>, page: &Bytes) -> bool {
        let is_known = |key| self.lock().pages.get(key) == Some(page);
        (self.lists.is_on() || self.lists.is_pinned()) && !key.is_some_and(is_known)
    }

    /// The version of the tools: when it differs, the tools may have changed.
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// The tools, if the cached list is current.
    pub fn current(&self) -> Option<Arc<ToolList>> {
        self.lock().current().map(|known| Arc::clone(&known.list))
    }

    /// The tools as they were read last, current or not.
    pub fn known(&self) -> Option<Arc<ToolList>> {
        let inner = self.lock();
        inner.tools.as_ref().map(|known| Arc::clone(&known.list))
    }

    /// The tools, if any of them has an `outputSchema`.
    pub fn with_results(&self) -> Option<Arc<ToolList>> {
        match self.results.are_declared() {
            true => self.known(),
            false => None,
        }
    }

    /// Records a fault of a tool's results. Returns true if the fault is new and must be logged.
    pub fn is_new_fault(&self, tool: &str, fault: &str) -> bool {
        self.results.is_news(tool, fault)
    }

    /// Stores the result of a list method. A first page of tools without a next page contains all tools of its version. A page
    /// already stored under another cursor is not stored again: clients invent such cursors.
    pub fn remember(&self, key: PageKey, result: &Bytes) {
        if self.lock().has(&key, result) {
            return;
        }
        // Copied before the lock, since a list may be long; the span may be a small part of a large read.
        let result = Bytes::copy_from_slice(result);
        let page = (key.method == TOOLS_LIST).then(|| ToolPage::read(&result));
        let (era, is_first) = (key.era, key.cursor.is_none());
        let mut inner = self.lock();
        if is_first {
            // The kept pages that followed another first page belong to another list.
            inner.pages.leave(era, key.method);
        }
        let kept = inner.pages.keep(key, result);
        let Some(page) = page else { return };
        let stale = std::mem::take(&mut inner.stale);
        let news = inner.hint(&page.entries);
        // A page that was not kept, for lack of room, cannot be compared with the one before, except by its hints.
        if kept || stale || news {
            inner.version = next_version();
            if kept && is_first && page.is_whole() {
                let list = Arc::new(ToolList::new(inner.version, page.entries));
                self.results.known(&list);
                inner.tools = Some(KnownTools::new(list, era));
            }
        }
    }

    /// The last good result of a list request.
    pub fn recall(&self, key: &PageKey) -> Option<Bytes> {
        self.lock().pages.get(key).cloned()
    }

    /// Returns true if a request may be sent again although the server may have begun to handle it. `tool` is the name in a
    /// `tools/call`.
    pub fn is_repeatable(&self, method: &str, tool: Option<&str>) -> bool {
        match (method, tool) {
            ("tools/call", Some(tool)) => self.lock().hints.get(tool).copied().unwrap_or(false),
            _ => matches!(
                method,
                "tools/list"
                    | "prompts/list"
                    | "prompts/get"
                    | "resources/list"
                    | "resources/templates/list"
                    | "resources/read"
                    | "completion/complete"
                    | "ping"
            ),
        }
    }

    /// Records that the tools may have changed.
    pub fn changed(&self) {
        let mut inner = self.lock();
        // Under the lock, so that the later of two concurrent changes is announced last.
        let version = next_version();
        inner.hints.clear();
        inner.stale = true;
        inner.version = version;
        self.lists.changed();
        self.announced.send_replace(version);
    }

    /// Receives the version of the tools whenever they are to be read again.
    pub fn announced(&self) -> watch::Receiver<u64> {
        self.announced.subscribe()
    }

    /// The reading that callers who need the current tools wait for. A new reading comes with a `BegunReading`, which the
    /// caller must carry out.
    pub fn begin(&self) -> (Arc<ListReading>, Option<BegunReading>) {
        let mut inner = self.lock();
        let version = inner.version;
        if let Some(reading) = inner.reading.as_ref().filter(|it| it.serves(version)) {
            return (Arc::clone(reading), None);
        }
        let begun = BegunReading::at(version);
        inner.reading = Some(Arc::clone(begun.reading()));
        (Arc::clone(begun.reading()), Some(begun))
    }

    /// Waits until no reading is in progress, and begins a reading for a connection of this era. `None` if the current tools
    /// were listed in this era.
    pub async fn turn(&self, era: Era) -> Option<BegunReading> {
        loop {
            let running = {
                let mut inner = self.lock();
                if inner.current().is_some_and(|known| known.era == era) {
                    return None;
                }
                match inner.reading.as_ref().filter(|it| it.is_running()) {
                    Some(running) => Arc::clone(running),
                    None => {
                        let begun = BegunReading::at(inner.version);
                        inner.reading = Some(Arc::clone(begun.reading()));
                        return Some(begun);
                    }
                }
            };
            let _ = running.outcome().await;
        }
    }

    /// Reads all tools and keeps pages and list, unless something changes meanwhile.
    ///
    /// # Errors
    ///
    /// If the tools cannot be read.
    pub async fn read(
        &self,
        namespace: &NamespaceName,
        source: &dyn PageSource,
    ) -> Result<Arc<ToolList>, CallError> {
        let version = self.version();
        let read = pager::read(namespace, source, &self.lists).await?;
        let list = Arc::new(ToolList::new(version, read.entries));
        let known = KnownTools::new(Arc::clone(&list), read.era);
        let mut inner = self.lock();
        inner.announces = read.announces;
        if inner.version == version {
            inner.stale = false;
            inner.hints.clear();
            inner.hint(list.entries());
            inner.pages.replace(read.era, read.pages);
        }
        let before = inner.tools.as_ref().map_or(0, |it| it.list.version());
        if before <= version {
            self.results.known(&list);
            inner.tools = Some(known);
        }
        Ok(list)
    }

    /// The state of the catalogue. Lists that were read before the last decision about pins are dropped from it first.
    fn lock(&self) -> MutexGuard<'_, CatalogueState> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.lists.pin_generation();
        if inner.generation != generation {
            *inner = CatalogueState {
                generation,
                stale: true,
                version: next_version(),
                announces: inner.announces,
                reading: inner.reading.take(),
                ..CatalogueState::default()
            };
        }
        inner
    }
}

impl KnownTools {
    fn new(list: Arc<ToolList>, era: Era) -> Self {
        let read = Instant::now();
        Self { list, era, read }
    }
}

impl CatalogueState {
    fn current(&self) -> Option<&KnownTools> {
        let fresh = match self.announces {
            true => FRESH_IF_ANNOUNCED,
            false => FRESH,
        };
        let known = self.tools.as_ref()?;
        (known.list.version() == self.version && known.read.elapsed() < fresh).then_some(known)
    }

    /// Returns true if storing this page would change nothing: most clients request unchanged lists again.
    fn has(&self, key: &PageKey, result: &Bytes) -> bool {
        let to_be_read = self.stale && key.method == TOOLS_LIST;
        !to_be_read && self.pages.has(key, result)
    }

    /// Keeps the tools' hints. Returns true if a hint is new or changed.
    fn hint(&mut self, tools: &[ToolEntry]) -> bool {
        let mut news = false;
        for tool in tools {
            if self.hints.len() < HINTS_MAX || self.hints.contains_key(tool.name()) {
                let repeatable = tool.is_repeatable();
                let before = self.hints.insert(tool.shared_name(), repeatable);
                news |= before != Some(repeatable);
            }
        }
        news
    }
}
