//! Limits on a request's head: its size, the number of its fields, and its request target.
//!
//! The HTTP parser has already refused faults that are visible only in the bytes on the wire, such as bare line feeds, folded
//! lines and contradicting lengths.

use http::header::TRANSFER_ENCODING;
use http::request::Parts;

use crate::config::LimitsConfig;
use crate::fields::Fields;
use crate::path;
use crate::rejection::{Reason, Rejection};

/// Maximum length of the request target, in bytes. Valid paths and queries of this server are much shorter.
pub const TARGET_BYTES_MAX: usize = 8 * 1024;

/// The size that a request head has in HTTP/1 format, in bytes. Requests that arrived by HTTP/2 are measured like this, too.
pub fn header_bytes(parts: &Parts) -> usize {
    // The size consists of "METHOD target HTTP/1.1\r\n", "name: value\r\n" per field, and "\r\n".
    let line = parts.method.as_str().len() + target_bytes(parts) + 12;
    let fields = parts
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4);
    line + fields.sum::<usize>() + 2
}

fn target_bytes(parts: &Parts) -> usize {
    parts
        .uri
        .path_and_query()
        .map_or(0, |target| target.as_str().len())
}

/// Refuses a request head that is too large, or whose path is ambiguous.
pub(crate) fn check(
    parts: &Parts,
    fields: &Fields<'_>,
    header_bytes: usize,
    limits: &LimitsConfig,
) -> Result<(), Rejection> {
    if header_bytes as u64 > limits.header_bytes.as_u64() {
        return Err(Rejection::new(
            Reason::HeadersTooLarge,
            format!(
                "The request head is larger than the {} bytes this server accepts.",
                limits.header_bytes.as_u64()
            ),
        ));
    }
    if parts.headers.len() > limits.header_fields {
        return Err(Rejection::new(
            Reason::HeadersTooLarge,
            format!(
                "The request has more than the {} header fields this server accepts.",
                limits.header_fields
            ),
        ));
    }
    if target_bytes(parts) > TARGET_BYTES_MAX {
        return Err(Rejection::new(
            Reason::UriTooLong,
            format!(
                "The path and query are longer than the {TARGET_BYTES_MAX} bytes this server accepts."
            ),
        ));
    }
    if fields.any(fields.transfer_encoding, TRANSFER_ENCODING, |coding| {
        !coding
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"chunked")
    }) {
        // Any other coding than `chunked` alone is refused: a compressed body that is only dechunked would be misread
        // (RFC 9112 §6.1).
        return Err(Rejection::new(
            Reason::BadRequest,
            "Unsupported Transfer-Encoding: send the body with Content-Length or as chunked alone.",
        ));
    }
    path::well_formed(parts.uri.path())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(uri: &str, fields: usize) -> Parts {
        let mut request = http::Request::get(uri);
        for field in 0..fields {
            request = request.header("x-field", field);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn checked(parts: &Parts, header_bytes: usize) -> Result<(), Rejection> {
        let fields = Fields::of(&parts.headers);
        check(parts, &fields, header_bytes, &LimitsConfig::default())
    }

    fn reason(parts: &Parts, header_bytes: usize) -> Option<Reason> {
        checked(parts, header_bytes)
            .err()
            .map(|rejection| rejection.reason)
    }

    #[test]
    fn a_head_at_the_limits_passes() {
        assert_eq!(reason(&parts("/mcp", 100), 32 * 1024), None);
        let target = format!("/{}", "a".repeat(TARGET_BYTES_MAX - 1));
        assert_eq!(reason(&parts(&target, 0), 9000), None);
    }

    #[test]
    fn one_byte_or_field_more_is_refused_and_closes() {
        assert_eq!(
            reason(&parts("/mcp", 0), 32 * 1024 + 1),
            Some(Reason::HeadersTooLarge)
        );
        assert_eq!(
            reason(&parts("/mcp", 101), 1000),
            Some(Reason::HeadersTooLarge)
        );
        let target = format!("/{}", "a".repeat(TARGET_BYTES_MAX));
        assert_eq!(reason(&parts(&target, 0), 9000), Some(Reason::UriTooLong));
        let rejection = checked(&parts("/mcp", 101), 1000).unwrap_err();
        assert!(rejection.close);
    }

    #[test]
    fn a_path_with_dot_segments_is_refused() {
        assert_eq!(
            reason(&parts("/tools/%2e%2e/x", 0), 100),
            Some(Reason::BadRequest)
        );
    }

    #[test]
    fn the_size_is_counted_as_http_1_spells_it() {
        let request = "GET /a?b HTTP/1.1\r\nx-field: 0\r\n\r\n";
        assert_eq!(header_bytes(&parts("/a?b", 1)), request.len());
    }

    #[test]
    fn a_body_coded_otherwise_than_chunked_is_refused() {
        let with = |coding: &'static str| {
            let mut parts = parts("/mcp", 0);
            parts
                .headers
                .insert(TRANSFER_ENCODING, http::HeaderValue::from_static(coding));
            checked(&parts, 100).map_err(|rejection| rejection.reason)
        };
        assert_eq!(with("chunked"), Ok(()));
        assert_eq!(with("Chunked"), Ok(()));
        assert_eq!(with("gzip, chunked"), Err(Reason::BadRequest));
        assert_eq!(with("identity"), Err(Reason::BadRequest));
    }
}
