//! Writes results as JSON text: each result is written once, after the client's id, around spans that are never decoded.

mod era;
mod writer;

pub use crate::version::CacheScope;
pub use era::{ModernFormat, ResultFormat, server_info};
pub use writer::ResultWriter;

/// Opens a response; the caller closes the outer object.
pub fn begin(out: &mut Vec<u8>, id: &str) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"result\":");
}

/// A server's result, after the client's id.
pub fn raw_result(id: &str, result: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(id.len() + result.len() + 40);
    begin(&mut out, id);
    out.extend_from_slice(result);
    out.push(b'}');
    out
}

/// Appends a text as a JSON string. The text comes from JSON or from this gateway, so it is UTF-8; an invalid byte becomes a
/// replacement character and does not break the response.
pub fn escape(out: &mut Vec<u8>, text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    serde_json::to_writer(out, &*text).expect("a string serializes into memory");
}
