//! The tools, prompts and resources that a namespace offers. Only here are tools stored, and the last good lists of a server.
//!
//! ```text
//!   tools that files declare ───────────────────────┐
//!   pages that clients request ─────▶ Catalogue ──▶ ToolList ──▶ View ──▶ REST, OpenAPI, counts,
//!   pages that the gateway requests ─▶   (pages)                          mirrored headers, argument checks
//! ```
//!
//! | subject | module |
//! |---|---|
//! | the tools at one moment, by name | `list` |
//! | the tools that a caller may see and call | `view` |
//! | pages of a server, stored for when it is unavailable | `pages` |
//! | one list request that all callers wait for, and how pages are requested | `refresh`, `pager` |
//! | texts of lists that the gateway writes | `written` |
//! | documents that are generated from lists | `documents` |
//! | checks of arguments against a tool's schema | [`arguments`] |
//! | checks of results against a tool's output schema | `results` |
//! | comparison of definitions with approved ones; definitions that are not approved are hidden | `pinned` |
//! | corrections of pages for strict clients, and the faults of a server's lists | [`mend`], [`cursor`], `mending` |
//! | conversion of arguments that were sent as JSON in strings | [`coerce`] |
//!
//! The tools that a namespace's files declare are a [`ToolList`] that never changes. A server's tools have a version. It changes
//! whenever the tools may have changed: the server announced a change, the process that listed them was replaced, or a client
//! received different tools. If the version has changed or the list is old, the gateway requests the list again when it is
//! needed. While a server cannot be reached, its last list is used.
//!
//! Only lists that all clients share are cached, since a list from a session's own process may be valid only for that session. A
//! client's `tools/list` request is always sent to the server.
//!
//! There is no global table of catalogues. Each namespace contains its own from first use (`Namespace::attached`) for as long as
//! it is served; a table in addition to the registry would have to be replaced at each reload, too.
//!
//! The list of a Python namespace is part of the snapshot. A `tools/list` for an MCP server is sent to the server each time. Its
//! pages, and those that the gateway itself requests, become the list for REST, mirrored headers, argument checks and repeated
//! calls, and are returned while the server is unavailable. The gateway requests pages with `pager`, called in
//! `mcp-upstream/engine/upstream/client/catalogue.rs` and, for each new shared connection, in
//! `mcp-upstream/servers/pool/process/replay.rs`. Pages are corrected in both cases: for clients in
//! `mcp-upstream/engine/upstream/client/call.rs`, for the gateway in `pager`. `mending` logs each correction once, and stores
//! the faults for `/ready`.

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
use refresh::PendingReading;
pub use refresh::{ListReading, ReadingOutcome, late};
pub use results::ResultCheck;
pub use view::{Access, View};

/// Time for which a list is used without requesting it again, if its server does not announce changes.
const FRESH: Duration = Duration::from_secs(300);
/// Time for which a list is used without requesting it again, if its server announces changes and has announced none meanwhile.
const FRESH_IF_ANNOUNCED: Duration = Duration::from_secs(3600);
/// Maximum number of tools for which the catalogue stores whether their calls may be repeated.
const HINTS_MAX: usize = 10_000;

/// The tools and lists that one server offers to all clients. `Default` creates an empty catalogue.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// The lists and their version. The lock is never held across an await.
    inner: Mutex<CatalogueState>,
    /// Settings for corrections of the server's lists, and the faults that were found in them.
    lists: Arc<ListMending>,
    results: results::Results,
    /// Channel that sends the version of the tools whenever the list must be requested again.
    announced: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct CatalogueState {
    pages: Pages,
    /// For each tool, whether its calls may be repeated.
    hints: HashMap<Arc<str>, bool>,
    /// True if the next page must update `hints` (whether calls may be repeated) even if that page is unchanged.
    stale: bool,
    version: u64,
    /// Value of the counter of approvals (pins) when the lists were read. If the counter has changed, the lists are outdated.
    generation: u64,
    /// The most recently read complete list of tools. It may belong to an earlier version than `version`.
    tools: Option<KnownTools>,
    /// True if the server announces changes of its tools; then its list is used for longer.
    announces: bool,
    /// The list request that is in progress; all callers wait for the same one.
    reading: Option<Arc<ListReading>>,
}

#[derive(Debug)]
struct KnownTools {
    list: Arc<ToolList>,
    /// Era of the connection on which the tools were listed.
    era: Era,
    read: Instant,
}

