//! The lines that a worker writes, read without copying them.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::json;

use crate::worker::ToolReply;

/// A line that a worker sent. Unknown JSON fields are ignored. Fields are validated only after the line was matched to its
/// call, so that an invalid response still ends its call.
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
    meta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) params: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) questions: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) method: Option<&'a RawValue>,
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

/// Reads a JSON field that is present, even if it is `null`: `Option<&RawValue>` alone cannot distinguish `null` from a
/// missing field, and `null` is a result.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl<'a> Frame<'a> {
    /// Parses a line; `None` if it is not a JSON object with fields of the right types.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        // serde would also read a JSON array as this struct: its elements as the fields, in order.
        let first = line.iter().find(|byte| !byte.is_ascii_whitespace());
        if first != Some(&b'{') {
            return None;
        }
        match std::str::from_utf8(line) {
            Ok(text) => json::from_str(text).ok(),
            // Invalid UTF-8 is allowed in JSON fields that are ignored, so the line is parsed as bytes.
            Err(_) => serde_json::from_slice(line).ok(),
        }
    }

    /// Returns the id of the call that the line belongs to; `None` if it is not an unsigned integer.
    pub(super) fn id(&self) -> Option<u64> {
        self.id?.get().parse().ok()
    }

    /// Returns true if the line is a response to a call, valid or not.
    pub(super) fn is_answer(&self) -> bool {
        self.op.is_none() && self.id.is_some()
    }

    /// Converts the line into the call's result or error. The result shares the line's buffer.
    pub(super) fn outcome(self, line: &Bytes, max_result: u64) -> Result<ToolReply, CallError> {
        let senseless = || {
            CallError::new(
                CallErrorCode::InternalError,
                "the worker's answer is neither a result nor an error",
            )
        };
        match (self.ok.map(RawValue::get), self.result, self.error) {
            // Callers use the elements of `content` without a further check.
            (Some("true"), Some(_), None) if self.content.is_some_and(|c| !is_array(c)) => {
                Err(senseless())
            }
            (Some("true"), Some(_), None) if self.meta.is_some_and(|meta| !is_object(meta)) => {
                Err(senseless())
            }
            (Some("true"), Some(result), None) => {
                let of = |part: Option<&RawValue>| part.map_or(0, |part| part.get().len());
                let size = of(Some(result)).max(of(self.content)).max(of(self.meta));
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
                    meta: self.meta.map(|meta| slice(line, meta)),
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
                    cause: None,
                })
            }
            _ => Err(senseless()),
        }
    }
}

fn is_array(value: &RawValue) -> bool {
    value.get().trim_ascii_start().starts_with('[')
}

/// Returns true if a value is a JSON object.
pub(super) fn is_object(value: &RawValue) -> bool {
    value.get().trim_ascii_start().starts_with('{')
}

/// Returns the text of a JSON value in the line, as a slice of the line's buffer.
pub(super) fn slice(line: &Bytes, part: &RawValue) -> Bytes {
    line.slice_ref(part.get().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(line: &str, max_result: u64) -> Result<ToolReply, CallError> {
        let line = Bytes::copy_from_slice(line.as_bytes());
        Frame::parse(&line)
            .expect("an object")
            .outcome(&line, max_result)
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
            r#"{"id":1,"ok":true,"result":1,"content":[],"meta":{"a":1234}}"#,
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
            r#"{"id":1,"ok":true,"result":1,"content":[],"meta":[]}"#,
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
