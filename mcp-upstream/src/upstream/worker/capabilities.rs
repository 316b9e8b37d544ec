//! What a namespace declares at the beginning of a conversation, in `initialize` and `server/discover` alike.

use serde_json::{Value, json};
use tooldock_workers::registry::Namespace;

/// The capabilities: tools always (there may be some after the next reload), everything else where there is some.
pub(crate) fn of(namespace: &Namespace) -> Value {
    let mut declared = json!({ "tools": { "listChanged": true } });
    if !namespace.resources.is_empty() || !namespace.resource_templates.is_empty() {
        declared["resources"] = json!({ "subscribe": true, "listChanged": true });
    }
    if !namespace.prompts.is_empty() {
        declared["prompts"] = json!({ "listChanged": true });
    }
    if namespace.completions {
        declared["completions"] = json!({});
    }
    if namespace.has_context() {
        declared["logging"] = json!({});
    }
    declared
}
