//! The kinds of refusals that are measured.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{bail, ensure};

use crate::load::Faults;
use crate::message::{Envelope, Expect, Request};
use crate::servers::gateway::{NAMED_TOKEN, NAMESPACE, TOKEN, WRONG_TOKEN};

/// A namespace with a very low rate limit in `conf.yaml`.
pub(super) const LIMITED_NAMESPACE: &str = "limited";
/// The rate limit of [`LIMITED_NAMESPACE`].
pub(super) const LIMITED_PER_SECOND: u64 = 1;

/// One kind of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) status: u16,
    /// The fault of the request.
    what: &'static str,
    /// The gateway's stable code for the refusal, as it appears in the answer.
    code: &'static str,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Host,
    Origin,
    Token,
    Namespace,
    Limit,
}

const fn kind(status: u16, what: &'static str, code: &'static str, fault: Fault) -> Kind {
    Kind {
        status,
        what,
        code,
        fault,
    }
}

pub(super) const UNAUTHORIZED: Kind =
    kind(401, "wrong token", r#""code":"unauthorized""#, Fault::Token);
pub(super) const RATE_LIMITED: Kind = kind(
    429,
    "limit used up",
    r#""code":"rate_limited""#,
    Fault::Limit,
);
/// The gateway's 401 from the bare filter: the HTTP library with a filter that only gives this response.
pub(super) const BARE_FILTER: Kind = Kind {
    what: "of a bare filter",
    ..UNAUTHORIZED
};

/// All kinds in the order in which the gateway checks them, which is that of the table. They are measured in this order and
/// in reverse by turns, the bare filter and the gateway's 401 always next to each other.
#[rustfmt::skip]
pub(super) const KINDS: [Kind; 6] = [
    kind(403, "wrong host", r#""code":"host_not_allowed""#, Fault::Host),
    kind(403, "wrong origin", r#""code":"origin_not_allowed""#, Fault::Origin),
    UNAUTHORIZED,
    BARE_FILTER,
    kind(403, "another's namespace", r#""code":"namespace_forbidden""#, Fault::Namespace),
    RATE_LIMITED,
];

impl Kind {
    pub(super) fn name(self) -> String {
        format!("{} {}", self.status, self.what)
    }

    /// A ping that is refused for this reason.
    pub(super) fn request(self, to: SocketAddr) -> Request {
        let envelope = Envelope::new(to, TOKEN, NAMESPACE);
        match self.fault {
            // The `Host` names another address; the connection still leads to the gateway.
            Fault::Host => {
                let elsewhere = Ipv4Addr::new(192, 0, 2, 1).into();
                envelope.at(SocketAddr::new(elsewhere, to.port())).ping()
            }
            Fault::Origin => envelope.ping_from("https://other.example.net"),
            Fault::Token => envelope.with_token(WRONG_TOKEN).ping(),
            Fault::Namespace => Envelope::new(to, NAMED_TOKEN, LIMITED_NAMESPACE).ping(),
            Fault::Limit => envelope.of(LIMITED_NAMESPACE).ping(),
        }
    }

    pub(super) fn expect(self) -> Expect {
        Expect::refusal(self.status, self.code)
    }

    /// The metric series that counts the refusal.
    pub(super) fn counter(self) -> String {
        format!("tooldock_refusals_total{{reason={}}}", self.reason())
    }

    /// The code, as a label in the gateway's metrics.
    pub(super) fn reason(self) -> &'static str {
        self.code.rsplit(':').next().unwrap_or_default()
    }

    /// Checks the answers that were no refusals: a rate limit admits some requests, but no more than it states.
    ///
    /// # Errors
    ///
    /// A message about other answers.
    pub(super) fn forgives(self, faults: &Faults, lasted: Duration) -> anyhow::Result<()> {
        let Some(first) = &faults.first else {
            return Ok(());
        };
        if self.fault != Fault::Limit {
            bail!(
                "{} answers that were no refusals, the first one: {first}",
                faults.count
            );
        }
        // The first request, the burst, and the requests of the seconds that began at either end.
        let admitted = (lasted.as_secs() + 3) * LIMITED_PER_SECOND;
        ensure!(
            first.starts_with("status 200") && faults.count <= admitted,
            "{} answers that were no refusals where {admitted} may get in, the first one: {first}",
            faults.count
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::FIRST_ID;

    fn text(kind: Kind) -> String {
        let to = "127.0.0.1:8000".parse().unwrap();
        String::from_utf8(kind.request(to).with_id(FIRST_ID).to_vec()).unwrap()
    }

    fn faults(count: u64, first: &str) -> Faults {
        Faults {
            count,
            first: Some(first.to_owned()),
        }
    }

    #[test]
    fn each_request_is_wrong_in_one_way_only() {
        let right = |text: &str| {
            [
                text.contains("Host: 127.0.0.1:8000\r\n"),
                !text.contains("Origin:"),
                text.contains(&format!("Bearer {TOKEN}\r\n")),
                text.contains("X-Namespace: load\r\n"),
            ]
        };
        for kind in KINDS {
            let text = text(kind);
            let expected = match kind.fault {
                Fault::Host => [false, true, true, true],
                Fault::Origin => [true, false, true, true],
                Fault::Token => [true, true, false, true],
                // With a token that is right, but not for this namespace.
                Fault::Namespace => [true, true, false, false],
                Fault::Limit => [true, true, true, false],
            };
            assert_eq!(right(&text), expected, "{kind:?}: {text}");
        }
    }

    #[test]
    fn the_code_expected_is_the_one_counted() {
        let counter = "tooldock_refusals_total{reason=\"rate_limited\"}";
        assert_eq!(RATE_LIMITED.counter(), counter);
    }

    #[test]
    fn only_a_limit_lets_some_in_and_only_so_many() {
        let second = Duration::from_secs(1);
        UNAUTHORIZED.forgives(&Faults::default(), second).unwrap();
        let error = UNAUTHORIZED.forgives(&faults(1, "status 200 instead of 401"), second);
        assert!(error.unwrap_err().to_string().contains("status 200"));
        let some = faults(3, "status 200 instead of 429");
        RATE_LIMITED.forgives(&some, second).unwrap();
        for wrong in [
            faults(5, "status 200 instead of 429"),
            faults(1, "status 503 instead of 429"),
        ] {
            assert!(RATE_LIMITED.forgives(&wrong, second).is_err(), "{wrong:?}");
        }
    }
}
