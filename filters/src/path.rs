//! Parsing of request paths: they are split into segments and percent-decoded exactly once. A path that different programs could
//! interpret differently is refused.
//!
//! A decoded segment can safely be used by later code: it contains no slash, no backslash, no NUL, no control character and no
//! dot segment (SEC-11). Exception: the name of a tool may contain slashes, since some servers have such tools. No part of such
//! a name is empty or a dot segment.

use std::borrow::Cow;

use tooldock_base::route::can_stand_in_path;

use crate::rejection::{Reason, Rejection};

/// The reason why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathFault {
    /// The path contains a byte that must be percent-encoded, or that is not allowed at all.
    RawByte,
    /// The path contains a `%` without two hexadecimal digits after it.
    BadEscape,
    /// The decoded path is not valid UTF-8.
    NotUtf8,
    /// The path contains `%2F`, `%5C`, `%00` or another encoded control character.
    HiddenByte,
    /// The path contains the segment `.` or `..`, plain or encoded.
    DotSegment,
}

impl From<PathFault> for Rejection {
    fn from(fault: PathFault) -> Self {
        let message = match fault {
            PathFault::RawByte => {
                "The path holds a control character, a space, a backslash or a byte outside ASCII; percent-encode it."
            }
            PathFault::BadEscape => {
                "The path holds a '%' that is not followed by two hexadecimal digits."
            }
            PathFault::NotUtf8 => "The percent-decoded path is not UTF-8.",
            PathFault::HiddenByte => {
                "The path holds an encoded slash, backslash or control character."
            }
            PathFault::DotSegment => "The path holds a '.' or '..' segment; send it resolved.",
        };
        Rejection::new(Reason::BadRequest, message)
    }
}

/// Checks a complete path. If it is accepted, [`decoded`] cannot fail for any of its segments, nor [`decoded_tool`] for a tool's
/// name in it.
pub(crate) fn well_formed(path: &str) -> Result<(), PathFault> {
    // Fast path: the segments of a path without `%` and `.`, as most are, need no further check.
    let mut plain = true;
    for byte in path.bytes() {
        if !byte.is_ascii_graphic() || byte == b'\\' {
            return Err(PathFault::RawByte);
        }
        plain &= !matches!(byte, b'%' | b'.');
    }
    if !plain {
        let tool = place_of_tool(path);
        for (place, segment) in path.split('/').enumerate() {
            match Some(place) == tool {
                true => decoded_tool(segment)?,
                false => decoded(segment)?,
            };
        }
    }
    Ok(())
}

/// Percent-decodes a segment of a path. The result is borrowed if nothing was encoded.
pub(crate) fn decoded(segment: &str) -> Result<Cow<'_, str>, PathFault> {
    let text = percent_decoded(segment)?;
    if matches!(&*text, "." | "..") {
        return Err(PathFault::DotSegment);
    }
    let hidden = |c: char| c.is_control() || matches!(c, '/' | '\\');
    // A borrowed text was not encoded, and its raw bytes were checked before. So only an owned text can contain hidden bytes.
    if matches!(text, Cow::Owned(_)) && text.contains(hidden) {
        return Err(PathFault::HiddenByte);
    }
    Ok(text)
}

/// Index of the segment that may be the name of a tool: in `/tools/NAME` and `/namespaces/NAMESPACE/tools/NAME`.
fn place_of_tool(path: &str) -> Option<usize> {
    let mut segments = path.split('/').skip(1);
    match segments.next()? {
        "tools" => Some(2),
        "namespaces" => (segments.nth(1)? == "tools").then_some(4),
        _ => None,
    }
}

/// Percent-decodes a segment that is the name of a tool. The name may contain encoded slashes.
pub(crate) fn decoded_tool(segment: &str) -> Result<Cow<'_, str>, PathFault> {
    let name = percent_decoded(segment)?;
    match name.contains('/') {
        false => decoded(segment),
        true if can_stand_in_path(&name) => Ok(name),
        true if name.split('/').any(|part| matches!(part, "." | "..")) => {
            Err(PathFault::DotSegment)
        }
        true => Err(PathFault::HiddenByte),
    }
}

/// All values of the query parameter `name`, percent-decoded.
pub(crate) fn query_values<'a>(
    query: Option<&'a str>,
    name: &'static str,
) -> impl Iterator<Item = Result<Cow<'a, str>, PathFault>> {
    query
        .unwrap_or_default()
        .split('&')
        .filter_map(move |pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == name).then(|| percent_decoded(value))
        })
}

