//! `server/discover`: what a client would have learned from `initialize`.

use http::StatusCode;

use super::supported;
use crate::content::{self, Answer, CacheScope};
use crate::mcp::{Conversation, capabilities};
use crate::reply::Reply;

/// Answers for the namespace, in the gateway's name.
pub(super) fn answer(conversation: &Conversation<'_>, id: &str) -> Reply {
    let namespace = &conversation.namespace;
    let scope = CacheScope::of_lists(conversation.caller, namespace);
    let dress = conversation.dress();
    let mut answer = Answer::begin(id, &dress, 512).cached(scope);
    let versions: Vec<&str> = supported(conversation.caller).collect();
    let out = answer.key("supportedVersions");
    serde_json::to_writer(out, &versions).expect("strings serialize into memory");
    let out = answer.key("capabilities");
    out.extend_from_slice(capabilities::of(namespace).to_string().as_bytes());
    if !namespace.description.is_empty() {
        let out = answer.key("instructions");
        content::escape(out, namespace.description.as_bytes());
    }
    Reply::json(StatusCode::OK, answer.end())
}
