//! Converts cursors of servers that are not strings to strings, for strict clients.
//!
//! In every revision, a cursor must be a string. If a server sends a number or an object, clients get a string instead: a prefix
//! and the cursor's JSON. When a client sends this string back, it is converted to the original cursor for the server.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tooldock_protocol::jsonrpc::{self, depth};

/// Prefix of a string that contains a cursor of another type.
const MARK: &str = "tooldock:cursor:";
/// Maximum length of a cursor, in bytes of raw JSON, since each request for a further page repeats it. A longer one is removed.
const LENGTH_MAX: usize = 64 * 1024;
/// Maximum nesting of a cursor. Requests contain the cursor within their parameters, and must not exceed the maximum nesting of
/// messages.
const DEPTH_MAX: usize = jsonrpc::MAX_DEPTH - 2;

/// Result of checking the `nextCursor` of a page.
pub(super) enum CursorVerdict {
    Fits,
    /// The cursor must be replaced by this raw JSON. The second value describes the fault.
    Changed(String, &'static str),
    /// The cursor must be removed, so that the list ends with this page. The value describes the fault.
    Unfit(&'static str),
}

/// Checks the `nextCursor` (raw JSON) of a page. `asked_by` is the cursor with which the page was requested.
pub(super) fn judge(next: &str, asked_by: Option<&str>) -> CursorVerdict {
    if next.len() > LENGTH_MAX {
        return CursorVerdict::Unfit("its nextCursor is longer than 64 KiB");
    }
    match next.as_bytes().first() {
        _ if next == "null" => CursorVerdict::Unfit("its nextCursor is null"),
        _ if next == "false" => CursorVerdict::Unfit("its nextCursor is false"),
        // If the page's `nextCursor` is its own cursor, a client would request the same page for ever.
        _ if asked_by.is_some_and(|asked| same(asked, next)) => {
            CursorVerdict::Unfit("its nextCursor is the cursor of the page itself")
        }
        Some(b'"') => CursorVerdict::Fits,
        _ if is_deep(next) => CursorVerdict::Unfit("its nextCursor is nested too deep"),
        _ => {
            let marked = serde_json::Value::from(format!("{MARK}{next}"));
            CursorVerdict::Changed(marked.to_string(), "its nextCursor is no string")
        }
    }
}

fn same(one: &str, other: &str) -> bool {
    let text = |raw: &str| serde_json::from_str::<String>(raw).ok();
    one == other || text(one).is_some_and(|one| text(other) == Some(one))
}

fn is_deep(cursor: &str) -> bool {
    depth::exceeds(cursor.as_bytes(), DEPTH_MAX)
}

/// Converts a cursor from a client back to the server's original cursor, as raw JSON. Returns `None` for a string without the
/// prefix. A client may have invented the string, so one whose JSON is nested too deep also stays a string.
pub fn of_server(cursor: &RawValue) -> Option<Box<RawValue>> {
    let text: Cow<'_, str> = jsonrpc::string(cursor)?;
    let own = text.strip_prefix(MARK).filter(|own| !is_deep(own))?;
    let own = RawValue::from_string(own.to_owned()).ok()?;
    // The prefix is never added to strings. If a string follows it, the server itself wrote this cursor.
    (!own.get().starts_with('"')).then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_another_type_comes_back_as_it_was() {
        for cursor in ["5", "1.50", r#"{"page":2}"#, "[1]", "true"] {
            let CursorVerdict::Changed(marked, _) = judge(cursor, None) else {
                panic!("{cursor}");
            };
            let marked = RawValue::from_string(marked).expect("JSON");
            assert!(marked.get().starts_with('"'));
            let own = of_server(&marked).expect("marked");
            assert_eq!(own.get(), cursor);
        }
        for plain in [r#""a""#, r#""""#, r#""tooldock:cursor:\"x\"""#, "7"] {
            let plain = RawValue::from_string(plain.to_owned()).expect("JSON");
            assert!(of_server(&plain).is_none(), "{plain}");
        }
    }

    #[test]
    fn a_cursor_is_nested_no_deeper_than_its_request_may_be() {
        for (levels, fits) in [(DEPTH_MAX, true), (DEPTH_MAX + 1, false), (30_000, false)] {
            for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
                let nested = format!("{}0{}", open.repeat(levels), close.repeat(levels));
                let marked = serde_json::Value::from(format!("{MARK}{nested}")).to_string();
                let marked = RawValue::from_string(marked).expect("JSON");
                let own = of_server(&marked);
                assert_eq!(own.is_some(), fits, "{levels}");
                let judged = judge(&nested, None);
                assert_eq!(
                    matches!(judged, CursorVerdict::Changed(..)),
                    fits,
                    "{levels}"
                );
                if let Some(own) = own {
                    let request = format!(
                        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"cursor":{}}}}}"#,
                        own.get()
                    );
                    assert!(jsonrpc::message(&request).is_ok(), "{levels}");
                }
            }
        }
    }

    #[test]
    fn an_empty_string_is_a_cursor_and_null_is_none() {
        assert!(matches!(judge(r#""""#, None), CursorVerdict::Fits));
        assert!(matches!(
            judge(r#""b""#, Some(r#""""#)),
            CursorVerdict::Fits
        ));
        for (next, asked_by) in [
            ("null", None),
            ("false", None),
            (r#""""#, Some(r#""""#)),
            (r#""\u0061""#, Some(r#""a""#)),
            ("5", Some("5")),
        ] {
            assert!(
                matches!(judge(next, asked_by), CursorVerdict::Unfit(_)),
                "{next}"
            );
        }
        let long = format!("\"{}\"", "x".repeat(LENGTH_MAX));
        assert!(matches!(judge(&long, None), CursorVerdict::Unfit(_)));
    }
}
