//! The result of a tool as hooks see it, and the reply with a result that a hook has changed. For hooks every result is one of
//! `tools/call`, whatever ran the tool.

use std::borrow::Cow;

use bytes::Bytes;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::worker::ToolReply;

use crate::engine::{UpstreamReply, tool_value};
use tooldock_protocol::format::escape;
use tooldock_protocol::jsonrpc::spans::MemberEdit;
use tooldock_protocol::jsonrpc::{self, spans};
use tooldock_protocol::version::Method;

/// A result that hooks see, as raw JSON.
pub(super) struct ShownResult {
    text: String,
    /// True if the result is the member `result` of the reply, which describes a task.
    is_of_task: bool,
}

impl ShownResult {
    /// Returns the result of a reply. `None` for errors, for methods without results of tools, and for replies before the
    /// result: a question to the client, and a task that was created or still runs.
    pub(super) fn of(method: &Method, reply: &UpstreamReply) -> Option<Self> {
        let is_of_task = match &**method {
            "tools/call" | "tasks/result" => false,
            "tasks/get" => true,
            _ => return None,
        };
        let bytes = match reply {
            UpstreamReply::Value(reply) => {
                let text = of_value(reply);
                return Some(Self { text, is_of_task });
            }
            UpstreamReply::Result(result) => &**result,
            UpstreamReply::Response(response) if response.is_error() => return None,
            UpstreamReply::Response(response) => response.payload(),
        };
        let mut text = String::from_utf8_lossy(bytes);
        if is_of_task {
            text = Cow::Owned(spans::find(&text, "result")?.to_owned());
        }
        let text = text.into_owned();
        (!comes_before_result(&text)).then_some(Self { text, is_of_task })
    }

    /// The result as raw JSON.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the reply with a changed result.
    ///
    /// # Errors
    ///
    /// The failure of the tool, if a hook has made an error of a function's value.
    pub(super) fn replaced(
        &self,
        reply: &UpstreamReply,
        changed: &Bytes,
    ) -> Result<UpstreamReply, CallError> {
        let changed = String::from_utf8_lossy(changed);
        let kept = self.with_type(&changed);
        Ok(match reply {
            UpstreamReply::Value(before) => UpstreamReply::Value(to_value(before, &changed)?),
            UpstreamReply::Result(before) => UpstreamReply::Result(self.within(before, kept)),
            UpstreamReply::Response(response) => {
                let result = self.within(response.payload(), kept);
                UpstreamReply::Response(response.clone().with_payload(result))
            }
        })
    }

    /// Adds the member `resultType`, which clients of 2026-07-28 require, if only the result before has it.
    fn with_type<'a>(&self, changed: &'a str) -> Cow<'a, str> {
        match spans::find(&self.text, "resultType") {
            None => Cow::Borrowed(changed),
            Some(kind) => {
                let kind = MemberEdit::Default("resultType", kind.into());
                Cow::Owned(spans::edit(changed, &[kind]))
            }
        }
    }

    /// Puts a changed result in the place of the one before.
    fn within(&self, before: &[u8], changed: Cow<'_, str>) -> Bytes {
        if !self.is_of_task {
            return changed.into_owned().into();
        }
        let task = String::from_utf8_lossy(before);
        spans::edit(&task, &[MemberEdit::Set("result", changed)]).into()
    }
}

/// Members of replies before the result: of a question to the client, and of a begun task in both eras.
const BEFORE_RESULT: [&str; 14] = [
    "resultType",
    "_meta",
    "inputRequests",
    "requestState",
    "task",
    "taskId",
    "status",
    "statusMessage",
    "createdAt",
    "lastUpdatedAt",
    "ttl",
    "ttlMs",
    "pollInterval",
    "pollIntervalMs",
];

/// Returns true if a reply is not the result of its tool yet. A reply with any other member is a result: a server must not be able
/// to send one past the hooks.
fn comes_before_result(result: &str) -> bool {
    let is_known = |name: &str| BEFORE_RESULT.contains(&name);
    if !spans::members(result).is_some_and(|all| all.iter().all(|(name, _)| is_known(name))) {
        return false;
    }
    let is_text =
        |object: &str, name| spans::find(object, name).is_some_and(|it| it.starts_with('"'));
    let asks = spans::find(result, "resultType") == Some("\"input_required\"");
    let begins = |task: &str| is_text(task, "taskId") && is_text(task, "status");
    asks || begins(result) || spans::find(result, "task").is_some_and(begins)
}

