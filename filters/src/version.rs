//! The protocol version in the `MCP-Protocol-Version` header of a request.

use http::HeaderName;

use crate::fields::Fields;

pub(crate) const MCP_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// The first protocol version without `initialize`. Versions are dates, so they can be compared as texts.
pub(crate) const FIRST_MODERN_VERSION: &str = "2026-07-28";

/// Returns true for 2026-07-28 and all later protocol versions, which have no `initialize`.
fn is_modern(version: &str) -> bool {
    version.len() == FIRST_MODERN_VERSION.len()
        && version >= FIRST_MODERN_VERSION
        && version.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

/// Returns true if the `MCP-Protocol-Version` header contains 2026-07-28 or a later version.
pub(crate) fn modern_version_named(fields: &Fields<'_>) -> bool {
    fields.any(fields.protocol_version, MCP_PROTOCOL_VERSION, |value| {
        value.to_str().is_ok_and(is_modern)
    })
}