/// Creates a new version. Versions are unique within the process, so that a catalogue's version is never equal to that of the
/// catalogue which replaces it.
fn next_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Catalogue {
    /// Creates an empty catalogue with these settings for corrections of the server's lists.
    pub fn mended_by(lists: Arc<ListMending>) -> Self {
        Self {
            lists,
            ..Self::default()
        }
    }

    /// Settings for corrections of the server's lists, and the faults that were found in them.
    pub fn lists(&self) -> &Arc<ListMending> {
        &self.lists
    }

    /// Sets how lists are corrected from now on. A change makes the stored list outdated.
    pub fn set_lists(&self, mode: ListMode) {
        if self.lists.set(mode) {
            self.changed();
        }
    }

    /// Sets the approved definitions (pins) of the server. Without pins, nothing changes.
    pub fn set_pins(&self, pins: Option<Arc<NamespacePins>>) {
        if let Some(pins) = pins {
            self.lists.set_pins(pins);
        }
    }

    /// Corrects a page of a list, and removes definitions that are not approved. Returns `None` if nothing changes or the page is
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
        // A server that does not know the cursor may answer with its first page again. Its names are then no duplicates.
        if mend::names(kind, page).is_subset(&taken) {
            taken.clear();
        }
        let page = (page, key.cursor.as_deref());
        self.lists.page(namespace, (kind, era), page, &mut taken)
    }

    /// Returns true if a page must be searched for faults: corrections or pins are on, and the page differs from the stored one.
    /// Stored pages have been corrected already.
    pub fn is_to_be_mended(&self, key: Option<&PageKey>, page: &Bytes) -> bool {
        let is_known = |key| self.lock().pages.get(key) == Some(page);
        (self.lists.is_on() || self.lists.is_pinned()) && !key.is_some_and(is_known)
    }

    /// Version of the server's tools. If it differs from an earlier one, the tools may have changed.
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// The cached list of tools; `None` if it is outdated or missing.
    pub fn current(&self) -> Option<Arc<ToolList>> {
        self.lock().current().map(|known| Arc::clone(&known.list))
    }

    /// The most recently read list of tools, even if it is outdated; `None` if there is none.
    pub fn known(&self) -> Option<Arc<ToolList>> {
        let inner = self.lock();
        inner.tools.as_ref().map(|known| Arc::clone(&known.list))
    }

    /// The most recently read list of tools; `None` if no tool has an `outputSchema`.
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

    /// Stores a page of a list. If a page of tools is the first and has no next page, it becomes the complete list. A page that
    /// is stored under another cursor already is not stored again, since clients may invent cursors.
    pub fn remember(&self, key: PageKey, result: &Bytes) {
        if self.lock().has(&key, result) {
            return;
        }
        // The copy is made before the lock is taken, since it may be long. It is needed since `result` may be a small part of a
        // large buffer, which it would keep in memory.
        let result = Bytes::copy_from_slice(result);
        let page = (key.method == TOOLS_LIST).then(|| ToolPage::read(&result));
        let (era, is_first) = (key.era, key.cursor.is_none());
        let mut inner = self.lock();
        if is_first {
            // The first page has changed, so the stored pages after it belong to an outdated list.
            inner.pages.leave(era, key.method);
        }
        let kept = inner.pages.keep(key, result);
        let Some(page) = page else { return };
        let stale = std::mem::take(&mut inner.stale);
        let news = inner.hint(&page.entries);
        // A page that did not fit into the store cannot be compared with the previous one, so the change of its hints decides.
        if kept || stale || news {
            inner.version = next_version();
            if kept && is_first && page.is_whole() {
                let list = Arc::new(ToolList::new(inner.version, page.entries));
                self.results.known(&list);
                inner.tools = Some(KnownTools::new(list, era));
            }
        }
    }

    /// The last good result of a list request; `None` if none is stored.
    pub fn recall(&self, key: &PageKey) -> Option<Bytes> {
        self.lock().pages.get(key).cloned()
    }

    /// Returns true if a request may be sent again, although the server may have processed it already. `tool` is the tool's name
    /// in a `tools/call`.
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

    /// Records that the tools may have changed, so that the list is requested again when it is needed.
    pub fn changed(&self) {
        let mut inner = self.lock();
        // The version is created and announced under the lock, so that concurrent changes are announced in order.
        let version = next_version();
        inner.hints.clear();
        inner.stale = true;
        inner.version = version;
        self.lists.changed();
        self.announced.send_replace(version);
    }

    /// Returns a channel that receives the version of the tools whenever the list must be requested again.
    pub fn announced(&self) -> watch::Receiver<u64> {
        self.announced.subscribe()
    }

    /// Returns the list request for which callers wait if they need the current tools. A new list request comes with a
    /// `PendingReading`, which the caller must carry out.
    pub fn begin(&self) -> (Arc<ListReading>, Option<PendingReading>) {
        let mut inner = self.lock();
        let version = inner.version;
        if let Some(reading) = inner.reading.as_ref().filter(|it| it.serves(version)) {
            return (Arc::clone(reading), None);
        }
        let begun = PendingReading::at(version);
        inner.reading = Some(Arc::clone(begun.reading()));
        (Arc::clone(begun.reading()), Some(begun))
    }

    /// Waits until no list request is in progress, and begins one on a connection of this era. Returns `None` if the current
    /// tools were listed in this era already.
    pub async fn turn(&self, era: Era) -> Option<PendingReading> {
        loop {
            let running = {
                let mut inner = self.lock();
                if inner.current().is_some_and(|known| known.era == era) {
                    return None;
                }
                match inner.reading.as_ref().filter(|it| it.is_running()) {
                    Some(running) => Arc::clone(running),
                    None => {
                        let begun = PendingReading::at(inner.version);
                        inner.reading = Some(Arc::clone(begun.reading()));
                        return Some(begun);
                    }
                }
            };
            let _ = running.outcome().await;
        }
    }

    /// Requests all tools, and stores the pages and the list, unless the tools have changed in the meantime.
    ///
    /// # Errors
    ///
    /// The server's tools cannot be listed.
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

    /// Locks the state. Lists that were read before the last approval of definitions (pins) are dropped first.
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

    /// Returns true if this page is stored already. That is usual, since most clients request unchanged lists again and again.
    fn has(&self, key: &PageKey, result: &Bytes) -> bool {
        let to_be_read = self.stale && key.method == TOOLS_LIST;
        !to_be_read && self.pages.has(key, result)
    }

    /// Stores whether calls of these tools may be repeated. Returns true if that is new or has changed for any tool.
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
