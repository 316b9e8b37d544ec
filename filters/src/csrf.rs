//! Protection against cross-site request forgery, on listeners where a browser adds its user's credentials automatically: a
//! request that changes something must prove that the listener's own page sent it.
//!
//! The proof is a header that other pages cannot send: a form cannot contain it, and before a script's request with such a
//! header the browser sends a preflight, which other origins do not pass. `Sec-Fetch-Site`, which browsers set themselves, must
//! agree; the `Origin` has been checked before. A bearer token is also sufficient proof, since a page must know the token to
//! send it. A request with neither `Origin` nor `Sec-Fetch-Site` does not come from a browser, so no credentials are added to it
//! automatically.

use http::Method;

use crate::fields::{Field, Fields};
use crate::rejection::{Reason, Rejection};

/// Name of the header that proves that the listener's own page sent a request. The name is in lower case.
const PROOF: &str = "x-tooldock-request";

/// Name of the header in which browsers state whether the sending page has the same origin or site as the server.
const SITE: &str = "sec-fetch-site";

/// Refuses a request that changes something, if a page of another site may have sent it.
pub(crate) fn check(method: &Method, fields: &Fields<'_>) -> Result<(), Rejection> {
    let is_browsers = !fields.origin.is_absent() || fields.map.contains_key(SITE);
    let is_safe = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    if is_safe || !is_browsers || has_bearer(fields) {
        return Ok(());
    }
    check_proof(fields)
}

/// Refuses a browser's request that does not contain the proof header of the listener's own page.
fn check_proof(fields: &Fields<'_>) -> Result<(), Rejection> {
    if fields.map.get(PROOF).is_none_or(|value| value != "1") {
        return Err(Rejection::new(
            Reason::Csrf,
            "Requests that change something need the header `X-ToolDock-Request: 1` here, or `Authorization: Bearer <token>`.",
        ));
    }
    if !is_of_own_origin(fields) {
        return Err(Rejection::new(
            Reason::Csrf,
            "Another page sent this by its user's browser; only the page of this server may.",
        )
        .because("Sec-Fetch-Site is not same-origin"));
    }
    Ok(())
}

/// Returns true if the browser states that a page of this origin sent the request, or states nothing; false for other pages.
fn is_of_own_origin(fields: &Fields<'_>) -> bool {
    let mut sites = fields.map.get_all(SITE).iter();
    sites.all(|site| site == "same-origin")
}

/// Refuses a request that continues a login at an issuer, unless the listener's own page has sent it. GET and OPTIONS are always
/// accepted. A bearer token is no proof here: login requests need no credentials, so the token is not checked.
pub(crate) fn check_login(
    method: &Method,
    own_page: bool,
    fields: &Fields<'_>,
) -> Result<(), Rejection> {
    if matches!(*method, Method::GET | Method::OPTIONS) {
        return Ok(());
    }
    if !own_page {
        return Err(Rejection::new(
            Reason::Csrf,
            "Only the login page of this listener may send this. Open /login in a browser.",
        )
        .because("the Origin is not the listener's own"));
    }
    check_proof(fields)
}

/// Refuses a form, unless a page of this server has sent it. Browsers send the origin of the page with each form, and a page
/// cannot change this header. `own_page`: true if the header `Origin` is that of this server, false if it is another one or
/// missing.
pub(crate) fn check_form(
    method: &Method,
    own_page: bool,
    fields: &Fields<'_>,
) -> Result<(), Rejection> {
    if matches!(*method, Method::GET | Method::OPTIONS) {
        return Ok(());
    }
    if !own_page || !is_of_own_origin(fields) {
        return Err(Rejection::new(
            Reason::Csrf,
            "Only the page of this link may send this. Open the link in a browser.",
        )
        .because("the Origin is not the page's own"));
    }
    Ok(())
}

fn has_bearer(fields: &Fields<'_>) -> bool {
    let Field::Once(value) = fields.authorization else {
        return false;
    };
    let scheme = value.as_bytes().trim_ascii_start().get(..7);
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    fn refused(method: Method, headers: &[(&'static str, &'static str)]) -> bool {
        let map: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                let name = HeaderName::from_static(name);
                (name, HeaderValue::from_static(value))
            })
            .collect();
        check(&method, &Fields::of(&map)).is_err()
    }

    #[test]
    fn what_changes_something_needs_the_proof_of_the_own_page() {
        const BASIC: (&str, &str) = ("authorization", "Basic YTpi");
        const OWN: (&str, &str) = ("sec-fetch-site", "same-origin");
        const PROVEN: (&str, &str) = (PROOF, "1");
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            // A script, which sends neither `Origin` nor `Sec-Fetch-Site`.
            assert!(!refused(method.clone(), &[BASIC]));
            assert!(!refused(method.clone(), &[BASIC, (PROOF, "0")]));
            for origin in ["http://127.0.0.1:8001", "https://evil.example", "null", ""] {
                let origin = ("origin", origin);
                assert!(refused(method.clone(), &[BASIC, origin]));
                assert!(refused(method.clone(), &[BASIC, origin, OWN, (PROOF, "0")]));
                assert!(!refused(method.clone(), &[BASIC, origin, PROVEN]));
            }
            assert!(refused(method.clone(), &[BASIC, OWN]));
            assert!(refused(method.clone(), &[BASIC, OWN, (PROOF, "0")]));
            assert!(refused(method.clone(), &[BASIC, ("sec-fetch-site", "")]));
            for site in ["cross-site", "same-site", "none"] {
                assert!(refused(
                    method.clone(),
                    &[BASIC, PROVEN, ("sec-fetch-site", site)]
                ));
            }
            assert!(!refused(method.clone(), &[BASIC, PROVEN]));
            assert!(!refused(method.clone(), &[BASIC, PROVEN, OWN]));
            assert!(!refused(method, &[("authorization", "bearer t")]));
        }
        assert!(!refused(Method::GET, &[BASIC]));
    }
}
