//! Wrong credentials: they are counted by client address and by the user name that a browser sends, and delayed if there are
//! many.
//!
//! A credential is validated before failures are counted. So a valid one is always admitted, even from an address whose wrong
//! credentials are delayed. The delays limit the load and the log lines that guessing causes. They do not make weak tokens
//! safe, since the sender of a wrong token still learns that it is wrong.
//!
//! Credentials that were valid before are not counted as failures: an expired access token or a revoked key is always answered
//! with 401, so that the client learns that it needs another one.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, MonotonicClock, Reference};
use http::header::WWW_AUTHENTICATE;
use tooldock_base::failures::{FailureOutcome, FailureTable};

use crate::basic;
use crate::config::FailuresConfig;
use crate::fields::Field;
use crate::network::network_of;
use crate::rejection::{CredentialFailure, Rejection};
use crate::request::AdmissionRequest;

/// Maximum length of a user name in the failure counts, in bytes. Longer names are cut.
const USER_BYTES_MAX: usize = 256;

/// Counts of wrong credentials, by client address and by user name.
#[derive(Debug)]
pub(crate) struct Failures<C: Clock = MonotonicClock> {
    counted: Option<Arc<Tables>>,
    clock: C,
    start: C::Instant,
}

#[derive(Debug)]
struct Tables {
    addresses: FailureTable,
    users: FailureTable,
}

impl<C: Clock> Failures<C> {
    pub(crate) fn new(config: &FailuresConfig, clock: C) -> Self {
        let counted = config.limits().map(|limits| {
            Arc::new(Tables {
                addresses: FailureTable::new(limits),
                users: FailureTable::new(limits),
            })
        });
        Self {
            counted,
            start: clock.now(),
            clock,
        }
    }

    /// Takes over the failure counts of the previous configuration, if its limits were the same.
    pub(crate) fn take_over(&mut self, before: &Self) {
        let limits = |it: &Self| it.counted.as_ref().map(|it| it.addresses.limits());
        if limits(self) == limits(before) {
            self.counted.clone_from(&before.counted);
            self.start = before.start;
        }
    }

    /// Counts the wrong credential of a request. Returns `None` if wrong credentials are not counted.
    pub(crate) fn note(
        &self,
        request: &AdmissionRequest<'_>,
        client: IpAddr,
    ) -> Option<CredentialFailure> {
        let (failure, _) = self.counted(request, client)?;
        Some(failure)
    }

    /// Builds the refusal of a request with a wrong credential: `rejection`, or 429 while the client is delayed.
    ///
    /// A browser that navigates always gets 401 with a challenge. With any other status, the browser would continue to send the
    /// wrong password, and its user could not correct it.
    pub(crate) fn refuse(
        &self,
        request: &AdmissionRequest<'_>,
        client: IpAddr,
        mut rejection: Rejection,
    ) -> Rejection {
        let Some((failure, wait)) = self.counted(request, client) else {
            return rejection;
        };
        if let Some(wait) = wait {
            let slowed = Rejection::failed_too_often(wait.into());
            let asks = request.listener.basic.is_some() && basic::browser_navigates(request);
            rejection = match asks {
                true => {
                    let challenge = rejection.headers.into_iter();
                    rejection.headers = challenge
                        .filter(|(name, _)| *name == WWW_AUTHENTICATE)
                        .chain(slowed.headers)
                        .collect();
                    rejection
                }
                false => slowed,
            };
        }
        rejection.failure = Some(failure);
        rejection
    }

    fn counted(
        &self,
        request: &AdmissionRequest<'_>,
        client: IpAddr,
    ) -> Option<(CredentialFailure, Option<Duration>)> {
        let tables = self.counted.as_ref()?;
        let now = self.clock.now().duration_since(self.start).into();
        let mut outcome = tables.addresses.note(network_of(client), now);
        if let Some(user) = user(request) {
            outcome = outcome.stricter(tables.users.note(user, now));
        }
        let wait = match outcome {
            FailureOutcome::Delayed(wait) => Some(wait),
            FailureOutcome::Answered | FailureOutcome::SpellBegan => None,
        };
        let failure = CredentialFailure {
            client,
            delayed: wait.is_some(),
            spell_began: outcome == FailureOutcome::SpellBegan,
        };
        Some((failure, wait))
    }
}

/// The user name in the request's Basic credentials, cut to the maximum length; `None` on listeners without Basic.
fn user(request: &AdmissionRequest<'_>) -> Option<Vec<u8>> {
    request.listener.basic.as_ref()?;
    let Field::Once(value) = request.fields.authorization else {
        return None;
    };
    let mut user = basic::credentials(value.as_bytes())??.user.into_bytes();
    user.truncate(USER_BYTES_MAX);
    Some(user)
}
