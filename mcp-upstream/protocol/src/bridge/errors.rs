//! Corrects errors of servers that are not valid JSON-RPC errors: a bare string, a missing code, a name as the code. Official
//! clients drop a response with such an error and wait forever.

use serde_json::Value;

use crate::jsonrpc::spans::{self, MemberEdit};
use crate::version::code;

/// Message that is added to an error without a message, as JSON.
const NO_MESSAGE: &str = r#""the server gave no message""#;
/// Largest integer that every JSON parser reads without loss of precision.
const SAFE_MAX: u64 = (1 << 53) - 1;

/// Corrects an error: the code becomes an integer, the message a string, and `data` that is `null` is removed. Returns `None` if
/// the error is valid already, or if it contains a repeated key.
pub fn mended(error: &[u8]) -> Option<String> {
    let error = std::str::from_utf8(error).ok()?.trim();
    if !error.starts_with('{') {
        let (code, message) = (code::INTERNAL, message(error));
        let message = message.as_deref().unwrap_or(error);
        return Some(format!(r#"{{"code":{code},"message":{message}}}"#));
    }
    let members = spans::members(error)?;
    let member = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    };
    let mut changes = Vec::new();
    let code = integer(member("code").unwrap_or("null"));
    changes.extend(code.map(|code| MemberEdit::Set("code", code.into())));
    let message = message(member("message").unwrap_or("null"));
    changes.extend(message.map(|message| MemberEdit::Set("message", message.into())));
    if member("data") == Some("null") {
        changes.push(MemberEdit::Remove("data"));
    }
    (!changes.is_empty()).then(|| spans::edit(error, &changes))
}

/// Replacement for an error code that is not a plain integer; `None` if the code is valid.
fn integer(code: &str) -> Option<String> {
    let is_safe = |number: i64| number.unsigned_abs() <= SAFE_MAX;
    if code.parse::<i64>().is_ok_and(is_safe) {
        return None;
    }
    // Some programming languages write integers as `-32601.0`.
    let whole = code.strip_suffix(".0");
    let whole = whole.and_then(|it| it.parse::<i64>().ok());
    let whole = whole.filter(|number| is_safe(*number));
    Some(whole.unwrap_or(i64::from(code::INTERNAL)).to_string())
}

/// Replacement, as JSON, for an error message that is missing or not a string; `None` if the message is a string.
fn message(value: &str) -> Option<String> {
    match value {
        "null" => Some(NO_MESSAGE.to_owned()),
        _ if value.starts_with('"') => None,
        _ => Some(Value::from(value).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_gets_an_integer_as_its_code_and_a_text_as_its_message() {
        for (odd, expected) in [
            (r#""bo\u006fm""#, r#"{"code":-32603,"message":"bo\u006fm"}"#),
            (
                "null",
                r#"{"code":-32603,"message":"the server gave no message"}"#,
            ),
            ("5", r#"{"code":-32603,"message":"5"}"#),
            (r#"["a"]"#, r#"{"code":-32603,"message":"[\"a\"]"}"#),
            (
                "{}",
                r#"{"code":-32603,"message":"the server gave no message"}"#,
            ),
            (
                r#"{"code":-5,"message":null,"data":null}"#,
                r#"{"code":-5,"message":"the server gave no message"}"#,
            ),
            (
                r#"{"code":"E_FAIL","message":"x","data":{"a":1.50},"y":null}"#,
                r#"{"code":-32603,"message":"x","data":{"a":1.50},"y":null}"#,
            ),
            (
                r#"{"code":null,"message":{"a":1}}"#,
                r#"{"code":-32603,"message":"{\"a\":1}"}"#,
            ),
            (
                r#"{"code":-32601.0,"message":"x"}"#,
                r#"{"code":-32601,"message":"x"}"#,
            ),
            (
                r#"{"code":1.5,"message":"x"}"#,
                r#"{"code":-32603,"message":"x"}"#,
            ),
            (
                r#"{"code":99999999999999999999,"message":"x"}"#,
                r#"{"code":-32603,"message":"x"}"#,
            ),
        ] {
            assert_eq!(mended(odd.as_bytes()).as_deref(), Some(expected), "{odd}");
        }
        let alone = mended(br#"{"message":"x"}"#).expect("a change");
        let alone: Value = serde_json::from_str(&alone).expect("JSON");
        assert_eq!(alone, serde_json::json!({ "code": -32603, "message": "x" }));
    }

    #[test]
    fn an_error_of_json_rpc_stays() {
        for right in [
            r#"{ "code" : -32602, "message" : "", "data" : [null] }"#,
            r#"{"message":"\ud800","code":0,"x":null}"#,
            r#"{"code":1,"code":2,"message":null}"#,
        ] {
            assert_eq!(mended(right.as_bytes()), None, "{right}");
        }
    }
}
