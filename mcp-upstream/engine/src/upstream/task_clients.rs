//! Clients' use of tasks, in both eras: the declaration of a client, and the capabilities of a namespace.
//!
//! | | 2025-11-25 | 2026-07-28 |
//! |---|---|---|
//! | a call becomes a task | if it has `params.task` | if its client declares the extension and the tool has tasks |
//! | a tool without tasks | is refused with `params.task` | ignores `params.task` |
//! | a tool that must be a task | is refused without `params.task` | is refused for a client without the extension |

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{CallContext, Client};
use tooldock_protocol::jsonrpc::{Key, Members, RequestError, spans};
use tooldock_protocol::version::ProtocolVersion;

/// Name of the extension in the capabilities of 2026-07-28.
pub const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The wish of a client about tasks, as its request states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskWish {
    /// The client does not know tasks, or does not want one.
    None,
    /// The server chooses: the client declares the extension.
    Accepted,
    /// The client asks for a task.
    Requested,
}

impl TaskWish {
    /// Reads the wish of a `tools/call`.
    pub fn of(cx: &CallContext<'_>, members: &Members<'_>) -> Self {
        match &cx.client {
            Client::Modern(meta) if declares(&meta.capabilities) => Self::Accepted,
            Client::Session(_) | Client::Legacy(_)
                if knows_tasks(cx.version()) && members.raw(Key::Task).is_some() =>
            {
                Self::Requested
            }
            Client::Modern(_) | Client::Session(_) | Client::Legacy(_) | Client::Plain => {
                Self::None
            }
        }
    }
}

/// Returns true if a client of this legacy version knows tasks.
pub fn knows_tasks(version: Option<ProtocolVersion>) -> bool {
    version.is_some_and(ProtocolVersion::has_tasks)
}

/// Returns true if a modern client's capabilities (raw JSON) declare the extension.
pub fn declares(capabilities: &[u8]) -> bool {
    if !spans::may_hold(capabilities, EXTENSION) {
        return false;
    }
    let declared = spans::raw(capabilities)
        .and_then(|all| spans::member(all, "extensions"))
        .and_then(|extensions| spans::member(extensions, EXTENSION));
    declared.is_some_and(|settings| settings.get().starts_with('{'))
}

/// Creates the error for a modern client that does not declare the extension.
pub fn undeclared() -> RequestError {
    RequestError::MissingCapability(required())
}

/// The capability that a modern client must declare, as raw JSON.
pub fn required() -> Box<RawValue> {
    let required = json!({ "extensions": { EXTENSION: {} } });
    serde_json::value::to_raw_value(&required).expect("plain data")
}

/// Adds the capability of tasks to a namespace's capabilities for a client. Without a principal, a list of tasks would show the
/// tasks of all clients, so it is not offered.
pub fn offer(capabilities: &mut Value, cx: &CallContext<'_>, version: Option<ProtocolVersion>) {
    if cx.client.is_modern() {
        capabilities["extensions"][EXTENSION] = json!({});
    } else if knows_tasks(version) {
        capabilities["tasks"] = json!({ "cancel": {}, "requests": { "tools": { "call": {} } } });
        if lists(cx) {
            capabilities["tasks"]["list"] = json!({});
        }
    }
}

/// Returns true if the caller may list its tasks.
pub fn lists(cx: &CallContext<'_>) -> bool {
    cx.caller.principal.is_some() && !cx.namespace.name.is_global()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_declares_tasks_by_the_extension_alone() {
        for (capabilities, expected) in [
            (
                r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
                true,
            ),
            (
                r#"{"extensions":{"io.modelcontextprotocol\/tasks":{"x":1}}}"#,
                true,
            ),
            (
                r#"{"extensions":{"io.modelcontextprotocol/tasks":null}}"#,
                false,
            ),
            (r#"{"extensions":{"io.modelcontextprotocol/ui":{}}}"#, false),
            (r#"{"io.modelcontextprotocol/tasks":{}}"#, false),
            (r#"{"tasks":{}}"#, false),
            ("{}", false),
        ] {
            assert_eq!(
                declares(capabilities.as_bytes()),
                expected,
                "{capabilities}"
            );
        }
    }
}
