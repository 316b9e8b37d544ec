//! The controls of `/reload` beyond the bearer token: where the request comes from, and the manager's own token.
//!
//! Both answer alike, so that nobody learns from outside which one failed; the log is told.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

use crate::network::{Cidr, any_contains};
use crate::rejection::{Reason, Rejection};
use crate::token::{SecretToken, TokenDigest};

const X_MANAGER_TOKEN: HeaderName = HeaderName::from_static("x-manager-token");

/// Who may have the namespaces reloaded.
#[derive(Debug)]
pub(crate) struct ManagerControls {
    internal: Vec<Cidr>,
    token: Option<SecretToken>,
}

impl ManagerControls {
    /// Without a token nobody passes.
    pub(crate) fn new(internal: Vec<Cidr>, token: Option<SecretToken>) -> Self {
        Self { internal, token }
    }

    /// Both controls, address first.
    pub(crate) fn check(&self, client: IpAddr, headers: &HeaderMap) -> Result<(), Rejection> {
        if !any_contains(&self.internal, client) {
            return Err(forbidden("source address outside internal_cidrs"));
        }
        if !self.token_presented(headers) {
            return Err(forbidden("X-Manager-Token missing or wrong"));
        }
        Ok(())
    }

    /// Whether the request carries the manager's token, once.
    pub(crate) fn token_presented(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(X_MANAGER_TOKEN).iter();
        match (&self.token, values.next(), values.next()) {
            (Some(token), Some(value), None) => {
                let presented = TokenDigest::of(value.as_bytes().trim_ascii());
                token.digest().matches(&presented)
            }
            _ => false,
        }
    }
}

fn forbidden(cause: &'static str) -> Rejection {
    Rejection::new(
        Reason::Forbidden,
        "This needs a source address in admission.internal_cidrs and a valid X-Manager-Token.",
    )
    .because(cause)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::rejection::ErrorShape;

    fn controls(token: Option<&str>) -> ManagerControls {
        ManagerControls::new(
            vec!["127.0.0.1/32".parse().unwrap(), "fd00::/8".parse().unwrap()],
            token.map(|token| SecretToken::new(token).unwrap()),
        )
    }

    fn headers(tokens: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for token in tokens {
            headers.append(X_MANAGER_TOKEN, HeaderValue::from_static(token));
        }
        headers
    }

    fn admitted(controls: &ManagerControls, client: &str, tokens: &[&'static str]) -> bool {
        controls
            .check(client.parse().unwrap(), &headers(tokens))
            .is_ok()
    }

    #[test]
    fn both_controls_have_to_hold() {
        let controls = controls(Some("internal"));
        assert!(admitted(&controls, "127.0.0.1", &["internal"]));
        assert!(admitted(&controls, "::ffff:127.0.0.1", &["internal"]));
        assert!(admitted(&controls, "fd12::1", &["internal"]));
        assert!(!admitted(&controls, "192.0.2.1", &["internal"]));
        for wrong in [
            &[][..],
            &["interna"],
            &["internal2"],
            &[""],
            &["internal", "internal"],
        ] {
            assert!(!admitted(&controls, "127.0.0.1", wrong), "{wrong:?}");
        }
    }

    #[test]
    fn without_a_configured_token_nobody_passes() {
        assert!(!admitted(&controls(None), "127.0.0.1", &[]));
        assert!(!admitted(&controls(None), "127.0.0.1", &[""]));
    }

    #[test]
    fn the_two_refusals_look_alike_outside_and_differ_in_the_log() {
        let controls = controls(Some("internal"));
        let address = controls
            .check("192.0.2.1".parse().unwrap(), &headers(&[]))
            .unwrap_err();
        let token = controls
            .check("127.0.0.1".parse().unwrap(), &headers(&[]))
            .unwrap_err();
        assert_eq!(address.body(ErrorShape::Rest), token.body(ErrorShape::Rest));
        assert_ne!(address.cause, token.cause);
    }
}
