//! Cache of the last good pages of one server's lists, for when the server is unavailable.

use std::collections::HashMap;

use bytes::Bytes;
use tooldock_protocol::version::Era;

/// Maximum total size of the cached pages of one server, in bytes. A page that does not fit is not cached.
pub(super) const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum length of the cursor of a cached page, in bytes. Pages with longer cursors are not cached, since clients may invent
/// cursors of any length.
pub(super) const CURSOR_MAX: usize = 1024;
/// Maximum number of cached pages of one server. Further pages are not cached.
pub(super) const PAGES_MAX: usize = 1000;
/// Name of the method that lists tools.
pub(super) const TOOLS_LIST: &str = "tools/list";
/// All list methods of MCP.
const METHODS: [&str; 4] = [
    TOOLS_LIST,
    "prompts/list",
    "resources/list",
    "resources/templates/list",
];

/// Key of a cached page: the connection's era, the list method, and the cursor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PageKey {
    /// Era of the connection on which the page was listed.
    pub(super) era: Era,
    pub(super) method: &'static str,
    /// The cursor as raw JSON; `None` for the first page.
    pub(super) cursor: Option<Box<str>>,
}

/// The cached pages of one server's lists.
#[derive(Debug, Default)]
pub(super) struct Pages {
    by_key: HashMap<PageKey, Bytes>,
    /// Total size of the cached pages and their cursors, in bytes.
    bytes: usize,
}

impl PageKey {
    /// Creates the key of a page. Returns `None` if the method is not a list method, or if the cursor has more than `CURSOR_MAX`
    /// bytes.
    pub fn of(era: Era, method: &str, cursor: Option<&str>) -> Option<Self> {
        let method = METHODS.into_iter().find(|known| *known == method)?;
        if cursor.is_some_and(|cursor| cursor.len() > CURSOR_MAX) {
            return None;
        }
        let cursor = cursor.map(Into::into);
        Some(Self {
            era,
            method,
            cursor,
        })
    }

    /// The key of the first page of the same list.
    pub(super) fn first(&self) -> Self {
        Self {
            cursor: None,
            ..self.clone()
        }
    }

    fn weight(&self, page: &Bytes) -> usize {
        page.len() + self.cursor.as_ref().map_or(0, |cursor| cursor.len())
    }
}

impl Pages {
    pub(super) fn get(&self, key: &PageKey) -> Option<&Bytes> {
        self.by_key.get(key)
    }

    /// Returns true if the page is cached, under this cursor or another cursor of the same list.
    pub(super) fn has(&self, key: &PageKey, result: &Bytes) -> bool {
        match self.by_key.get(key) {
            Some(page) => page == result,
            None => {
                let same = |own: &PageKey| own.era == key.era && own.method == key.method;
                key.cursor.is_some()
                    && (self.by_key.iter()).any(|(own, page)| same(own) && page == result)
            }
        }
    }

    /// Removes all cached pages of a list.
    pub(super) fn leave(&mut self, era: Era, method: &'static str) {
        let bytes = &mut self.bytes;
        self.by_key.retain(|key, page| {
            let left = key.era == era && key.method == method;
            *bytes -= if left { key.weight(page) } else { 0 };
            !left
        });
    }

    /// Caches a page. Returns false if there is no room for it.
    pub(super) fn keep(&mut self, key: PageKey, page: Bytes) -> bool {
        if let Some(before) = self.by_key.remove(&key) {
            self.bytes -= key.weight(&before);
        }
        let weight = key.weight(&page);
        let fits = self.by_key.len() < PAGES_MAX && self.bytes + weight <= BYTES_MAX;
        if fits {
            self.bytes += weight;
            self.by_key.insert(key, page);
        }
        fits
    }

    /// Replaces all cached pages of tools. Each new page comes with the cursor with which it was requested.
    pub(super) fn replace(&mut self, era: Era, pages: Vec<(Option<String>, Bytes)>) {
        self.leave(era, TOOLS_LIST);
        for (cursor, page) in pages {
            if let Some(key) = PageKey::of(era, TOOLS_LIST, cursor.as_deref()) {
                self.keep(key, page);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        (self.by_key.len(), self.bytes)
    }
}
