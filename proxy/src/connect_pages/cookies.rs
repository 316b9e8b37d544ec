//! Cookies of browsers that have begun a sign-in for a link, or have signed in.

use http::HeaderMap;
use tooldock_filters::token::TokenDigest;

use super::{LIFETIME, LinkId};
use crate::web_session;

/// Beginning of the cookies' names. The id of a link follows, so that a browser can make several connections at once.
const COOKIE_NAME: &str = "tooldock-connect-";
/// Prefix of cookie names for which browsers accept a cookie only from the host itself, over https (RFC 6265bis).
const HOST_PREFIX: &str = "__Host-";

/// Returns the value of the header `Set-Cookie` that stores the cookie of a link in a browser. Over https, the cookie's name has
/// [`HOST_PREFIX`], which requires the path `/`. Over http, the cookie is for `path`, the public path of the pages.
pub(super) fn set_cookie(id: LinkId, value: &str, path: &str, is_secure: bool) -> String {
    let (name, seconds) = (hex::encode(id), LIFETIME.as_secs());
    let (prefix, path, secure) = match is_secure {
        true => (HOST_PREFIX, "/", "; Secure"),
        false => ("", path, ""),
    };
    format!(
        "{prefix}{COOKIE_NAME}{name}={value}; Path={path}; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}"
    )
}

/// Returns the cookies of links in a request: the id of each link, and the digest of the cookie's value. If `is_secure`, only
/// cookies with [`HOST_PREFIX`] are returned, which no other host can have set.
pub(super) fn cookies(
    headers: &HeaderMap,
    is_secure: bool,
) -> impl Iterator<Item = (LinkId, TokenDigest)> {
    web_session::cookie_pairs(headers).filter_map(move |pair| {
        let pair = match is_secure {
            true => pair.strip_prefix(HOST_PREFIX)?,
            false => pair,
        };
        let (name, value) = pair.strip_prefix(COOKIE_NAME)?.split_once('=')?;
        let mut id = LinkId::default();
        hex::decode_to_slice(name, &mut id).ok()?;
        Some((id, TokenDigest::of(value.as_bytes())))
    })
}
