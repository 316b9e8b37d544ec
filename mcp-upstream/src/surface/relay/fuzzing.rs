//! Fuzzing of the frames (lines) that a relay client sends to the gateway. Compiled only for `make fuzz` and for tests.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::frame::{Frame, greeting};

/// Reads a line as a frame, and checks the parts that the gateway passes on or sends back.
pub fn relay_frame(line: &[u8]) {
    if let Some(Some(project)) = greeting(line) {
        assert!(!project.is_empty() && project.chars().all(|it| it.is_ascii_graphic()));
    }
    let frame = Frame::of(line);
    let shown = format!("{frame:?}");
    match frame {
        Frame::Tools { id, key, .. } => {
            is_name(&id);
            is_hidden(key.expose(), line, &shown);
        }
        Frame::Call { id, key, call, .. } => {
            is_name(&id);
            is_hidden(key.expose(), line, &shown);
            let arguments = serde_json::from_slice::<&RawValue>(&call.arguments);
            let arguments = arguments.expect("arguments are JSON").get();
            assert!(arguments.starts_with('{'), "arguments are an object");
            if let Some(token) = call.progress_token {
                is_name(&token);
            }
        }
        Frame::Cancelled(id) => is_name(&id),
        Frame::Ignored => {}
        Frame::Refused(error) => {
            let reply = error.reply();
            assert!(!reply.contains(&b'\n'), "a reply is one line");
            serde_json::from_slice::<Map<String, Value>>(&reply).expect("a reply is an object");
        }
    }
}

/// Checks that raw JSON is an id or token: a string or a number.
fn is_name(raw: &str) {
    let raw = serde_json::from_str::<&RawValue>(raw).expect("JSON").get();
    assert!(raw.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9')));
}

/// Checks that a frame's debug output does not contain its API key. Skips keys of less than 8 bytes, and keys that the line
/// contains more than once, since other parts of the frame may then contain the text of the key.
fn is_hidden(key: &str, line: &[u8], shown: &str) {
    let line = String::from_utf8_lossy(line);
    if key.len() >= 8 && line.matches(key).count() == 1 {
        assert!(!shown.contains(key), "a key is shown");
    }
}
