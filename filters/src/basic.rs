//! HTTP Basic authentication for browsers. A browser prompts its user for a user name and a password, and then adds both to
//! every request automatically. The password is a token of the gateway.
//!
//! Only a navigation gets the challenge that makes a browser prompt its user. Requests of a page's script get the challenge for
//! bearer tokens, so that the page can handle an expired login itself and the browser shows no prompt over it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, Method};
use tooldock_base::route::RouteId;

use crate::rejection::{Reason, Rejection};
use crate::request::AdmissionRequest;
use crate::route::RouteSpec;

const CHALLENGE: HeaderValue =
    HeaderValue::from_static(r#"Basic realm="ToolDock", charset="UTF-8""#);

/// Maximum length of encoded Basic credentials, in bytes. Longer ones are refused; the longest access token is shorter.
const ENCODED_MAX: usize = 24 * 1024;

/// User name and token from Basic credentials. Without `Debug`, so that no log contains the token.
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) token: Vec<u8>,
}

/// Parses an Authorization header of the form `Basic <base64>`, whose scheme may be in any case. Returns `None` for another
/// scheme, and `Some(None)` for Basic credentials that cannot be decoded.
pub(crate) fn credentials(value: &[u8]) -> Option<Option<Credentials>> {
    let (scheme, rest) = value.trim_ascii().split_at_checked(5)?;
    let encoded = rest.trim_ascii_start();
    if !scheme.eq_ignore_ascii_case(b"basic") || encoded.len() == rest.len() {
        return None;
    }
    Some(read(encoded))
}

fn read(encoded: &[u8]) -> Option<Credentials> {
    if encoded.len() > ENCODED_MAX {
        return None;
    }
    let text = STANDARD.decode(encoded).ok()?;
    let colon = text.iter().position(|byte| *byte == b':')?;
    let (user, token) = text.split_at(colon);
    Some(Credentials {
        user: std::str::from_utf8(user).ok()?.to_owned(),
        token: token[1..].to_vec(),
    })
}

/// Returns true if the request is a browser's navigation according to `Sec-Fetch-Mode`. Without that header, a request for the
/// web page counts as a navigation.
pub(crate) fn is_navigation(request: &AdmissionRequest<'_>, route: Option<&RouteSpec>) -> bool {
    if !matches!(request.parts.method, Method::GET | Method::HEAD) {
        return false;
    }
    match request.parts.headers.get("sec-fetch-mode") {
        Some(mode) => mode == "navigate",
        None => route.is_some_and(|route| route.id == RouteId::WebPage),
    }
}

/// Returns true if `Sec-Fetch-Mode` is `navigate`: the browser will show the response to its user as a page.
pub(crate) fn browser_navigates(request: &AdmissionRequest<'_>) -> bool {
    let mode = request.parts.headers.get("sec-fetch-mode");
    mode.is_some_and(|mode| mode == "navigate")
}

/// Replaces the challenge of a 401 response by the one that makes a browser prompt its user. Other refusals stay unchanged.
pub(crate) fn ask(rejection: &mut Rejection) {
    if rejection.reason != Reason::Unauthorized {
        return;
    }
    let headers = rejection.headers.iter_mut();
    for (_, value) in headers.filter(|(name, _)| *name == WWW_AUTHENTICATE) {
        *value = CHALLENGE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(value: &str) -> Option<Option<(String, String)>> {
        let read = credentials(value.as_bytes())?;
        let text = |token: Vec<u8>| String::from_utf8(token).expect("text");
        Some(read.map(|it| (it.user, text(it.token))))
    }

    #[test]
    fn the_scheme_name_and_token_are_read_as_browsers_write_them() {
        let expected = Some(Some(("admin".to_owned(), "change_me".to_owned())));
        for value in [
            "Basic YWRtaW46Y2hhbmdlX21l",
            "basic  YWRtaW46Y2hhbmdlX21l ",
            "BASIC YWRtaW46Y2hhbmdlX21l",
        ] {
            assert_eq!(said(value), expected, "{value}");
        }
        // A token may have colons.
        let several = Some(Some(("a".to_owned(), "b:c".to_owned())));
        assert_eq!(said("Basic YTpiOmM="), several);
    }

    #[test]
    fn other_schemes_are_not_looked_at_and_broken_credentials_are_nobodys() {
        for value in ["Bearer x", "Basic", "BasicYTpi", "", "Basi YTpi"] {
            assert_eq!(said(value), None, "{value}");
        }
        let long = format!("Basic {}", "YTpi".repeat(ENCODED_MAX));
        for value in ["Basic YWRtaW4=", "Basic !", "Basic YTpi%", long.as_str()] {
            assert_eq!(said(value), Some(None), "{value:.20}");
        }
    }
}
