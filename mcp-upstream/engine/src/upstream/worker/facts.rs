//! Description of the client for a function with a context: the `caller` object of the worker protocol.

use bytes::Bytes;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::format;

use crate::upstream::{CallContext, Client};

/// Log level for clients that set none.
const DEFAULT_LEVEL: LogLevel = LogLevel::Info;

/// Writes the description of the client, including the spans that the client sent. `progress`: true if the client sent a progress
/// token.
///
/// A client that accepts no events before its response cannot receive messages or questions, regardless of its declared
/// capabilities. A client of version 2026-07-28 can be asked without events, but gets no log messages and no progress.
pub(super) fn of(cx: &CallContext<'_>, progress: bool) -> Bytes {
    let progress = progress && cx.streams;
    let mut facts = FactsWriter::default();
    match &cx.client {
        Client::Session(session) => {
            facts.text("era", "legacy");
            if cx.streams {
                let client = session.client();
                facts.raw("capabilities", client.capabilities.get().as_bytes());
                if let Some(info) = &client.info {
                    facts.raw("clientInfo", info.get().as_bytes());
                }
                facts.text("logLevel", session.log_level().as_str());
            } else {
                facts.raw("capabilities", b"{}");
            }
        }
        Client::Legacy(_) => {
            facts.text("era", "legacy");
            facts.raw("capabilities", b"{}");
            if cx.streams {
                facts.text("logLevel", DEFAULT_LEVEL.as_str());
            }
        }
        Client::Plain => {
            facts.text("era", "none");
            facts.raw("capabilities", b"{}");
        }
        Client::Modern(meta) => {
            facts.text("era", "modern");
            facts.raw("capabilities", &meta.capabilities);
            if let Some(info) = &meta.client_info {
                facts.raw("clientInfo", info);
            }
            if let Some(level) = meta.log_level.filter(|_| cx.streams) {
                facts.text("logLevel", level.as_str());
            }
            if let Some(inputs) = &meta.inputs {
                facts.raw("inputs", inputs);
            }
        }
    }
    facts.raw("progress", if progress { b"true" } else { b"false" });
    facts.end()
}

/// Writes the description of the client of a task, whose progress and questions the client finds in the task's state. Log messages
/// reach no client.
pub(super) fn of_task(cx: &CallContext<'_>) -> Bytes {
    let mut facts = FactsWriter::default();
    let era = match cx.client.is_modern() {
        true => "modern",
        false => "legacy",
    };
    facts.text("era", era);
    facts.raw("capabilities", cx.client.capabilities().get().as_bytes());
    if let Some(info) = cx.client.info() {
        facts.raw("clientInfo", info.get().as_bytes());
    }
    if let Client::Modern(meta) = &cx.client
        && let Some(inputs) = &meta.inputs
    {
        facts.raw("inputs", inputs);
    }
    facts.raw("progress", b"true");
    facts.end()
}

#[derive(Default)]
struct FactsWriter(Vec<u8>);

impl FactsWriter {
    /// Adds a key with a JSON value.
    fn raw(&mut self, key: &str, value: &[u8]) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        format::escape(&mut self.0, key.as_bytes());
        self.0.push(b':');
        self.0.extend_from_slice(value);
    }

    fn text(&mut self, key: &str, value: &str) {
        let mut text = Vec::with_capacity(value.len() + 2);
        format::escape(&mut text, value.as_bytes());
        self.raw(key, &text);
    }

    fn end(mut self) -> Bytes {
        self.0.push(b'}');
        self.0.into()
    }
}
