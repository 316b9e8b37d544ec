//! What one member of an aggregate offers, asked for as a client would ask, to the end of all pages.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use tooldock_workers::aggregate::Pin;
use tooldock_workers::error::CallError;
use tooldock_workers::registry::Namespace;

use crate::broadcast::Change;
use crate::caller::{Caller, Visibility};
use crate::engine::{Peer, UpstreamReply};
use crate::jsonrpc::{self, Message, RequestError, ResponseOutcome, spans};
use crate::profile::Profile;
use crate::protocol::{ProtocolVersion, code};
use crate::upstream::{CallContext, Client, IncomingRequest, Prepared, Upstream};

/// Pages that are read of one list at most.
const PAGES_MAX: usize = 100;
/// Entries that are read of one list at most.
const ENTRIES_MAX: usize = 10_000;
/// Bytes of names and definitions that are kept of one member at most, of all its lists together: 8 MiB.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of the longest name that is kept.
const NAME_MAX: usize = 256;
/// Bytes of the longest URI that is kept.
const URI_MAX: usize = 8 * 1024;

/// What a member offers at one moment.
#[derive(Debug, Default)]
pub(super) struct Offer {
    pub(super) tools: Vec<Listed>,
    pub(super) resources: Vec<Listed>,
    pub(super) templates: Vec<Listed>,
    pub(super) prompts: Vec<Listed>,
}

/// What a member answered when it was asked.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) offer: Offer,
    /// Why lists could not be read. What they were before stands for them, or nothing.
    pub(super) failed: Vec<String>,
    /// What is not kept of what it listed.
    pub(super) left_out: Vec<String>,
}

/// How much of what a member lists may still be kept.
#[derive(Debug)]
struct Room {
    bytes: usize,
    is_full: bool,
    /// Entries whose names are too long.
    too_long: usize,
}

/// One entry of a list.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    /// The member's own name for it, or its URI.
    pub(super) own: Arc<str>,
    /// Its definition as the member wrote it.
    pub(super) definition: Box<RawValue>,
}

impl Offer {
    /// Asks a namespace for all it offers. A server without tools is of no use; what else it does not list is as it was
    /// `before`.
    ///
    /// # Errors
    ///
    /// Why it cannot be asked, or does not list its tools, in one line.
    pub(super) async fn read(
        namespace: &Arc<Namespace>,
        upstream: &dyn Upstream,
        before: Option<&Self>,
    ) -> Result<Reading, String> {
        let asked = Asked {
            namespace,
            upstream,
            caller: gateway(),
        };
        let capabilities = asked.capabilities().await?;
        let has = |name| spans::member(&capabilities, name).is_some();
        let mut offer = Self::default();
        let mut failed = Vec::new();
        let mut room = Room::default();
        let mut or_as_before = |list: Result<_, String>, before: Option<&Vec<Listed>>| {
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
        Ok(Reading {
            offer,
            failed,
            left_out: room.left_out(),
        })
    }

    /// Which lists of clients differ from those of another offer. Tools do wherever resources do: their catalogue stands in
    /// the list of tools.
    pub(super) fn changes(&self, other: &Self) -> Vec<Change> {
        let resources = self.resources != other.resources || self.templates != other.templates;
        let tools = resources || self.tools != other.tools;
        let prompts = self.prompts != other.prompts;
        let all = [
            (tools, Change::Tools),
            (resources, Change::Resources),
            (prompts, Change::Prompts),
        ];
        let changed = all.into_iter().filter(|(differs, _)| *differs);
        changed.map(|(_, change)| change).collect()
    }

    /// Stands for all names and definitions.
    pub(super) fn digest(&self) -> Pin {
        let mut hash = Sha256::new();
        for list in [&self.tools, &self.resources, &self.templates, &self.prompts] {
            let mut lines: Vec<_> = list.iter().map(Listed::canonical).collect();
            lines.sort();
            hash.update((lines.len() as u64).to_le_bytes());
            for line in lines {
                hash.update((line.len() as u64).to_le_bytes());
                hash.update(line);
            }
        }
        Pin(hash.finalize().into())
    }
}

impl Default for Room {
    fn default() -> Self {
        Self {
            bytes: BYTES_MAX,
            is_full: false,
            too_long: 0,
        }
    }
}

impl Room {
    /// Whether an entry is kept. From the first that has no room on, none is: what is published does not depend on which of
    /// the rest are small.
    fn takes(&mut self, own: &str, definition: &RawValue, longest: usize) -> bool {
        if own.len() > longest {
            self.too_long += 1;
            return false;
        }
        let left = self.bytes.checked_sub(own.len() + definition.get().len());
        self.is_full |= left.is_none();
        self.bytes = left.unwrap_or(self.bytes);
        !self.is_full
    }

    fn left_out(&self) -> Vec<String> {
        let mut left_out = Vec::new();
        if self.is_full {
            left_out.push(format!(
                "it lists more than {} MiB, and what comes after that is left out",
                BYTES_MAX >> 20
            ));
        }
        if self.too_long > 0 {
            left_out.push(format!(
                "{} of its entries are left out: a name may have {NAME_MAX} bytes, a URI {URI_MAX}",
                self.too_long
            ));
        }
        left_out
    }
}

impl PartialEq for Listed {
    fn eq(&self, other: &Self) -> bool {
        self.own == other.own && self.definition.get() == other.definition.get()
    }
}

impl Listed {
    /// The definition with its keys in order, so that only what it says counts. Every byte of one that cannot be read
    /// counts, such as one with a number beyond all bounds: what is not seen here could change under the same pin.
    fn canonical(&self) -> String {
        let text = self.definition.get();
        match serde_json::from_str::<serde_json::Value>(text) {
            Ok(value) => value.to_string(),
            Err(_) => text.to_owned(),
        }
    }
}

/// Nobody's request: the gateway asks for what it shows to all.
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
        toolset: None,
        note: None,
    }
}