/// Returns true if the message of a failure with this code may contain words of the tool.
pub(super) fn has_words_of_tool(code: CallErrorCode) -> bool {
    matches!(
        code,
        CallErrorCode::ToolError
            | CallErrorCode::InternalError
            | CallErrorCode::OutputType
            | CallErrorCode::InvalidArguments
            | CallErrorCode::DependencyError
            | CallErrorCode::UpstreamError
    )
}

/// Writes the failure of a tool as a result of `tools/call`, with its details as structured content.
pub(super) fn of_failure(error: &CallError) -> String {
    let mut out = b"{\"content\":[{\"type\":\"text\",\"text\":".to_vec();
    escape(&mut out, error.message.as_bytes());
    out.extend_from_slice(b"}]");
    if let Some(details) = &error.details {
        out.extend_from_slice(b",\"structuredContent\":");
        out.extend_from_slice(details.get().as_bytes());
    }
    out.extend_from_slice(b",\"isError\":true}");
    String::from_utf8_lossy(&out).into_owned()
}

/// Reads the failure of a tool from a changed result. Details that the result does not contain are removed.
pub(super) fn changed_failure(mut error: CallError, changed: &Bytes) -> CallError {
    let changed = String::from_utf8_lossy(changed);
    error.message = first_text(spans::find(&changed, "content").unwrap_or("[]"));
    let details = spans::find(&changed, "structuredContent");
    error.details = details
        .filter(|it| it.starts_with('{'))
        .and_then(|it| spans::raw(it.as_bytes()).map(ToOwned::to_owned));
    // The cause for the log may repeat the words that a hook has removed.
    error.cause = None;
    error
}

/// Writes the value of a function as the result of `tools/call`.
fn of_value(reply: &ToolReply) -> String {
    let mut out = Vec::with_capacity(2 * reply.size() + 128);
    out.extend_from_slice(b"{\"content\":");
    tool_value::write_content(&mut out, reply);
    if tool_value::has_structure(reply) {
        out.extend_from_slice(b",\"structuredContent\":");
        tool_value::write_structure(&mut out, reply);
    }
    out.extend_from_slice(b",\"isError\":false");
    if let Some(meta) = &reply.meta {
        out.extend_from_slice(b",\"_meta\":");
        out.extend_from_slice(meta);
    }
    out.push(b'}');
    String::from_utf8_lossy(&out).into_owned()
}

/// Reads the value of a function from a changed result.
fn to_value(before: &ToolReply, changed: &str) -> Result<ToolReply, CallError> {
    let content = spans::find(changed, "content").unwrap_or("[]");
    if spans::find(changed, "isError") == Some("true") {
        return Err(CallError::new(
            CallErrorCode::ToolError,
            first_text(content),
        ));
    }
    let was_wrapped = !tool_value::value(before).starts_with(b"{");
    let value = match spans::find(changed, "structuredContent") {
        None => "null",
        Some(structure) if was_wrapped => inner(structure).unwrap_or(structure),
        Some(structure) => structure,
    };
    let mut usual = Vec::new();
    tool_value::write_text_block(&mut usual, value.as_bytes());
    let is_usual = usual == content.as_bytes();
    let owned = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    Ok(ToolReply {
        value: owned(value),
        content: (!is_usual).then(|| owned(content)),
        meta: spans::find(changed, "_meta").map(owned),
    })
}

/// Returns the value that `{"result": value}` wraps.
fn inner(structure: &str) -> Option<&str> {
    match &*spans::members(structure)? {
        [(name, value)] if name == "result" => Some(value),
        _ => None,
    }
}

/// Returns the text of the first content block that has a text; empty if there is none.
fn first_text(content: &str) -> String {
    let text = |block| {
        let text = spans::raw(spans::find(block, "text")?.as_bytes())?;
        Some(jsonrpc::string(text)?.into_owned())
    };
    spans::items(content).find_map(text).unwrap_or_default()
}

#[cfg(test)]
mod tests;
