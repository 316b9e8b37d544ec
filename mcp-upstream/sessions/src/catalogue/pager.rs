//! Requests all pages of a server's list of tools, one after the other.

use std::collections::HashSet;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_protocol::bridge::params::{self, ClientMetadata};
use tooldock_protocol::bridge::server_info;
use tooldock_protocol::jsonrpc::ResponseOutcome;
use tooldock_protocol::version::{ClientIdentity, Era, ServerInfo};

use super::list::{ToolEntry, ToolList, ToolPage};
use super::mend::ListKind;
use super::mending::ListMending;
use super::pages::TOOLS_LIST;

/// Maximum number of pages that are requested from a server. A longer list is assumed to be endless.
const PAGES_MAX: usize = 100;
/// Number of tools after which no further page is requested.
const TOOLS_MAX: usize = 10_000;
/// Total size of pages after which no further page is requested, in bytes. The last page may exceed it.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// An open connection to a server, from which pages of lists can be requested.
#[async_trait]
pub trait PageSource: Send + Sync {
    /// The server's description of itself, from the opening of the connection.
    fn server(&self) -> ServerInfo;

    /// Requests one page of a list.
    ///
    /// # Errors
    ///
    /// The server does not return a result.
    async fn page(
        &self,
        method: &'static str,
        params: &RawValue,
    ) -> Result<ResponseOutcome, CallError>;
}

/// All tools of a server, with the pages that contain them.
pub(super) struct ReadTools {
    pub(super) era: Era,
    /// True if the server announces changes of its tools.
    pub(super) announces: bool,
    /// The pages, each with the cursor with which it was requested, exactly as the server wrote the cursor.
    pub(super) pages: Vec<(Option<String>, Bytes)>,
    pub(super) entries: Vec<ToolEntry>,
}

impl ReadTools {
    fn new(server: &ServerInfo) -> Self {
        Self {
            era: server.era(),
            announces: server_info::declares(server, &["tools", "listChanged"]),
            pages: Vec::new(),
            entries: Vec::new(),
        }
    }

    fn bytes(&self) -> usize {
        self.pages.iter().map(|(_, page)| page.len()).sum()
    }

    /// Returns true if the maximum number of pages, tools or bytes is reached.
    fn is_full(&self) -> bool {
        self.pages.len() >= PAGES_MAX
            || self.entries.len() >= TOOLS_MAX
            || self.bytes() >= BYTES_MAX
    }
}

/// Requests all pages of tools, or as many as the limits allow.
///
/// # Errors
///
/// The server does not list its tools.
pub(super) async fn read(
    namespace: &NamespaceName,
    source: &dyn PageSource,
    lists: &ListMending,
) -> Result<ReadTools, CallError> {
    let mut read = ReadTools::new(&source.server());
    let mut cursor: Option<Box<RawValue>> = None;
    let mut taken = HashSet::new();
    loop {
        let params = params(read.era, cursor.as_deref());
        let ResponseOutcome::Result(page) = source.page(TOOLS_LIST, &params).await? else {
            let reason = format!("the server of namespace {namespace} does not list its tools");
            return Err(CallError::new(CallErrorCode::InternalError, reason));
        };
        // The page is copied, since it may be a small part of a large buffer, which it would keep in memory.
        let page = Bytes::copy_from_slice(&page);
        let asked_by = cursor.as_deref().map(RawValue::get);
        let kind = (ListKind::Tools, read.era);
        let pinned = lists.pinned(ListKind::Tools, &page, asked_by.is_none());
        let page = pinned.unwrap_or(page);
        let mended = lists.page(namespace, kind, (&page, asked_by), &mut taken);
        let page = mended.unwrap_or(page);
        let ToolPage { entries, next } = ToolPage::read(&page);
        read.entries.extend(entries);
        let asked_by = cursor.map(|cursor| cursor.get().to_owned());
        read.pages.push((asked_by, page));
        cursor = next;
        let Some(next) = cursor.as_deref().map(RawValue::get) else {
            return Ok(read);
        };
        // If a cursor occurs a second time, the same pages would be requested for ever.
        let asked = |(by, _): &(Option<String>, _)| by.as_deref() == Some(next);
        if read.pages.iter().any(asked) {
            return Ok(read);
        }
        if read.is_full() {
            break;
        }
    }
    tracing::warn!(
        namespace = %namespace,
        tools = read.entries.len(),
        bytes = read.bytes(),
        "the server of namespace {namespace} lists more tools than are read: {PAGES_MAX} pages, {TOOLS_MAX} tools or \
         {BYTES_MAX} bytes"
    );
    Ok(read)
}

/// Requests the current tools from one connection. The result is not cached.
///
/// # Errors
///
/// The server does not list its tools.
pub async fn listed_by(
    namespace: &NamespaceName,
    source: &dyn PageSource,
    lists: &ListMending,
) -> Result<ToolList, CallError> {
    let read = read(namespace, source, lists).await?;
    Ok(ToolList::new(0, read.entries))
}

/// Builds the parameters of a list request that the gateway itself sends.
fn params(era: Era, cursor: Option<&RawValue>) -> Box<RawValue> {
    let cursor = cursor.map(|cursor| format!(r#""cursor":{cursor}"#));
    let meta = (era == Era::Modern).then(|| {
        let metadata = ClientMetadata {
            capabilities: "{}",
            info: ClientIdentity::gateway().info.get(),
            log_level: None,
        };
        format!(r#""_meta":{}"#, params::modern_meta("{}", metadata))
    });
    let members: Vec<_> = cursor.into_iter().chain(meta).collect();
    let params = format!("{{{}}}", members.join(","));
    RawValue::from_string(params).expect("members that were read as JSON")
}
