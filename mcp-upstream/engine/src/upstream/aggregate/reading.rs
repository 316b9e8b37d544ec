//! Reads a member of an aggregate: requests its lists as a client would, to the end of all pages.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tooldock_base::error::CallError;
use tooldock_base::key_maker::KeyMaker;
use tooldock_protocol::jsonrpc::{self, Message, RequestError, ResponseOutcome, spans};
use tooldock_protocol::version::{ProtocolVersion, code};
use tooldock_sessions::caller::{Caller, Visibility};
use tooldock_sessions::profile::Profile;
use tooldock_workers::registry::Namespace;

use super::offer::{NAME_MAX, Offer, OfferEntry, OfferRoom, TEMPLATE_MAX, URI_MAX};
use crate::engine::{Peer, UpstreamReply};
use crate::upstream::{CallContext, Client, IncomingRequest, PreparedRequest, Upstream};

/// Maximum number of pages that are read of one list.
const PAGES_MAX: usize = 100;
/// Maximum number of entries that are read of one list.
const ENTRIES_MAX: usize = 10_000;

/// Result of reading a member.
#[derive(Debug)]
pub(super) struct MemberReading {
    pub(super) offer: Offer,
    /// Reasons why lists could not be read. Their former contents are used instead, if there are any.
    pub(super) failed: Vec<String>,
    /// Messages about entries that were omitted, and about definitions that were corrected.
    pub(super) left_out: Vec<String>,
}

/// Reads all lists of a namespace. A server whose tools cannot be listed is unusable; if another list cannot be read, its entries
/// are taken from `before` (the previous offer).
///
/// # Errors
///
/// The reason, in one line, why the namespace is unavailable or does not list its tools.
pub(super) async fn read(
    namespace: &Arc<Namespace>,
    upstream: &dyn Upstream,
    before: Option<&Offer>,
) -> Result<MemberReading, String> {
    let asked = ReadingContext {
        namespace,
        upstream,
        caller: gateway(),
    };
    let capabilities = asked.capabilities().await?;
    let has = |name| spans::member(&capabilities, name).is_some();
    let mut offer = Offer::default();
    let mut failed = Vec::new();
    let mut room = OfferRoom::default();
    let mut or_as_before = |list: Result<_, String>, before: Option<&Vec<OfferEntry>>| {
        list.unwrap_or_else(|reason| {
            failed.push(reason);
            before.cloned().unwrap_or_default()
        })
    };
    if has("tools") {
        offer.tools = asked.list("tools/list", "tools", "name", &mut room).await?;
    }
    if has("resources") {
        let resources = asked
            .list("resources/list", "resources", "uri", &mut room)
            .await;
        offer.resources = or_as_before(resources, before.map(|it| &it.resources));
        let templates = asked.list(
            "resources/templates/list",
            "resourceTemplates",
            "uriTemplate",
            &mut room,
        );
        offer.templates = or_as_before(templates.await, before.map(|it| &it.templates));
    }
    if has("prompts") {
        let prompts = asked
            .list("prompts/list", "prompts", "name", &mut room)
            .await;
        offer.prompts = or_as_before(prompts, before.map(|it| &it.prompts));
    }
    Ok(MemberReading {
        offer,
        failed,
        left_out: room.left_out(),
    })
}

/// The caller in whose name the gateway reads lists that are shown to all clients.
fn gateway() -> Caller {
    Caller {
        namespace: None,
        principal: None,
        client: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        request_id: "aggregate".into(),
        profile: Arc::new(Profile::core()),
        manager: false,
        headers: None,
        visibility: Visibility::All,
        grant: None,
        maker: KeyMaker::default(),
        relay: None,
        toolset: None,
        note: None,
        key_limits: None,
        budget: None,
        status_only: false,
        trace: None,
    }
}

struct ReadingContext<'a> {
    namespace: &'a Arc<Namespace>,
    upstream: &'a dyn Upstream,
    caller: Caller,
}

