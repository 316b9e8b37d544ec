//! The lines on a worker's connection: what we write, and what we read without copying it.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::error::{CallError, CallErrorCode};
use crate::worker::{ToolCall, ToolReply};

/// The id of requests whose answer nobody waits for. Calls never have it.
pub(super) const NO_REPLY: u64 = 0;

/// Appends `{"id":…,"op":"tools.call","tool":"…","arguments":{…}}` and a newline.
pub(super) fn write_call(buffer: &mut BytesMut, id: u64, call: &ToolCall) {
    buffer.reserve(call.arguments.len() + call.tool.len() + 80);
    buffer.put_slice(b"{\"id\":");
    write_number(buffer, id);
    buffer.put_slice(b",\"op\":\"tools.call\",\"tool\":");
    write_string(buffer, &call.tool);
    buffer.put_slice(b",\"arguments\":");
    if call.arguments.is_empty() {
        buffer.put_slice(b"{}");
    } else {
        write_on_one_line(buffer, &call.arguments);
    }
    buffer.put_slice(b"}\n");
}

/// Appends the request to give up a call.
pub(super) fn write_cancel(buffer: &mut BytesMut, target: u64) {
    buffer.put_slice(b"{\"op\":\"cancel\",\"target\":");
    write_number(buffer, target);
    buffer.put_slice(b"}\n");
}

/// Appends the question whether the worker lives.
pub(super) fn write_ping(buffer: &mut BytesMut) {
    buffer.put_slice(b"{\"id\":");
    write_number(buffer, NO_REPLY);
    buffer.put_slice(b",\"op\":\"ping\"}\n");
}

/// Appends the request to end.
pub(super) fn write_shutdown(buffer: &mut BytesMut) {
    buffer.put_slice(b"{\"id\":");
    write_number(buffer, NO_REPLY);
    buffer.put_slice(b",\"op\":\"shutdown\"}\n");
}

/// Copies JSON text with its line breaks made spaces. In valid JSON only whitespace holds a raw one; in anything else
/// the replacement keeps one frame from becoming two.
fn write_on_one_line(buffer: &mut BytesMut, mut json: &[u8]) {
    while let Some(at) = memchr::memchr2(b'\r', b'\n', json) {
        buffer.put_slice(&json[..at]);
        buffer.put_u8(b' ');
        json = &json[at + 1..];
    }
    buffer.put_slice(json);
}

fn write_number(buffer: &mut BytesMut, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).expect("one digit");
        number /= 10;
        if number == 0 {
            break;
        }
    }
    buffer.put_slice(&digits[at..]);
}

fn write_string(buffer: &mut BytesMut, text: &str) {
    serde_json::to_writer(buffer.writer(), text).expect("a string into memory");
}

/// One line of a worker. Unknown members are ignored, and members are not judged before the line found its call: an
/// answer that makes no sense still ends the call it names.
#[derive(Debug, Deserialize)]
pub(super) struct Frame<'a> {
    #[serde(borrow, default)]
    pub(super) op: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    ok: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct ErrorObject<'a> {
    #[serde(borrow)]
    code: Cow<'a, str>,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
    #[serde(borrow, default)]
    details: Option<&'a RawValue>,
}

/// `Option<&RawValue>` alone cannot tell `null` from nothing, and `null` is a result.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl<'a> Frame<'a> {
    /// `None` if the line is not a JSON object with members of the right kinds.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        // serde would read an array as a struct, member by member.
        let first = line.iter().find(|byte| !byte.is_ascii_whitespace());
        if first != Some(&b'{') {
            return None;
        }
        serde_json::from_slice(line).ok()
    }

    /// The id, if it is a number we could have given out.
    pub(super) fn id(&self) -> Option<u64> {
        self.id?.get().parse().ok()
    }

    /// Whether the line answers something, rightly or wrongly.
    pub(super) fn is_answer(&self) -> bool {
        self.op.is_none() && self.id.is_some()
    }

    /// The params of a progress report, still in the line's buffer.
    pub(super) fn params(&self, line: &Bytes) -> Option<Bytes> {
        self.params.map(|params| slice(line, params))
    }

    /// The answer, still in the line's buffer.
    pub(super) fn outcome(self, line: &Bytes, max_result: u64) -> Result<ToolReply, CallError> {
        let senseless = || {
            CallError::new(
                CallErrorCode::InternalError,
                "the worker's answer is neither a result nor an error",
            )
        };
        match (self.ok.map(RawValue::get), self.result, self.error) {
            // Above us the content's blocks are taken for the answer as they are.
            (Some("true"), Some(_), None) if self.content.is_some_and(|c| !is_array(c)) => {
                Err(senseless())
            }
            (Some("true"), Some(result), None) => {
                let size = result
                    .get()
                    .len()
                    .max(self.content.map_or(0, |c| c.get().len()));
                if size as u64 > max_result {
                    return Err(CallError::new(
                        CallErrorCode::ResultTooLarge,
                        format!(
                            "the result is {size} bytes of JSON; at most {max_result} are allowed"
                        ),
                    ));
                }
                Ok(ToolReply {
                    value: slice(line, result),
                    content: self.content.map(|content| slice(line, content)),
                })
            }
            (Some("false"), None, Some(error)) => {
                let error: ErrorObject<'_> =
                    serde_json::from_str(error.get()).map_err(|_| senseless())?;
                Err(CallError {
                    code: CallErrorCode::from_worker(&error.code),
                    message: error.message.into_owned(),
                    details: error.details.map(ToOwned::to_owned),
                    retry_after: None,
                })
            }
            _ => Err(senseless()),
        }
    }
}

