//! The MCP server: reads the MCP client's messages, responds to those that need no host, and sends calls to the host.
//!
//! Both eras of the protocol are served at once: a request that names a revision in `_meta` is of 2026-07-28, any other request
//! belongs to an older revision, which `initialize` negotiates.

use std::io::{BufReader, Read};
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::frame::Call;
use crate::lines::{self, InputLine};
use crate::message::{Era, LEGACY, MODERN, Message, RequestParams, is_id};
use crate::output::{Output, server_info};
use crate::relay::Relay;
use crate::tools::ToolOwner;
use crate::warning;

/// Maximum length of a message of the MCP client, in bytes. The host's limit is lower; it refuses larger calls with an error.
const MESSAGE_MAX: usize = 64 * 1024 * 1024;
/// Time that calls in flight have to finish after the client has closed its input. A script that pipes its requests into this
/// program still gets the responses then.
const LAST_ANSWERS: Duration = Duration::from_secs(30);
/// Time in milliseconds for which a client of 2026-07-28 may cache lists. A client that subscribes is notified of changes
/// earlier.
const TTL_MS: u64 = 5000;

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
const UNSUPPORTED_VERSION: i32 = -32022;

/// The MCP server for a single client.
pub(crate) struct Server {
    output: Arc<Output>,
    relay: Relay,
}

impl Server {
    /// Creates a server that offers the tools behind the relay.
    pub(crate) fn new(output: Arc<Output>, relay: Relay) -> Self {
        Self { output, relay }
    }

    /// Serves the client until it closes its input.
    pub(crate) fn run(&self, input: impl Read) {
        let mut input = BufReader::new(input);
        loop {
            match lines::next(&mut input, MESSAGE_MAX) {
                Ok(Some(InputLine::Whole(line))) => self.take(&line),
                Ok(Some(InputLine::TooLong)) => {
                    let reason = format!("a message has at most {MESSAGE_MAX} bytes");
                    self.output.error(None, INVALID_REQUEST, &reason, None);
                }
                Ok(Some(InputLine::NotText)) => {
                    self.output.error(None, PARSE_ERROR, "Parse error", None);
                }
                Ok(None) => break,
                Err(error) => {
                    warning!("standard input cannot be read: {error}");
                    break;
                }
            }
        }
        self.relay.wait_for_answers(LAST_ANSWERS);
    }

    fn take(&self, line: &str) {
        let message: Message = match serde_json::from_str(line) {
            Ok(message) if line.starts_with('{') => message,
            Err(error) if !error.is_data() => {
                return self.output.error(None, PARSE_ERROR, "Parse error", None);
            }
            _ => {
                let reason = "a message is one JSON object; batches are not taken";
                return self.output.error(None, INVALID_REQUEST, reason, None);
            }
        };
        let versioned = message.jsonrpc.as_deref().map(RawValue::get) == Some("\"2.0\"");
        let Some(method) = message.method.as_deref() else {
            // A message without a method is a response if it has an id, and is then ignored. Without an id it is malformed.
            if message.id.is_none() || !versioned {
                let reason = "a message has jsonrpc \"2.0\" and a method";
                self.output.error(None, INVALID_REQUEST, reason, None);
            }
            return;
        };
        let params = RequestParams::of(message.params.as_deref());
        match message.id.as_deref() {
            None => self.notified(method, params.unwrap_or_default()),
            Some(id) if !is_id(id) => {
                let reason = "id must be a string or a number";
                self.output.error(None, INVALID_REQUEST, reason, None);
            }
            Some(id) if !versioned => {
                let reason = "jsonrpc must be \"2.0\"";
                self.output.error(Some(id), INVALID_REQUEST, reason, None);
            }
            Some(id) => match params {
                Ok(params) => self.asked(id, method, &params),
                Err(reason) => self.output.error(Some(id), INVALID_PARAMS, reason, None),
            },
        }
    }

    fn notified(&self, method: &str, params: RequestParams) {
        match (method, params.request) {
            ("notifications/cancelled", Some(id)) => self.relay.cancel(&id),
            ("notifications/initialized", _) => self.relay.session_opened(),
            _ => {}
        }
    }

