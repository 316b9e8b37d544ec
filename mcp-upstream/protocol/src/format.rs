//! Writes responses as JSON text. Each is written once: the client's id, then the result, whose parts are copied without
//! decoding.

mod era;
mod writer;

pub use crate::version::CacheScope;
pub use era::{ModernFormat, ResultFormat, server_info};
pub use writer::ResultWriter;

/// Writes the beginning of a response, up to its id. The caller writes the rest and closes the object.
pub fn begin(out: &mut Vec<u8>, id: &str) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"result\":");
}

/// Builds a response from the client's id and a server's result.
pub fn raw_result(id: &str, result: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(id.len() + result.len() + 40);
    begin(&mut out, id);
    out.extend_from_slice(result);
    out.push(b'}');
    out
}

/// Appends a text as a JSON string. The text should be UTF-8, since it comes from JSON or from this gateway. An invalid byte is
/// replaced, so that the response stays valid JSON.
pub fn escape(out: &mut Vec<u8>, text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    serde_json::to_writer(out, &*text).expect("a string serializes into memory");
}