fn is_array(value: &RawValue) -> bool {
    value.get().trim_ascii_start().starts_with('[')
}

fn slice(line: &Bytes, part: &RawValue) -> Bytes {
    line.slice_ref(part.get().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tool: &str, arguments: &str) -> ToolCall {
        ToolCall {
            tool: tool.into(),
            arguments: Bytes::copy_from_slice(arguments.as_bytes()),
            max_result: 100,
        }
    }

    fn outcome(line: &str, max_result: u64) -> Result<ToolReply, CallError> {
        let line = Bytes::copy_from_slice(line.as_bytes());
        Frame::parse(&line)
            .expect("an object")
            .outcome(&line, max_result)
    }

    #[test]
    fn a_call_is_one_line_whatever_its_name_and_whitespace() {
        let mut buffer = BytesMut::new();
        write_call(
            &mut buffer,
            9_007_199_254_740_991,
            &call("a\"b\n", "{\r\n \"x\":\n\"\\n\"}"),
        );
        write_call(&mut buffer, 10, &call("t", ""));
        write_cancel(&mut buffer, 10);
        write_shutdown(&mut buffer);
        let text = String::from_utf8(buffer.to_vec()).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                r#"{"id":9007199254740991,"op":"tools.call","tool":"a\"b\n","arguments":{   "x": "\n"}}"#,
                r#"{"id":10,"op":"tools.call","tool":"t","arguments":{}}"#,
                r#"{"op":"cancel","target":10}"#,
                r#"{"id":0,"op":"shutdown"}"#,
            ]
        );
    }

    #[test]
    fn a_result_keeps_its_bytes_and_null_is_one() {
        let reply = outcome(
            r#"{"id":1,"ok":true,"result": {"a" : 1.0},"latency_ms":2}"#,
            50,
        );
        assert_eq!(reply.expect("ok").value, r#"{"a" : 1.0}"#);
        let reply = outcome(r#"{"id":1,"ok":true,"result":null,"content":[1]}"#, 50).expect("ok");
        assert_eq!(reply.value, "null");
        assert_eq!(reply.content.expect("given"), "[1]");
    }

    #[test]
    fn a_result_beyond_the_limit_is_refused_with_both_sizes() {
        for line in [
            r#"{"id":1,"ok":true,"result":"12345678"}"#,
            r#"{"id":1,"ok":true,"result":1,"content":["123456"]}"#,
        ] {
            let error = outcome(line, 9).expect_err("too large");
            assert_eq!(error.code, CallErrorCode::ResultTooLarge);
            assert!(
                error.message.contains("10 bytes") && error.message.contains(" 9 "),
                "{error}"
            );
            assert!(outcome(line, 10).is_ok());
        }
    }

    #[test]
    fn an_error_keeps_code_message_and_details() {
        let line = r#"{"id":1,"ok":false,"error":{"code":"invalid_arguments","message":"a\nb","details":{"x":[1]}}}"#;
        let error = outcome(line, 9).expect_err("an error");
        assert_eq!(error.code, CallErrorCode::InvalidArguments);
        assert_eq!(error.message, "a\nb");
        assert_eq!(error.details.expect("given").get(), r#"{"x":[1]}"#);
    }

    #[test]
    fn an_answer_that_is_both_or_neither_or_has_no_blocks_is_an_internal_error() {
        for line in [
            r#"{"id":1,"ok":true}"#,
            r#"{"id":1,"ok":false}"#,
            r#"{"id":1,"ok":true,"result":1,"error":{"code":"x"}}"#,
            r#"{"id":1,"ok":false,"result":1}"#,
            r#"{"id":1,"ok":"yes","result":1}"#,
            r#"{"id":1,"ok":false,"error":"no"}"#,
            r#"{"id":1}"#,
            r#"{"id":1,"ok":true,"result":1,"content":{"type":"text"}}"#,
            r#"{"id":1,"ok":true,"result":1,"content": "[]"}"#,
            r#"{"id":1,"ok":true,"result":1,"content":0}"#,
        ] {
            assert_eq!(
                outcome(line, 99).expect_err(line).code,
                CallErrorCode::InternalError
            );
        }
    }

    #[test]
    fn lines_that_are_no_frames_are_recognised() {
        for line in [
            "",
            "hello",
            "[]",
            "[1,2,3,4,5,6,7]",
            "{",
            "{\"id\":1,\"id\":2}",
            "\u{0}",
            "{} {}",
        ] {
            assert!(Frame::parse(line.as_bytes()).is_none(), "{line}");
        }
        assert!(Frame::parse(b"{\"id\":1,\"ok\":true,\"result\":\"\xff\"}").is_none());
        let strange = Frame::parse(b"{\"id\":\"1\",\"ok\":true,\"result\":1}").expect("an object");
        assert_eq!(strange.id(), None);
    }
}