impl ReadingContext<'_> {
    fn context<'c>(&'c self, body: &'c Bytes) -> CallContext<'c> {
        CallContext {
            caller: &self.caller,
            body,
            namespace: Arc::clone(self.namespace),
            upstream: self.upstream,
            // The lists are requested in the newest legacy protocol version, since its definitions mean the same in both eras.
            client: Client::Legacy(ProtocolVersion::V2025_11_25),
            streams: false,
            depth: 0,
        }
    }

    async fn capabilities(&self) -> Result<Box<RawValue>, String> {
        let body = Bytes::new();
        let cx = self.context(&body);
        let described = self.upstream.discover(&cx, "0", &[]).get().await;
        let described = described.map_err(|error| self.says(&error))?;
        let result = result(&described).ok_or("its answer to server/discover is no result")?;
        let capabilities = spans::member(&result, "capabilities");
        let capabilities = capabilities.ok_or("it declares no capabilities")?;
        Ok(capabilities.to_owned())
    }

    /// Entries of a member's list, up to [`ENTRIES_MAX`]. Omitted are entries without a name or with a name that is too long,
    /// definitions that no client could use, and all entries after the member's offer has reached its maximum size.
    async fn list(
        &self,
        method: &str,
        key: &str,
        name: &str,
        room: &mut OfferRoom,
    ) -> Result<Vec<OfferEntry>, String> {
        let longest = match name {
            "name" => NAME_MAX,
            "uri" => URI_MAX,
            _ => TEMPLATE_MAX,
        };
        let mut listed = Vec::new();
        let mut cursor: Option<Box<RawValue>> = None;
        for _ in 0..PAGES_MAX {
            let page = self.page(method, cursor.as_deref()).await?;
            let entries = spans::member(&page, key);
            let entries: Vec<Box<RawValue>> = entries
                .and_then(|entries| serde_json::from_str(entries.get()).ok())
                .ok_or_else(|| format!("its answer to {method} has no list {key}"))?;
            for definition in entries {
                let own = spans::member(&definition, name).and_then(jsonrpc::string);
                let own: Option<String> = own.map(Into::into);
                let own = own.filter(|own| room.takes(own, &definition, longest));
                let Some(own) = own else { continue };
                if let Some(definition) = room.mended(method, &own, definition) {
                    let own = own.into();
                    listed.push(OfferEntry { own, definition });
                }
            }
            let next = spans::member(&page, "nextCursor").filter(|next| next.get() != "null");
            cursor = next.map(ToOwned::to_owned);
            if cursor.is_none() || listed.len() >= ENTRIES_MAX || room.is_full {
                break;
            }
        }
        listed.truncate(ENTRIES_MAX);
        Ok(listed)
    }

    async fn page(&self, method: &str, cursor: Option<&RawValue>) -> Result<Box<RawValue>, String> {
        let cursor = cursor.map_or(String::new(), |cursor| format!(r#""cursor":{cursor}"#));
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":0,"method":"{method}","params":{{{cursor}}}}}"#);
        let limit = self.namespace.limits.timeout;
        let asked = timeout(limit, self.answer(text.into()));
        let late = || format!("it did not answer {method} within {} s", limit.as_secs());
        asked.await.map_err(|_| late())?
    }

    async fn answer(&self, body: Bytes) -> Result<Box<RawValue>, String> {
        let text = jsonrpc::text(&body).map_err(|error| error.message().into_owned())?;
        let Ok(Message::Request {
            id,
            method,
            members,
        }) = jsonrpc::message(text)
        else {
            return Err("a request of the gateway is none".into());
        };
        let cx = self.context(&body);
        let request = IncomingRequest {
            id,
            method: &method,
            members: &members,
        };
        let no_result = || format!("its answer to {method} is no result");
        match self.upstream.prepare(&cx, request).get().await {
            // The upstream does not support the method, so the member has no entries of this kind.
            Err(RequestError::MethodNotFound(_)) => nothing(&method).ok_or_else(no_result),
            Err(refused) => Err(refused.message().into_owned()),
            Ok(PreparedRequest::Response(answer)) => result(&answer).ok_or_else(no_result),
            Ok(PreparedRequest::Call(call)) => {
                call.admit().map_err(|error| self.says(&error))?;
                let reply = call.start(Peer::nobody()).await;
                match reply.map_err(|error| self.says(&error))? {
                    UpstreamReply::Result(result) => owned(&result).ok_or_else(no_result),
                    UpstreamReply::Response(response) => match response.outcome() {
                        ResponseOutcome::Result(result) => owned(&result).ok_or_else(no_result),
                        // An unknown method counts as an empty list: many servers declare a capability without the corresponding
                        // lists, in most cases without the list of templates.
                        ResponseOutcome::Error(error) if is_unknown_method(&error) => {
                            nothing(&method).ok_or_else(no_result)
                        }
                        ResponseOutcome::Error(error) => {
                            let error = String::from_utf8_lossy(&error);
                            Err(format!("it refused {method}: {error}"))
                        }
                    },
                    UpstreamReply::Value(_) => Err(no_result()),
                }
            }
        }
    }

    fn says(&self, error: &CallError) -> String {
        error.message.clone()
    }
}

/// An empty list, in place of the response of a member that does not know the method.
fn nothing(method: &str) -> Option<Box<RawValue>> {
    let key = match method {
        "tools/list" => "tools",
        "resources/list" => "resources",
        "resources/templates/list" => "resourceTemplates",
        "prompts/list" => "prompts",
        _ => return None,
    };
    RawValue::from_string(format!(r#"{{"{key}":[]}}"#)).ok()
}

fn is_unknown_method(error: &[u8]) -> bool {
    let told = spans::raw(error).and_then(|error| spans::member(error, "code"));
    told.is_some_and(|it| it.get() == code::METHOD_NOT_FOUND.to_string())
}

fn owned(result: &[u8]) -> Option<Box<RawValue>> {
    spans::raw(result).map(ToOwned::to_owned)
}

/// The result in a complete JSON-RPC response.
fn result(response: &[u8]) -> Option<Box<RawValue>> {
    spans::member(spans::raw(response)?, "result").map(ToOwned::to_owned)
}
