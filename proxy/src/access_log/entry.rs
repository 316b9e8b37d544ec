//! The entry of a request in the access log.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{REFERER, USER_AGENT};
use http::request::Parts;
use http::{HeaderName, Method, Version};
use tooldock_base::names::NamespaceName;
use tooldock_base::route::CONNECT_PATH;
use tooldock_filters::{AdmittedHead, Rejection};
use tooldock_sessions::caller::{CallNote, CallSummary};
use tooldock_sessions::log_file::Record;

/// Maximum length of a path in the access log, in bytes; longer paths are cut.
const PATH_MAX: usize = 2048;
/// Maximum length of a header's value in the access log, in bytes; longer values are cut.
const VALUE_MAX: usize = 512;
/// Maximum size of a body, in bytes, in which the log looks for the MCP method and the tool. A larger body is not stored for
/// the log.
const BODY_MAX: usize = 64 * 1024;

/// The data of a request from which its line in the access log is made.
#[derive(Debug)]
pub(crate) struct AccessEntry {
    pub(super) ended: SystemTime,
    pub(super) duration: Duration,
    pub(super) address: IpAddr,
    pub(super) method: Method,
    /// The request's path. As every client's text in this struct, it is cut to a maximum length and not escaped yet.
    pub(super) path: Box<[u8]>,
    pub(super) has_query: bool,
    pub(super) version: Version,
    pub(super) referer: Option<Box<[u8]>>,
    pub(super) user_agent: Option<Box<[u8]>>,
    pub(super) request_id: Arc<str>,
    pub(super) principal: Option<Arc<str>>,
    pub(super) namespace: Option<NamespaceName>,
    /// The session id. Only a tag derived from it is written to the log.
    pub(super) session: Option<String>,
    /// The tool that the path of a REST request names.
    pub(super) tool: Option<String>,
    /// The body of an MCP request. The log's thread reads the MCP method and the tool from it.
    pub(super) message: Option<Bytes>,
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) reason: Option<&'static str>,
    /// The outcome of the request's tool call.
    pub(super) call: Option<CallSummary>,
    /// The backends to which the request was forwarded.
    pub(super) backends: String,
    note: Option<Arc<CallNote>>,
}

impl AccessEntry {
    /// Creates the entry of a request whose head has been read.
    pub(super) fn new(head: &Parts, request_id: &Arc<str>, address: IpAddr) -> Box<Self> {
        let value = |name: &HeaderName| {
            let value = head.headers.get(name)?.as_bytes();
            Some(Box::<[u8]>::from(cut(value, VALUE_MAX)))
        };
        // The query of the referring page is removed, since it may contain secrets.
        let referer = value(&REFERER).map(|page| {
            let end = page.iter().position(|byte| matches!(byte, b'?' | b'#'));
            Box::from(without_link(&page[..end.unwrap_or(page.len())]))
        });
        Box::new(Self {
            ended: SystemTime::UNIX_EPOCH,
            duration: Duration::ZERO,
            address,
            method: head.method.clone(),
            path: cut(without_link(head.uri.path().as_bytes()), PATH_MAX).into(),
            has_query: head.uri.query().is_some(),
            version: head.version,
            referer,
            user_agent: value(&USER_AGENT),
            request_id: Arc::clone(request_id),
            principal: None,
            namespace: None,
            session: None,
            tool: None,
            message: None,
            status: 0,
            bytes: 0,
            reason: None,
            call: None,
            backends: String::new(),
            note: None,
        })
    }

    /// Records the principal, the namespace and the session of an admitted request.
    pub(crate) fn admitted(&mut self, admitted: &AdmittedHead, session: Option<&str>) {
        let principal = admitted.principal.as_ref();
        self.principal = principal.map(|principal| Arc::clone(principal.name()));
        self.namespace.clone_from(&admitted.namespace);
        self.session = session.map(|id| id.chars().take(VALUE_MAX).collect());
        self.tool.clone_from(&admitted.tool);
    }

    /// Records the body of an MCP request, unless it is larger than `BODY_MAX`.
    pub(super) fn message(&mut self, body: &Bytes) {
        if body.len() <= BODY_MAX {
            self.message = Some(body.clone());
        }
    }

    /// Returns the note in which the service records the outcome of the request's call.
    pub(super) fn call_note(&mut self) -> Arc<CallNote> {
        Arc::clone(self.note.get_or_insert_default())
    }

    /// Records the reason why admission refused the request.
    pub(crate) fn refused(&mut self, rejection: &Rejection) {
        self.reason = Some(rejection.code());
        if let Some(principal) = &rejection.principal {
            self.principal = Some(Arc::clone(principal));
        }
    }

    /// Records the reason of a refusal after admission, or of an aborted response, unless a reason is recorded already.
    pub(crate) fn because(&mut self, reason: &'static str) {
        self.reason.get_or_insert(reason);
    }

    /// Records the status and size of the response, and the duration of the request.
    pub(super) fn answered(&mut self, status: u16, bytes: u64, duration: Duration) {
        self.ended = SystemTime::now();
        if let Some(note) = self.note.take() {
            self.call = note.read();
            self.backends = note.take_backends();
        }
        self.status = status;
        self.bytes = bytes;
        self.duration = duration;
    }
}

/// Returns a path or URL as the log shows it: everything after `/connect/` is removed. This is the secret part of a link to a
/// page on which a principal gives a personal credential; the listener's prefix may stand before it. Paths of a namespace with the
/// name `connect` are cut, too.
fn without_link(path: &[u8]) -> &[u8] {
    let pages = CONNECT_PATH.as_bytes();
    let found = memchr::memmem::find_iter(path, pages).map(|at| at + pages.len());
    let mut ends = found.filter(|end| path.get(*end) == Some(&b'/'));
    ends.next().map_or(path, |end| &path[..=end])
}

impl Record for AccessEntry {
    fn bytes(&self) -> usize {
        let values = [&self.referer, &self.user_agent].into_iter().flatten();
        self.path.len()
            + values.map(|value| value.len()).sum::<usize>()
            + self.message.as_ref().map_or(0, Bytes::len)
            + self.backends.len()
    }
}

fn cut(value: &[u8], max: usize) -> &[u8] {
    &value[..value.len().min(max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_left_out_of_paths_and_referring_pages() {
        for (path, shown) in [
            ("/connect/sealed-link", "/connect/"),
            ("/tools/connect/sealed-link", "/tools/connect/"),
            (
                "https://gw.example/connect/sealed-link",
                "https://gw.example/connect/",
            ),
            ("/mcp/connect", "/mcp/connect"),
            ("/connected", "/connected"),
        ] {
            assert_eq!(without_link(path.as_bytes()), shown.as_bytes(), "{path}");
        }
    }
}
