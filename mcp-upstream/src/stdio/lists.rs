//! The last good lists of one server: what it answered to list methods when it last could, for as long as it cannot,
//! and what its list of tools says about repeating a call.
//!
//! Only lists of processes that many share are kept: what a session's own process lists may be that session's alone.
//! The tools have a version. It changes whenever they may have: the server said so, another process took the place of
//! the one that listed them, or a client was shown others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::protocol::Era;

/// Bytes of lists that are kept; what does not fit is not kept.
pub(super) const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of a cursor that a page is kept under: it is the client's word until the server has taken it.
const CURSOR_MAX: usize = 1024;
/// Pages that are kept.
const PAGES_MAX: usize = 1000;
/// Tools whose hints are kept.
const HINTS_MAX: usize = 10_000;
/// Methods whose results are lists.
const METHODS: [&str; 4] = [
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
];

/// The lists of one server. `Default` holds none.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// Plain data; nothing awaits under it.
    inner: Mutex<Inner>,
    /// The version at which the tools are to be read again.
    announced: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    pages: HashMap<Key, Bytes>,
    /// Of pages and their cursors.
    bytes: usize,
    /// Whether a call of the tool may be repeated.
    hints: HashMap<Box<str>, bool>,
    /// The hints are to be read again, whatever the pages say.
    stale: bool,
    version: u64,
    /// Which pages are all the tools of this version.
    complete: Option<Complete>,
}

#[derive(Debug)]
struct Complete {
    era: Era,
    cursors: Vec<Option<Box<str>>>,
    read: Instant,
}

/// The tools of a server as far as they are known here.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownTools {
    /// Another one means that they may be others. Never the same for two lists, be they of two servers.
    pub(crate) version: u64,
    /// All pages of that version, where they were read, and when.
    pub(crate) pages: Option<(Vec<Bytes>, Instant)>,
}

