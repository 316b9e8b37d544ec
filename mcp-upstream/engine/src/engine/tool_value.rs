//! The value of a function as parts of a result of `tools/call`. The value is copied as bytes, never decoded.

use tooldock_process::worker::ToolReply;
use tooldock_protocol::format::escape;

/// Returns the value that a function returned, as JSON.
#[inline]
pub fn value(reply: &ToolReply) -> &[u8] {
    match reply.value.trim_ascii() {
        [] => b"null",
        value => value,
    }
}

/// Writes the content blocks of a result: those that the worker returned (images, links), else the text block of the value.
#[inline]
pub fn write_content(out: &mut Vec<u8>, reply: &ToolReply) {
    match &reply.content {
        Some(blocks) => out.extend_from_slice(blocks.trim_ascii()),
        None => write_text_block(out, value(reply)),
    }
}

/// Writes a value as one text block: a string unchanged, any other value as its JSON text.
#[inline]
pub(crate) fn write_text_block(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(b"[{\"type\":\"text\",\"text\":");
    match value.starts_with(b"\"") {
        true => out.extend_from_slice(value),
        false => escape(out, value),
    }
    out.extend_from_slice(b"}]");
}

/// Returns true if the result has structured content. A value of `null` beside content blocks gives none.
#[inline]
pub fn has_structure(reply: &ToolReply) -> bool {
    !(reply.content.is_some() && value(reply) == b"null")
}

/// Writes the structured content of a result: an object unchanged, any other value as the member `result` of an object.
#[inline]
pub fn write_structure(out: &mut Vec<u8>, reply: &ToolReply) {
    let value = value(reply);
    match value.starts_with(b"{") {
        true => out.extend_from_slice(value),
        false => {
            out.extend_from_slice(b"{\"result\":");
            out.extend_from_slice(value);
            out.push(b'}');
        }
    }
}
