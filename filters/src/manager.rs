//! Checks of `/reload` in addition to the bearer token: the client's address, and the manager's own token.
//!
//! Both checks refuse with the same response, so that a client does not learn which one failed. The cause is logged.

use std::net::IpAddr;

use crate::fields::{Field, Fields};
use crate::network::{Cidr, any_contains};
use crate::rejection::{Reason, Rejection};
use crate::token::{SecretToken, TokenDigest};

/// Cause that is logged if `/reload` is refused because of the client's address.
const OUTSIDE: &str = "source address outside internal_cidrs";

/// The requirements for `/reload`: networks of clients, and the manager's token.
#[derive(Debug)]
pub(crate) struct ManagerControls {
    internal: Vec<Cidr>,
    token: Option<SecretToken>,
}

impl ManagerControls {
    /// Creates the requirements for `/reload`. Without a token, every request is refused.
    pub(crate) fn new(internal: Vec<Cidr>, token: Option<SecretToken>) -> Self {
        Self { internal, token }
    }

    /// Refuses a client outside the internal networks, and then a request without the manager's token.
    pub(crate) fn check(&self, client: IpAddr, fields: &Fields<'_>) -> Result<(), Rejection> {
        if !any_contains(&self.internal, client) {
            return Err(forbidden(OUTSIDE));
        }
        if !self.token_presented(fields) {
            return Err(forbidden("X-Manager-Token missing or wrong"));
        }
        Ok(())
    }

    /// Refuses a client outside the internal networks; requires no manager's token.
    pub(crate) fn check_address(&self, client: IpAddr) -> Result<(), Rejection> {
        if any_contains(&self.internal, client) {
            return Ok(());
        }
        let message = "This needs a source address in admission.internal_cidrs.";
        Err(Rejection::new(Reason::Forbidden, message).because(OUTSIDE))
    }

    /// Returns true if the request contains exactly one `X-Manager-Token` header with the manager's token.
    pub(crate) fn token_presented(&self, fields: &Fields<'_>) -> bool {
        match (&self.token, fields.manager_token) {
            (Some(token), Field::Once(value)) => {
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
    use http::{HeaderMap, HeaderValue};

    use super::*;

    fn controls(token: Option<&str>) -> ManagerControls {
        ManagerControls::new(
            vec!["127.0.0.1/32".parse().unwrap(), "fd00::/8".parse().unwrap()],
            token.map(|token| SecretToken::new(token).unwrap()),
        )
    }

    fn headers(tokens: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for token in tokens {
            headers.append("x-manager-token", HeaderValue::from_static(token));
        }
        headers
    }

    fn admitted(controls: &ManagerControls, client: &str, tokens: &[&'static str]) -> bool {
        controls
            .check(client.parse().unwrap(), &Fields::of(&headers(tokens)))
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
    fn an_internal_address_is_enough_where_the_address_alone_is_checked() {
        let controls = controls(None);
        let admitted = |client: &str| controls.check_address(client.parse().unwrap()).is_ok();
        assert!(admitted("127.0.0.1") && admitted("fd12::1"));
        assert!(!admitted("192.0.2.1"));
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
            .check("192.0.2.1".parse().unwrap(), &Fields::of(&headers(&[])))
            .unwrap_err();
        let token = controls
            .check("127.0.0.1".parse().unwrap(), &Fields::of(&headers(&[])))
            .unwrap_err();
        assert_eq!(address.body(), token.body());
        assert_ne!(address.cause, token.cause);
    }
}
