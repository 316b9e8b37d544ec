//! The passport of a forwarded request: which client asked at which listener, sealed by the session key.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use http::{HeaderName, HeaderValue};
use pingora_http::RequestHeader;
use serde::{Deserialize, Serialize};
use tooldock_filters::Peer;
use tooldock_upstream::replicas::{ReplicaId, Replicas};
use tooldock_upstream::seal::SessionKey;

use super::Met;
use crate::tls::ShownCertificate;

/// The header that carries it.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("tooldock-passport");

/// The most replicas that a request passes through: one that has its session no more, and the one that has it.
pub(super) const HOPS_MAX: u8 = 2;

/// How long a passport counts, in milliseconds, by the clock that the replicas share.
const LIFE: u64 = 30_000;

/// A passport. It is good for one request, at one replica, for [`LIFE`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Passport {
    /// The replica that forwards.
    from: ReplicaId,
    /// The replica that it is for.
    to: ReplicaId,
    /// Replicas that have forwarded the request.
    pub(super) hops: u8,
    /// When it was sealed, in milliseconds of Unix time.
    at: u64,
    /// A random number that no two passports share.
    nonce: u64,
    method: String,
    target: String,
    /// The name of the listener that the client asked.
    pub(super) listener: Box<str>,
    peer: IpAddr,
    names_no_client: bool,
    /// The client certificate of the connection there, which that handshake has verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate: Option<ShownCertificate>,
    request_id: Box<str>,
}

/// A request that another replica has forwarded.
pub(crate) struct Arrival {
    /// The name of the listener that its client asked.
    pub(crate) listener: Box<str>,
    /// The peer that asked there.
    pub(crate) peer: Peer,
    /// The client certificate that counts there.
    pub(crate) certificate: Option<ShownCertificate>,
    /// The id that it got there.
    pub(crate) request_id: Box<str>,
    hops: u8,
}

impl Passport {
    /// The passport of a request, without the replica that it is for.
    pub(super) fn of(replicas: &Replicas, arrival: Option<&Arrival>, met: Met<'_>) -> Self {
        Self {
            from: replicas.own(),
            to: replicas.own(),
            hops: arrival.map_or(0, |arrival| arrival.hops),
            at: 0,
            nonce: 0,
            method: String::new(),
            target: String::new(),
            listener: (*met.listener.name).into(),
            peer: met.peer.address,
            names_no_client: met.peer.names_no_client,
            certificate: met.certificate,
            request_id: met.request_id.into(),
        }
    }

    /// Seals it for one request at one replica, with one hop more.
    pub(super) fn seal(
        &self,
        key: &SessionKey,
        replicas: &Replicas,
        to: ReplicaId,
        line: (&str, &str),
    ) -> Result<HeaderValue, String> {
        let passport = Self {
            to,
            hops: self.hops.saturating_add(1),
            at: replicas.now(),
            nonce: getrandom::u64().map_err(|error| error.to_string())?,
            method: line.0.to_owned(),
            target: line.1.to_owned(),
            ..self.clone()
        };
        let text = serde_json::to_vec(&passport).expect("plain data");
        let sealed = key
            .seal_passport(&text)
            .map_err(|error| error.to_string())?;
        let mut value = HeaderValue::from_str(&sealed).expect("base64");
        value.set_sensitive(true);
        Ok(value)
    }

    /// Opens the passport of a request and checks that it is for this request and this replica.
    ///
    /// # Errors
    ///
    /// Why it does not count, for the log.
    pub(super) fn open(
        header: &RequestHeader,
        key: &SessionKey,
        replicas: &Replicas,
        used: &UsedPassports,
    ) -> Result<Self, &'static str> {
        let mut all = header.headers.get_all(HEADER).iter();
        let (Some(sealed), None) = (all.next(), all.next()) else {
            return Err(
                "it has no passport, or several: only replicas of this gateway may ask here",
            );
        };
        let opened = sealed.to_str().ok().and_then(|it| key.open_passport(it));
        let passport: Self = opened
            .and_then(|text| serde_json::from_slice(&text).ok())
            .ok_or("its passport is forged, or sealed by another key: give all replicas the same SESSION_KEY")?;
        if !replicas.answers_for(passport.to) {
            return Err(
                "its passport is for another replica: each replica needs a replicas.address of its own",
            );
        }
        if replicas.now().abs_diff(passport.at) > LIFE {
            return Err("its passport has expired");
        }
        let target = header.uri.path_and_query();
        let target = target.map_or("/", |it| it.as_str());
        if passport.method != header.method.as_str() || passport.target != target {
            return Err("its passport is for another request");
        }
        if passport.hops > HOPS_MAX {
            return Err("it was forwarded too often");
        }
        if !used.note(passport.nonce, replicas.now()) {
            return Err("its passport was used before");
        }
        Ok(passport)
    }
}

impl From<Passport> for Arrival {
    fn from(passport: Passport) -> Self {
        Self {
            peer: Peer {
                address: passport.peer,
                names_no_client: passport.names_no_client,
            },
            listener: passport.listener,
            certificate: passport.certificate,
            request_id: passport.request_id,
            hops: passport.hops,
        }
    }
}

/// The numbers of passports that were used, so that each counts once. Only sealed passports get in, so other replicas bound
/// how many there are.
#[derive(Default)]
pub(super) struct UsedPassports(Mutex<Generations>);

/// The numbers of two spans of time, each as long as passports count.
#[derive(Default)]
struct Generations {
    begun: u64,
    present: HashSet<u64>,
    past: HashSet<u64>,
}

impl UsedPassports {
    /// Notes a passport at that time. Answers `false` if it was noted before.
    fn note(&self, nonce: u64, now: u64) -> bool {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The clocks of two replicas may differ by a life: numbers are kept for two.
        if now.abs_diff(used.begun) > 2 * LIFE {
            used.past = std::mem::take(&mut used.present);
            used.begun = now;
        }
        !used.past.contains(&nonce) && used.present.insert(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passport_counts_once_for_as_long_as_it_counts() {
        let used = UsedPassports::default();
        let start = 1_000_000;
        assert!(used.note(7, start));
        assert!(used.note(8, start));
        for later in [0, LIFE, 2 * LIFE, 2 * LIFE + 1] {
            assert!(!used.note(7, start + later), "{later}");
        }
        for step in 1..10 {
            used.note(100 + step, start + step * 3 * LIFE);
        }
        let used = used.0.lock().expect("no panic");
        assert!(used.present.len() + used.past.len() < 4, "old numbers go");
    }
}