/// Versions are never used twice, so that one of a server before is not taken for one of its successor.
fn next_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Era, method and cursor, which is raw JSON.
type Key = (Era, &'static str, Option<Box<str>>);

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Tools {
    tools: Vec<Tool>,
    /// There is another page.
    #[serde(default)]
    next_cursor: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Tool {
    name: Box<str>,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Annotations {
    read_only_hint: Option<bool>,
    idempotent_hint: Option<bool>,
}

impl Complete {
    fn new(era: Era, cursors: Vec<Option<Box<str>>>) -> Self {
        let read = Instant::now();
        Self { era, cursors, read }
    }
}

impl Tools {
    /// What one page says; of what is no page, nothing.
    fn of(page: &Bytes) -> Self {
        serde_json::from_slice(page).unwrap_or_default()
    }

    /// Whether a first page is all there is.
    fn is_whole(&self) -> bool {
        !self.tools.is_empty() && self.next_cursor.is_none()
    }

    fn hints(self) -> Vec<(Box<str>, bool)> {
        let hint = |tool: Tool| {
            let annotations = tool.annotations.unwrap_or_default();
            let hints = [annotations.read_only_hint, annotations.idempotent_hint];
            (tool.name, hints.contains(&Some(true)))
        };
        self.tools.into_iter().map(hint).collect()
    }
}

impl Lists {
    /// Keeps the result of a list method; a first page of tools without a next one is all the tools of its version. What
    /// is no list is not kept, nor is a page under a cursor of more than [`CURSOR_MAX`] bytes, nor one that another cursor
    /// has led to already: such cursors are a client's invention.
    pub(crate) fn remember(&self, era: Era, method: &str, cursor: Option<&str>, result: &Bytes) {
        let Some(method) = METHODS.into_iter().find(|known| *known == method) else {
            return;
        };
        if cursor.is_some_and(is_too_long) {
            return;
        }
        let key = (era, method, cursor.map(Into::into));
        if self.lock().has(&key, result) {
            return;
        }
        // Before the lock: a list may be long.
        let tools = (method == "tools/list").then(|| Tools::of(result));
        let mut inner = self.lock();
        if cursor.is_none() {
            // The pages after another first page are another list's.
            inner.leave_pages(era, method);
        }
        let kept = inner.keep(key, result);
        if let Some(tools) = tools {
            let stale = std::mem::take(&mut inner.stale);
            let whole = kept && cursor.is_none() && tools.is_whole();
            let news = inner.hint(tools.hints());
            // What has no room cannot be compared with what was there, but for its hints.
            if kept || stale || news {
                inner.version = next_version();
                inner.complete = whole.then(|| Complete::new(era, vec![None]));
            }
        }
    }

    /// Keeps all tools as they were read when the version was that; each page with the cursor it was asked for by.
    pub(super) fn complete(&self, era: Era, version: u64, pages: Vec<(Option<String>, Bytes)>) {
        const METHOD: &str = "tools/list";
        let read: Vec<_> = pages.iter().map(|(_, page)| Tools::of(page)).collect();
        let mut inner = self.lock();
        if inner.version != version {
            // They changed meanwhile, and will be read again.
            return;
        }
        inner.leave_pages(era, METHOD);
        inner.stale = false;
        inner.hints.clear();
        for tools in read {
            inner.hint(tools.hints());
        }
        if pages
            .iter()
            .any(|(cursor, _)| cursor.as_deref().is_some_and(is_too_long))
        {
            inner.complete = None;
            return;
        }
        let mut cursors = Vec::with_capacity(pages.len());
        for (cursor, page) in pages {
            let cursor: Option<Box<str>> = cursor.map(Into::into);
            inner.keep((era, METHOD, cursor.clone()), &page);
            cursors.push(cursor);
        }
        inner.complete = Some(Complete::new(era, cursors));
    }

    /// The tools, where all of them are known, and the version they have.
    pub(crate) fn tools(&self) -> KnownTools {
        let inner = self.lock();
        let pages = inner.complete.as_ref().and_then(|complete| {
            let cursors = complete.cursors.iter();
            let page = |cursor: &Option<Box<str>>| {
                let key = (complete.era, "tools/list", cursor.clone());
                inner.pages.get(&key).cloned()
            };
            let pages: Option<Vec<Bytes>> = cursors.map(page).collect();
            Some((pages?, complete.read))
        });
        KnownTools {
            version: inner.version,
            pages,
        }
    }

    /// Tells whoever reads the tools for everybody of the version at which to read them again.
    pub(super) fn announced(&self) -> watch::Receiver<u64> {
        self.announced.subscribe()
    }

    /// The last good result.
    pub(crate) fn recall(&self, era: Era, method: &str, cursor: Option<&str>) -> Option<Bytes> {
        let method = METHODS.into_iter().find(|known| *known == method)?;
        if cursor.is_some_and(is_too_long) {
            return None;
        }
        let key = (era, method, cursor.map(Into::into));
        self.lock().pages.get(&key).cloned()
    }

    /// Whether a request may be sent again although the server may have begun with it. `tool` is the name in a
    /// `tools/call`.
    pub(crate) fn is_repeatable(&self, method: &str, tool: Option<&str>) -> bool {
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

    /// The tools may not be what they were.
    pub(super) fn changed(&self) {
        let version = next_version();
        {
            let mut inner = self.lock();
            inner.hints.clear();
            inner.stale = true;
            inner.version = version;
            inner.complete = None;
        }
        self.announced.send_replace(version);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Whether all that follows from a page is known: most clients list again what has not changed.
    fn has(&self, key: &Key, result: &Bytes) -> bool {
        if self.stale && key.1 == "tools/list" {
            return false;
        }
        match (self.pages.get(key), &key.2) {
            (Some(page), _) => page == result,
            // Another name for a page of the same list.
            (None, Some(_)) => {
                let mut own = self.pages.iter();
                own.any(|((era, method, _), page)| {
                    *era == key.0 && *method == key.1 && page == result
                })
            }
            (None, None) => false,
        }
    }

    /// Says whether any of them is news.
    fn hint(&mut self, hints: Vec<(Box<str>, bool)>) -> bool {
        let mut news = false;
        for (tool, repeatable) in hints {
            if self.hints.len() < HINTS_MAX || self.hints.contains_key(&tool) {
                news |= self.hints.insert(tool, repeatable) != Some(repeatable);
            }
        }
        news
    }

    fn leave_pages(&mut self, era: Era, method: &'static str) {
        let bytes = &mut self.bytes;
        self.pages.retain(|key, page| {
            let left = key.0 == era && key.1 == method;
            *bytes -= if left { weight(key, page) } else { 0 };
            !left
        });
    }

    /// Says whether there was room.
    fn keep(&mut self, key: Key, result: &Bytes) -> bool {
        if let Some(before) = self.pages.remove(&key) {
            self.bytes -= weight(&key, &before);
        }
        let weight = weight(&key, result);
        let fits = self.pages.len() < PAGES_MAX && self.bytes + weight <= BYTES_MAX;
        if fits {
            self.bytes += weight;
            // A copy: the span may be a small part of a large read.
            self.pages.insert(key, Bytes::copy_from_slice(result));
        }
        fits
    }
}

fn is_too_long(cursor: &str) -> bool {
    cursor.len() > CURSOR_MAX
}

fn weight(key: &Key, page: &Bytes) -> usize {
    page.len() + key.2.as_ref().map_or(0, |cursor| cursor.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEGACY: Era = Era::Legacy;

    #[test]
    fn the_last_good_page_is_there_and_nothing_else() {
        let lists = Lists::default();
        let (old, new) = (Bytes::from("{\"a\":1}"), Bytes::from("{\"a\":2}"));
        lists.remember(LEGACY, "prompts/list", None, &old);
        lists.remember(LEGACY, "prompts/list", None, &new);
        lists.remember(LEGACY, "prompts/list", Some("2"), &old);
        lists.remember(LEGACY, "prompts/get", None, &old);
        assert_eq!(lists.recall(LEGACY, "prompts/list", None), Some(new));
        assert_eq!(lists.recall(LEGACY, "prompts/list", Some("2")), Some(old));
        assert_eq!(lists.recall(LEGACY, "prompts/list", Some("3")), None);
        assert_eq!(lists.recall(Era::Modern, "prompts/list", None), None);
        assert_eq!(lists.recall(LEGACY, "prompts/get", None), None);
    }

    #[test]
    fn a_call_is_repeatable_only_where_the_tool_says_so() {
        let lists = Lists::default();
        let result = br#"{"tools":[
            {"name":"read","annotations":{"readOnlyHint":true}},
            {"name":"put","annotations":{"idempotentHint":true,"readOnlyHint":false}},
            {"name":"add","annotations":{"title":"Add"}},
            {"name":"pay"}
        ]}"#;
        let repeatable = |tool| lists.is_repeatable("tools/call", Some(tool));
        assert!(!repeatable("read"));
        lists.remember(LEGACY, "tools/list", None, &Bytes::from_static(result));
        assert_eq!(
            ["read", "put", "add", "pay", "new"].map(repeatable),
            [true, true, false, false, false]
        );
        lists.changed();
        assert!(!repeatable("read"));
        lists.remember(LEGACY, "tools/list", None, &Bytes::from_static(result));
        assert!(repeatable("read"));
        assert!(lists.is_repeatable("resources/read", None));
        assert!(!lists.is_repeatable("tools/call", None));
        assert!(!lists.is_repeatable("x/unknown", None));
    }

    #[test]
    fn tools_that_were_read_are_known_until_they_may_be_others() {
        let lists = Lists::default();
        let (one, two) = (
            Bytes::from_static(br#"{"tools":[{"name":"a"}],"nextCursor":"n"}"#),
            Bytes::from_static(br#"{"tools":[{"name":"b"}]}"#),
        );
        let pages = || vec![(None, one.clone()), (Some("n".to_owned()), two.clone())];
        let announced = lists.announced();
        lists.changed();
        assert!(announced.has_changed().expect("the sender is there"));
        let version = lists.tools().version;
        lists.complete(LEGACY, version, pages());
        let known = lists.tools();
        assert_eq!(known.version, version);
        assert_eq!(known.pages.expect("read").0, [one.clone(), two.clone()]);
        // A client that is shown the same again tells nothing new, one that is shown another list does.
        lists.remember(LEGACY, "tools/list", None, &one);
        assert_eq!(lists.tools().version, version);
        let other = Bytes::from_static(br#"{"tools":[{"name":"c"}],"nextCursor":"n"}"#);
        lists.remember(LEGACY, "tools/list", None, &other);
        let known = lists.tools();
        assert!(known.version > version && known.pages.is_none());
        // What was read before a change is no longer all there is.
        lists.complete(LEGACY, version, pages());
        assert!(lists.tools().pages.is_none());
        // Nor is a page that came after another first one.
        assert_eq!(lists.recall(LEGACY, "tools/list", Some("n")), None);
    }

    #[test]
    fn a_page_that_is_all_of_them_needs_no_reading() {
        let lists = Lists::default();
        let whole = Bytes::from_static(br#"{"tools":[{"name":"a"}]}"#);
        lists.remember(LEGACY, "tools/list", None, &whole);
        assert_eq!(lists.tools().pages.expect("shown").0, [whole]);
        // Of a list that is no list nothing is known.
        let odd = Bytes::from_static(br#"{"tools":7}"#);
        lists.remember(LEGACY, "tools/list", None, &odd);
        assert!(lists.tools().pages.is_none());
    }

    #[test]
    fn versions_of_two_servers_are_never_the_same() {
        let (one, other) = (Lists::default(), Lists::default());
        one.changed();
        other.changed();
        assert_ne!(one.tools().version, other.tools().version);
    }

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let lists = Lists::default();
        let large = Bytes::from(vec![b' '; BYTES_MAX / 2 + 1]);
        lists.remember(LEGACY, "tools/list", None, &large);
        lists.remember(LEGACY, "prompts/list", None, &large);
        assert!(lists.recall(LEGACY, "tools/list", None).is_some());
        assert!(lists.recall(LEGACY, "prompts/list", None).is_none());
        // The same list again takes the place it has.
        lists.remember(LEGACY, "tools/list", None, &large);
        assert_eq!(lists.lock().bytes, large.len());
        // What has no room tells nothing new each time it is shown.
        lists.remember(LEGACY, "tools/list", Some("1"), &large.slice(1..));
        let version = lists.tools().version;
        let larger = Bytes::from(vec![b' '; BYTES_MAX]);
        lists.remember(LEGACY, "tools/list", Some("1"), &larger);
        assert_eq!(lists.tools().version, version);
    }

    #[test]
    fn cursors_count_and_inventions_of_clients_are_not_kept() {
        let lists = Lists::default();
        let first = Bytes::from_static(br#"{"tools":[{"name":"a"}]}"#);
        lists.remember(LEGACY, "tools/list", None, &first);
        let known = (lists.tools().version, lists.lock().bytes);
        assert_eq!(known.1, first.len());
        // A server that ignores cursors shows its first page whatever it is asked for.
        for cursor in 0..10 {
            lists.remember(LEGACY, "tools/list", Some(&cursor.to_string()), &first);
        }
        let second = Bytes::from_static(br#"{"tools":[{"name":"b"}]}"#);
        let long = "c".repeat(CURSOR_MAX + 1);
        lists.remember(LEGACY, "tools/list", Some(&long), &second);
        assert_eq!((lists.tools().version, lists.lock().bytes), known);
        assert_eq!(lists.recall(LEGACY, "tools/list", Some(&long)), None);
        lists.remember(LEGACY, "tools/list", Some("\"n\""), &second);
        assert!(lists.tools().version > known.0);
        assert_eq!(lists.lock().bytes, known.1 + second.len() + 3);
        lists.remember(LEGACY, "tools/list", None, &second);
        assert_eq!(lists.lock().bytes, second.len());
        for page in 0..PAGES_MAX + 10 {
            let text = Bytes::from(format!("{{\"n\":{page}}}"));
            lists.remember(LEGACY, "prompts/list", Some(&page.to_string()), &text);
        }
        assert_eq!(lists.lock().pages.len(), PAGES_MAX);
    }
}