fn percent_decoded(text: &str) -> Result<Cow<'_, str>, PathFault> {
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let Some((digits, tail)) = tail.split_first_chunk::<2>() else {
            return Err(PathFault::BadEscape);
        };
        let mut octet = [0];
        hex::decode_to_slice(digits, &mut octet).map_err(|_| PathFault::BadEscape)?;
        bytes.push(octet[0]);
        rest = tail;
    }
    String::from_utf8(bytes)
        .map(Cow::Owned)
        .map_err(|_| PathFault::NotUtf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_paths_pass_and_decode_once() {
        for (segment, text) in [
            ("say_hello", "say_hello"),
            ("gr%C3%B6%c3%9fe", "größe"),
            ("a%20b", "a b"),
            ("%252e%252e", "%2e%2e"),
            ("...", "..."),
            ("", ""),
        ] {
            assert_eq!(decoded(segment).as_deref(), Ok(text));
            assert_eq!(well_formed(&format!("/tools/{segment}")), Ok(()));
        }
    }

    #[test]
    fn paths_that_hide_something_are_refused() {
        for (path, fault) in [
            ("/tools/../x", PathFault::DotSegment),
            ("/tools/%2e%2E/x", PathFault::DotSegment),
            ("/tools/.%2e", PathFault::DotSegment),
            ("/./mcp", PathFault::DotSegment),
            ("/mcp/a%2Fb", PathFault::HiddenByte),
            ("/mcp/a%5cb", PathFault::HiddenByte),
            ("/mcp/a%00", PathFault::HiddenByte),
            ("/mcp/a%0d%0a", PathFault::HiddenByte),
            ("/mcp/a%7f", PathFault::HiddenByte),
            ("/mcp/a%C2%85", PathFault::HiddenByte),
            ("/mcp/%", PathFault::BadEscape),
            ("/mcp/%4", PathFault::BadEscape),
            ("/mcp/%zz", PathFault::BadEscape),
            ("/mcp/%ff", PathFault::NotUtf8),
            ("/mcp/%c0%ae%c0%ae", PathFault::NotUtf8),
            ("/mcp/a b", PathFault::RawByte),
            ("/mcp/a\0b", PathFault::RawByte),
            ("/mcp/..\\x", PathFault::RawByte),
            ("/mcp/ä", PathFault::RawByte),
        ] {
            assert_eq!(well_formed(path), Err(fault), "{path}");
        }
    }

    #[test]
    fn the_name_of_a_tool_may_have_slashes_that_lead_nowhere() {
        for (segment, name) in [
            ("user-profile%2Fupdate", "user-profile/update"),
            ("a%2fb%2Fc%20d", "a/b/c d"),
            ("plain", "plain"),
            ("%252F", "%2F"),
        ] {
            assert_eq!(decoded_tool(segment).as_deref(), Ok(name));
            for path in ["/tools/", "/namespaces/n/tools/"] {
                assert_eq!(well_formed(&format!("{path}{segment}")), Ok(()));
                assert_eq!(well_formed(&format!("{path}{segment}/schema")), Ok(()));
            }
        }
        for (segment, fault) in [
            ("%2e%2e%2f%2e%2e", PathFault::DotSegment),
            ("a%2F..", PathFault::DotSegment),
            ("..%2fetc", PathFault::DotSegment),
            ("%2Fetc%2Fpasswd", PathFault::HiddenByte),
            ("a%2F%2Fb", PathFault::HiddenByte),
            ("a%2F", PathFault::HiddenByte),
            ("a%2Fb%00", PathFault::HiddenByte),
            ("a%2Fb%5Cc", PathFault::HiddenByte),
            ("a%5Cc", PathFault::HiddenByte),
            ("%2e%2e", PathFault::DotSegment),
        ] {
            assert_eq!(
                well_formed(&format!("/tools/{segment}")),
                Err(fault),
                "{segment}"
            );
        }
        // Only the name of a tool may contain an encoded slash.
        for path in [
            "/namespaces/a%2Fb/tools/x",
            "/tools/x/a%2Fb",
            "/api/tools/a%2Fb",
            "/mcp/tools/a%2Fb",
        ] {
            assert_eq!(well_formed(path), Err(PathFault::HiddenByte), "{path}");
        }
    }

    #[test]
    fn query_values_are_found_by_name_and_decoded() {
        let values = |query| {
            query_values(query, "namespace")
                .collect::<Result<Vec<_>, _>>()
                .map(|values| values.join("|"))
        };
        assert_eq!(values(None).as_deref(), Ok(""));
        assert_eq!(
            values(Some("x=1&namespace=a%2Db&namespacer=c")).as_deref(),
            Ok("a-b")
        );
        assert_eq!(
            values(Some("namespace=a&namespace=b")).as_deref(),
            Ok("a|b")
        );
        assert_eq!(values(Some("namespace=%")), Err(PathFault::BadEscape));
    }
}