    fn asked(&self, id: &RawValue, method: &str, params: &RequestParams) {
        let era = match params.modern_version.as_deref() {
            None => Era::Legacy,
            Some(MODERN) if params.has_capabilities => Era::Modern,
            Some(MODERN) => {
                let reason = "params._meta must have io.modelcontextprotocol/clientCapabilities";
                return self.output.error(Some(id), INVALID_PARAMS, reason, None);
            }
            Some(requested) => {
                let data = json!({"requested": requested, "supported": versions()});
                let message = "Unsupported protocol version";
                return self
                    .output
                    .error(Some(id), UNSUPPORTED_VERSION, message, Some(data));
            }
        };
        match (era, method) {
            (Era::Legacy, "initialize") => self.initialize(id, params),
            (Era::Legacy, "ping") => self.output.result(id, era, json!({})),
            (Era::Modern, "server/discover") => self.discover(id),
            (Era::Modern, "subscriptions/listen") => self.listen(id, params),
            (_, "tools/list") => self.list(id, era),
            (_, "tools/call") => self.call(id, era, params),
            _ => {
                let reason = format!("Method not found: {}", shortened(method));
                self.output.error(Some(id), METHOD_NOT_FOUND, &reason, None);
            }
        }
    }

    fn initialize(&self, id: &RawValue, params: &RequestParams) {
        let asked = params.version.as_deref().unwrap_or_default();
        let known = LEGACY.iter().find(|version| **version == asked);
        let version = known.unwrap_or(&LEGACY[0]);
        let result = json!({
            "protocolVersion": version,
            "capabilities": capabilities(),
            "serverInfo": server_info(),
        });
        self.output.result(id, Era::Legacy, result);
    }

    fn discover(&self, id: &RawValue) {
        let result = json!({
            "supportedVersions": versions(),
            "capabilities": capabilities(),
            "ttlMs": TTL_MS,
            "cacheScope": "private",
        });
        self.output.result(id, Era::Modern, result);
    }

    /// Acknowledges a `subscriptions/listen` request. It gets no final response until the client cancels it.
    fn listen(&self, id: &RawValue, params: &RequestParams) {
        let granted = match params.listens_to_tools {
            true if !self.relay.listen(id) => {
                let reason = "too many subscriptions: end some of them first";
                return self.output.error(Some(id), INVALID_REQUEST, reason, None);
            }
            true => json!({"toolsListChanged": true}),
            false => json!({}),
        };
        self.output.say(&format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}},"notifications":{granted}}}}}"#
        ));
    }

    fn list(&self, id: &RawValue, era: Era) {
        let tools = self.relay.tools();
        let extra = match era {
            Era::Legacy => String::new(),
            Era::Modern => format!(
                r#","resultType":"complete","ttlMs":{TTL_MS},"cacheScope":"private","_meta":{{"io.modelcontextprotocol/serverInfo":{}}}"#,
                server_info()
            ),
        };
        self.output.say(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":{tools}{extra}}}}}"#
        ));
    }

    fn call(&self, id: &RawValue, era: Era, params: &RequestParams) {
        let invalid = |reason: &str| self.output.error(Some(id), INVALID_PARAMS, reason, None);
        let Some(name) = params.name.as_deref() else {
            return invalid("params.name must be a string");
        };
        let arguments = params.arguments.as_deref();
        if arguments.is_some_and(|raw| !raw.get().starts_with('{')) {
            return invalid("params.arguments must be an object");
        }
        let Some((owner, tool)) = self.relay.find(name) else {
            return invalid(&format!("Unknown tool: {}", shortened(name)));
        };
        let call = Call {
            caller: match &owner {
                ToolOwner::Host => None,
                ToolOwner::Caller(caller) => Some(caller),
            },
            tool: &tool,
            arguments,
            progress_token: params.progress_token.as_deref(),
        };
        self.relay.call(id, era, &call);
    }
}

fn versions() -> Vec<&'static str> {
    std::iter::once(MODERN).chain(LEGACY).collect()
}

fn capabilities() -> Value {
    json!({"tools": {"listChanged": true}})
}

/// Cuts a text of the client to 128 characters, so that it fits into an error message.
fn shortened(text: &str) -> &str {
    let end = text.char_indices().nth(128);
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

#[cfg(test)]
mod tests;
