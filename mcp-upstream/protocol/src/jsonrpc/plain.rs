//! Corrects messages of servers that violate JSON-RPC but have a clear meaning.
//!
//! Some libraries write optional members without a value as `null`, and some write the number of a request as a string. Official
//! clients accept both. Such a message is corrected and then parsed again; a valid message is not changed.

use serde_json::Value;
use serde_json::value::RawValue;

use super::spans::{self, MemberEdit};

/// Parses the raw id of a response as the number of a request that the gateway sent: `5`, `5.0` or `"5"`. All these spellings are
/// accepted, since the gateway's ids are always numbers.
#[inline]
pub fn call_number(id: &str) -> Option<u64> {
    // Unlike JSON, the parser accepts a plus sign.
    let number = id.parse().ok().filter(|_| !id.starts_with('+'));
    number.or_else(|| spelled_otherwise(id))
}

/// Returns true if two raw ids are equal, or are different spellings of the same number, such as `5` and `"5"`.
pub fn is_same_id(one: &str, other: &str) -> bool {
    is_same_value(one, other)
        || call_number(one).is_some_and(|call| call_number(other) == Some(call))
}

/// Returns true if two raw ids are the same JSON value, perhaps in different spellings.
pub fn is_same_value(one: &str, other: &str) -> bool {
    let read = |raw| serde_json::from_str::<Value>(raw).ok();
    one == other
        || match (read(one), read(other)) {
            (Some(one), Some(other)) if one.is_f64() || other.is_f64() => {
                one.is_number() && one.as_f64() == other.as_f64()
            }
            (Some(one), Some(other)) => one == other,
            _ => false,
        }
}

