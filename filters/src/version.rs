//! The protocol version that a request's header names.

use http::HeaderName;

use crate::fields::Fields;

pub(crate) const MCP_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// The first protocol version without a handshake. Versions are dates and compare as texts.
pub(crate) const FIRST_MODERN_VERSION: &str = "2026-07-28";

/// Returns true for a version without a handshake, including future ones.
fn is_modern(version: &str) -> bool {
    version.len() == FIRST_MODERN_VERSION.len()
        && version >= FIRST_MODERN_VERSION
        && version.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

/// Returns true if the version header names a version without a handshake.
pub(crate) fn modern_version_named(fields: &Fields<'_>) -> bool {
    fields.any(fields.protocol_version, MCP_PROTOCOL_VERSION, |value| {
        value.to_str().is_ok_and(is_modern)
    })
}
