//! Reads the tool's arguments from the body of a REST call.

use bytes::Bytes;
use http::StatusCode;
use serde_json::value::RawValue;
pub(super) use tooldock_sessions::catalogue::arguments::are_required;

use super::EarlyReply;
use crate::jsonrpc::{self, RequestError};

/// Reads the arguments of a call. An empty body counts as `{}` (RST-10), and so does white space for a tool that needs no
/// arguments.
pub(super) fn of(body: Bytes) -> Result<Bytes, EarlyReply> {
    if body.trim_ascii().is_empty() {
        return Ok(Bytes::from_static(b"{}"));
    }
    let invalid = |reason: &str| EarlyReply::new(StatusCode::BAD_REQUEST, "invalid_json", reason);
    let text = jsonrpc::text(&body).map_err(|failure| match failure {
        RequestError::Parse(reason) | RequestError::Shape(reason) => invalid(&reason),
        _ => invalid("the body is no JSON"),
    })?;
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| invalid(&error.to_string()))?;
    if raw.get().starts_with('{') {
        Ok(body.slice_ref(raw.get().as_bytes()))
    } else {
        Err(EarlyReply::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_arguments",
            "The body must be a JSON object: it is the tool's arguments",
        ))
    }
}

/// Returns true if the body is not empty and consists of white space only.
pub(super) fn is_blank(body: &[u8]) -> bool {
    !body.is_empty() && body.trim_ascii().is_empty()
}

/// Refuses a body of white space for a tool that needs arguments. A client that lost the arguments gets an error this way.
pub(super) fn blank() -> EarlyReply {
    EarlyReply::new(
        StatusCode::BAD_REQUEST,
        "invalid_json",
        "The body holds white space alone, but the tool needs arguments: send them as a JSON object",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_empty_arguments_and_other_values_are_none() {
        let read = |body: &'static str| of(Bytes::from_static(body.as_bytes())).ok();
        for body in ["", " "] {
            assert_eq!(read(body).as_deref(), Some(&b"{}"[..]), "{body}");
        }
        assert_eq!(
            read(r#" {"a":null} "#).as_deref(),
            Some(&br#"{"a":null}"#[..])
        );
        for body in ["[]", "null", "nul", "0", "\"null\"", "null null"] {
            assert!(read(body).is_none(), "{body}");
        }
    }
}