#[cold]
fn spelled_otherwise(id: &str) -> Option<u64> {
    let inner = id.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    let digits = inner.unwrap_or(id);
    let digits = match digits.split_once('.') {
        Some((whole, rest)) if !rest.is_empty() && rest.bytes().all(|it| it == b'0') => whole,
        Some(_) => return None,
        None => digits,
    };
    // Only digits are accepted, since ids of the gateway have no sign.
    let plain = digits.bytes().all(|it| it.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

/// Corrects a message of a server: removes optional members that are `null`, and writes the id as the request did. `asked` is the
/// raw id of the request that waits for the response; without it, an id such as `"5"` becomes a number. Returns `None` if the
/// message needs no change or is not an object.
pub fn plain(text: &str, asked: Option<&str>) -> Option<String> {
    // `spans::members` must only be called with valid JSON.
    serde_json::from_str::<&RawValue>(text).ok()?;
    let members = spans::members(text)?;
    let member = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    };
    let is_null = |name: &str| member(name) == Some("null");
    let is_there = |name: &str| member(name).is_some_and(|value| value != "null");
    let mut changes = Vec::new();
    let mut remove = |name: &'static str| changes.push(MemberEdit::Remove(name));
    let mut id = None;
    if member("method").is_some_and(|it| it.starts_with('"')) {
        for name in ["id", "params", "result", "error"] {
            if is_null(name) {
                remove(name);
            }
        }
    } else {
        for name in ["method", "params"] {
            if is_null(name) {
                remove(name);
            }
        }
        match (is_null("result"), is_null("error")) {
            (_, true) if member("result").is_some() => remove("error"),
            (true, _) if is_there("error") => remove("result"),
            (false, _)
                if member("result").is_some() && member("error").is_some_and(is_no_error) =>
            {
                remove("error");
            }
            _ => {}
        }
        id = member("id").and_then(|id| own_id(id, asked));
    }
    changes.extend(id.map(|id| MemberEdit::Set("id", id.into())));
    (!changes.is_empty()).then(|| spans::edit(text, &changes))
}

/// Returns true if an `error` means that there was no error: an empty value, or code 0 without a message.
fn is_no_error(error: &str) -> bool {
    match serde_json::from_str(error) {
        Ok(Value::Null | Value::Bool(false)) => true,
        Ok(Value::String(text)) => text.is_empty(),
        Ok(Value::Array(items)) => items.is_empty(),
        Ok(Value::Number(number)) => number.as_f64() == Some(0.0),
        Ok(Value::Object(members)) => members.iter().all(|(key, value)| match &**key {
            "code" => value.is_null() || value.as_f64() == Some(0.0),
            "message" => value.is_null() || value == "",
            "data" => value.is_null(),
            _ => false,
        }),
        Ok(Value::Bool(true)) | Err(_) => false,
    }
}

/// The id as the request spelled it; `None` if the response spells it the same way or belongs to another request.
fn own_id(id: &str, asked: Option<&str>) -> Option<String> {
    let own = match asked {
        None => call_number(id)?.to_string(),
        Some(asked) => {
            let is_same = call_number(id).is_some_and(|it| call_number(asked) == Some(it));
            is_same.then(|| asked.to_owned())?
        }
    };
    (own != id).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_same_in_any_spelling_of_their_number_or_text() {
        for (one, other) in [
            ("5", "5"),
            ("5", r#""5""#),
            (r#""5""#, "5.0"),
            ("5e0", "5"),
            ("1.5", "1.50"),
            (r#""a\u0062""#, r#""ab""#),
        ] {
            assert!(
                is_same_id(one, other) && is_same_id(other, one),
                "{one} {other}"
            );
        }
        for (one, other) in [
            ("5", "6"),
            ("5", r#""6""#),
            ("5", "null"),
            ("1e0", "true"),
            (r#""a""#, r#""A""#),
            ("5", ""),
            ("5.5", r#""5""#),
        ] {
            assert!(
                !is_same_id(one, other) && !is_same_id(other, one),
                "{one} {other}"
            );
        }
    }

    #[test]
    fn a_number_is_known_in_any_spelling() {
        for id in ["5", "5.0", "5.00", r#""5""#, r#""5.0""#] {
            assert_eq!(call_number(id), Some(5), "{id}");
        }
        for id in [
            "",
            "\"",
            r#""""#,
            r#""a""#,
            "5.1",
            "5.",
            ".0",
            "-5",
            r#""+5""#,
            "null",
            r#"" 5""#,
            "99999999999999999999999",
        ] {
            assert_eq!(call_number(id), None, "{id}");
        }
    }

    #[test]
    fn members_that_say_nothing_are_left_out() {
        for (odd, expected) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"a":null},"error":null}"#,
                r#"{"jsonrpc":"2.0","id":1,"result":{"a":null}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":"1","method":null,"params":null,"result":null,"error":{"code":-1}}"#,
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1}}"#,
            ),
            (
                r#"{"id":1,"result":null,"error":null}"#,
                r#"{"id":1,"result":null}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":null,"method":"notifications/message","params":null,"result":null,"error":null}"#,
                r#"{"jsonrpc":"2.0","method":"notifications/message"}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":"q","method":"roots/list","error":null}"#,
                r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#,
            ),
        ] {
            assert_eq!(plain(odd, None).as_deref(), Some(expected), "{odd}");
        }
        for right in [
            r#"{"jsonrpc":"2.0","id":1,"result":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"data":null}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1}}"#,
            r#"{"jsonrpc":"2.0","id":"1","method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":"a","result":{}}"#,
            r#"{"id":1,"id":"2","result":{}}"#,
            r#"{"id":1,"error":null"#,
            "[]",
            "null",
        ] {
            assert_eq!(plain(right, None), None, "{right}");
        }
    }

    #[test]
    fn an_error_without_a_meaning_beside_a_result_is_left_out() {
        let answer = |error: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{}}{error}}}"#);
        for error in [
            "{}",
            "[]",
            r#""""#,
            "false",
            "0",
            r#"{"code":0,"message":""}"#,
            r#"{"code":null,"message":"","data":null}"#,
        ] {
            let odd = answer(&format!(r#","error":{error}"#));
            assert_eq!(plain(&odd, None), Some(answer("")), "{error}");
        }
        for error in [r#"{"code":-1,"message":""}"#, "true", r#""no""#, "[1]"] {
            let two = answer(&format!(r#","error":{error}"#));
            assert_eq!(plain(&two, None), None, "{error}");
        }
        let alone = r#"{"jsonrpc":"2.0","id":1,"error":{}}"#;
        assert_eq!(plain(alone, None), None);
    }

    #[test]
    fn an_answer_gets_the_id_of_its_request() {
        let answer = |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        for (id, asked, own) in [
            (r#""7""#, "7", "7"),
            ("7", r#""7""#, r#""7""#),
            ("7.0", "7", "7"),
        ] {
            let plain = plain(&answer(id), Some(asked));
            assert_eq!(plain, Some(answer(own)), "{id} {asked}");
        }
        for (id, asked) in [("7", "7"), ("8", "7"), (r#""a""#, r#""b""#), ("null", "7")] {
            assert_eq!(plain(&answer(id), Some(asked)), None, "{id} {asked}");
        }
    }
}