struct Asked<'a> {
    namespace: &'a Arc<Namespace>,
    upstream: &'a dyn Upstream,
    caller: Caller,
}

impl Asked<'_> {
    fn context<'c>(&'c self, body: &'c Bytes) -> CallContext<'c> {
        CallContext {
            caller: &self.caller,
            body,
            namespace: Arc::clone(self.namespace),
            upstream: self.upstream,
            // The richest of the versions whose definitions mean the same in both eras.
            client: Client::Legacy(ProtocolVersion::V2025_11_25),
            streams: false,
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

    /// All entries of one list, those without a name or without room left out.
    async fn list(
        &self,
        method: &str,
        key: &str,
        name: &str,
        room: &mut Room,
    ) -> Result<Vec<Listed>, String> {
        let longest = if name == "name" { NAME_MAX } else { URI_MAX };
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
                let own = own.filter(|own| room.takes(own, &definition, longest));
                if let Some(own) = own.map(Arc::from) {
                    listed.push(Listed { own, definition });
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
            // It has the capability but nothing of the kind now.
            Err(RequestError::MethodNotFound(_)) => nothing(&method).ok_or_else(no_result),
            Err(refused) => Err(refused.message().into_owned()),
            Ok(Prepared::Response(answer)) => result(&answer).ok_or_else(no_result),
            Ok(Prepared::Call(call)) => {
                call.admit().map_err(|error| self.says(&error))?;
                let reply = call.start(Peer::nobody()).await;
                match reply.map_err(|error| self.says(&error))? {
                    UpstreamReply::Result(result) => owned(&result).ok_or_else(no_result),
                    UpstreamReply::Response(response) => match response.outcome() {
                        ResponseOutcome::Result(result) => owned(&result).ok_or_else(no_result),
                        // Many servers declare what they have no lists of, templates above all.
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

/// An empty list as the answer of a member that does not know the method.
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

/// The result of a whole response.
fn result(response: &[u8]) -> Option<Box<RawValue>> {
    spans::member(spans::raw(response)?, "result").map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(tools: &[&str]) -> Offer {
        let listed = |text: &&str| Listed {
            own: "t".into(),
            definition: RawValue::from_string((*text).to_owned()).unwrap(),
        };
        Offer {
            tools: tools.iter().map(listed).collect(),
            ..Offer::default()
        }
    }

    #[test]
    fn what_a_member_lists_beyond_its_room_is_left_out() {
        let sized =
            |bytes: usize| RawValue::from_string(format!("\"{}\"", "x".repeat(bytes - 2))).unwrap();
        let mut room = Room::default();
        assert!(room.takes("a", &sized(BYTES_MAX / 2), NAME_MAX));
        assert!(!room.takes(&"n".repeat(NAME_MAX + 1), &sized(2), NAME_MAX));
        assert!(room.takes(&"u".repeat(NAME_MAX + 1), &sized(2), URI_MAX));
        assert_eq!(room.left_out().len(), 1);
        assert!(!room.takes("b", &sized(BYTES_MAX / 2), NAME_MAX));
        // Nor anything after it, however small.
        assert!(!room.takes("c", &sized(2), NAME_MAX));
        let said = room.left_out().join("; ");
        assert!(
            said.contains("8 MiB") && said.contains("1 of its entries"),
            "{said}"
        );
    }

    #[test]
    fn only_lists_that_differ_are_announced() {
        let one = offer(&[r#"{"name":"a"}"#]);
        assert_eq!(one.changes(&offer(&[r#"{"name":"a"}"#])), []);
        assert_eq!(one.changes(&offer(&[r#"{"name":"b"}"#])), [Change::Tools]);
        let listed = || offer(&["{}"]).tools;
        let resources = Offer {
            templates: listed(),
            ..Offer::default()
        };
        // The catalogue of resources is told among the tools.
        assert_eq!(
            resources.changes(&Offer::default()),
            [Change::Tools, Change::Resources]
        );
        let prompts = Offer {
            prompts: listed(),
            ..Offer::default()
        };
        assert_eq!(Offer::default().changes(&prompts), [Change::Prompts]);
    }

    #[test]
    fn a_digest_goes_by_what_definitions_say_not_by_how_they_are_written() {
        let one = offer(&[r#"{"name":"a","description":"x"}"#, r#"{"name":"b"}"#]).digest();
        let same = offer(&[r#"{ "name": "b" }"#, r#"{"description":"x","name":"a"}"#]).digest();
        assert_eq!(one, same);
        let other = offer(&[r#"{"name":"a","description":"y"}"#, r#"{"name":"b"}"#]).digest();
        assert_ne!(one, other);
        assert_ne!(offer(&[]).digest(), one);
    }

    #[test]
    fn a_digest_sees_what_changes_in_a_definition_that_cannot_be_read() {
        let number = |about| format!(r#"{{"name":"a","description":"{about}","n":1e999}}"#);
        let deep = |about| {
            let (open, close) = ("[".repeat(200), "]".repeat(200));
            format!(r#"{{"name":"a","description":"{about}","n":{open}{close}}}"#)
        };
        let digest = |definition: String| offer(&[&definition]).digest();
        assert_ne!(digest(number("x")), digest(number("y")));
        assert_ne!(digest(deep("x")), digest(deep("y")));
        assert_eq!(digest(deep("x")), digest(deep("x")));
    }
}
