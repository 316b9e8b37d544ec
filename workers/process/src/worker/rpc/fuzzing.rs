//! Fuzzing of the frames (lines) that a Python worker sends to the gateway. Compiled only for `make fuzz` and for tests.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::event::{self, FrameQuestion};
use super::frame::Frame;

/// Maximum size of a result in bytes, small enough that inputs have smaller and larger results.
const RESULT_MAX: u64 = 64;

/// Reads a line of a worker, and checks the parts that the gateway passes on to clients.
pub fn worker_frame(line: &[u8]) {
    let line = Bytes::copy_from_slice(line);
    let Some(frame) = Frame::parse(&line) else {
        return;
    };
    let object = |bytes: &[u8]| assert!(json(bytes).starts_with('{'), "params are an object");
    if let Some(params) = event::progress(&frame, &line) {
        object(&params);
    }
    if let Some((_, params)) = event::log(&frame, &line) {
        object(&params);
    }
    let _ = (event::dropped(&frame), event::notice(&frame), frame.id());
    for question in event::questions(&frame).unwrap_or_default() {
        match question {
            FrameQuestion::Question(question) => {
                assert!((1..=256).contains(&question.key.chars().count()));
                object(&question.params);
            }
            FrameQuestion::Refused { .. } | FrameQuestion::Senseless => {}
        }
    }
    if let Ok(reply) = frame.outcome(&line, RESULT_MAX) {
        assert!(reply.value.len() as u64 <= RESULT_MAX);
        json(&reply.value);
        if let Some(content) = reply.content {
            assert!(json(&content).starts_with('['), "content is a list");
        }
        if let Some(meta) = reply.meta {
            object(&meta);
        }
    }
}

/// Returns bytes, which must be JSON, as text.
fn json(bytes: &[u8]) -> &str {
    let value: &RawValue = serde_json::from_slice(bytes).expect("a part of a frame is JSON");
    value.get()
}
