//! The passport of a forwarded request: a header that names the client and the listener that received the request. It is sealed
//! with the session key.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use http::{HeaderName, HeaderValue};
use pingora_http::RequestHeader;
use serde::{Deserialize, Serialize};
use tooldock_filters::Peer;
use tooldock_sessions::replicas::{ReplicaId, Replicas};
use tooldock_upstream::seal::SessionKey;

use super::RequestFacts;
use crate::tls::ShownCertificate;

/// Name of the request header that contains a passport.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("tooldock-passport");

/// Maximum number of times that a request is forwarded. Two are needed if the first replica no longer has the session and
/// forwards the request to the replica that has it.
pub(super) const HOPS_MAX: u8 = 2;

/// Time for which a passport is valid, in milliseconds. It is measured by the common clock of the replicas.
const LIFE: u64 = 30_000;

/// The passport of one request to one replica. It is valid for [`LIFE`] milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Passport {
    /// The replica that forwards the request and has sealed the passport.
    from: ReplicaId,
    /// The replica for which the passport is valid.
    to: ReplicaId,
    /// Number of times that the request has been forwarded.
    pub(super) hops: u8,
    /// Time at which the passport was sealed, in milliseconds of Unix time.
    at: u64,
    /// Random number, different in each passport, by which a second use is detected.
    nonce: u64,
    method: String,
    target: String,
    /// Name of the listener that received the client's request.
    pub(super) listener: Box<str>,
    peer: IpAddr,
    names_no_client: bool,
    /// Client certificate of the client's connection to that listener, verified in the TLS handshake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate: Option<ShownCertificate>,
    request_id: Box<str>,
    /// True for a health request that the replica sends itself; false for a client's request.
    #[serde(default)]
    health: bool,
}

/// Facts about a request that another replica has forwarded to this one.
pub(crate) struct ForwardedFrom {
    /// Name of the listener that received the client's request.
    pub(crate) listener: Box<str>,
    /// Peer of the client's connection to that listener.
    pub(crate) peer: Peer,
    /// Client certificate of the client's connection to that listener.
    pub(crate) certificate: Option<ShownCertificate>,
    /// Id that the listener assigned to the request.
    pub(crate) request_id: Box<str>,
    /// True for a health request of another replica. It is answered without admission.
    pub(crate) is_health: bool,
    hops: u8,
}

impl Passport {
    /// Creates the passport of a client's request. The receiving replica, time and nonce are added by `seal`.
    pub(super) fn of(
        replicas: &Replicas,
        arrival: Option<&ForwardedFrom>,
        met: RequestFacts<'_>,
    ) -> Self {
        Self {
            hops: arrival.map_or(0, |arrival| arrival.hops),
            listener: (*met.listener.name).into(),
            peer: met.peer.address,
            names_no_client: met.peer.names_no_client,
            certificate: met.certificate,
            request_id: met.request_id.into(),
            health: false,
            ..Self::of_health(replicas)
        }
    }

    /// Creates the passport of a health request. It contains a listener and a peer address only because replicas of earlier
    /// versions apply admission to health requests as to those of clients.
    pub(super) fn of_health(replicas: &Replicas) -> Self {
        let listener = replicas.listeners().first();
        Self {
            from: replicas.own(),
            to: replicas.own(),
            hops: 0,
            at: 0,
            nonce: 0,
            method: String::new(),
            target: String::new(),
            listener: listener.map_or("", |it| it).into(),
            peer: IpAddr::from([127, 0, 0, 1]),
            names_no_client: false,
            certificate: None,
            request_id: "".into(),
            health: true,
        }
    }

    /// Seals the passport for one request to one replica, and increments its number of hops. `line` is the request's method and
    /// target.
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
    /// The reason why the passport is not valid, for the log.
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

impl From<Passport> for ForwardedFrom {
    fn from(passport: Passport) -> Self {
        Self {
            peer: Peer {
                address: passport.peer,
                names_no_client: passport.names_no_client,
            },
            listener: passport.listener,
            certificate: passport.certificate,
            request_id: passport.request_id,
            is_health: passport.health,
            hops: passport.hops,
        }
    }
}

/// Nonces of used passports, so that each passport can be used only once. The number of entries is bounded by the requests of the
/// other replicas, because only validly sealed passports are stored.
#[derive(Default)]
pub(super) struct UsedPassports(Mutex<Generations>);

/// Nonces of used passports in the present and in the previous period. Each period is at least as long as a passport is valid.
#[derive(Default)]
struct Generations {
    begun: u64,
    present: HashSet<u64>,
    past: HashSet<u64>,
}

impl UsedPassports {
    /// Records a passport as used at the time `now`. Returns false if it was used before.
    fn note(&self, nonce: u64, now: u64) -> bool {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Clocks of replicas may differ by up to `LIFE`, so a passport may be accepted for twice that time. A period is that
        // long.
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

    #[test]
    fn a_passport_opens_one_request_once_and_within_its_hops_and_its_life() {
        let [key, other_key] = [[7; 32], [8; 32]].map(SessionKey::from_bytes);
        let (replicas, used) = (Replicas::alone(), UsedPassports::default());
        let sealed = |key: &SessionKey, change: &dyn Fn(&mut Passport)| {
            let mut passport = Passport {
                hops: 1,
                at: replicas.now(),
                nonce: getrandom::u64().expect("a random number"),
                method: "POST".to_owned(),
                target: "/mcp?a=1".to_owned(),
                ..Passport::of_health(&replicas)
            };
            change(&mut passport);
            let text = serde_json::to_vec(&passport).expect("plain data");
            key.seal_passport(&text).expect("sealed")
        };
        let opened = |headers: &[&str]| {
            let mut request = RequestHeader::build("POST", b"/mcp?a=1", None).expect("a request");
            for header in headers {
                request.append_header(HEADER, *header).expect("a header");
            }
            Passport::open(&request, &key, &replicas, &used).map(|passport| passport.hops)
        };
        let good = sealed(&key, &|_| {});
        assert_eq!(opened(&[&good]), Ok(1));
        assert_eq!(opened(&[&good]), Err("its passport was used before"));
        let (first, second) = (sealed(&key, &|_| {}), sealed(&key, &|_| {}));
        let refused = opened(&[&first, &second]).expect_err("two passports");
        assert!(refused.contains("or several"), "{refused}");
        let forged = sealed(&other_key, &|_| {});
        let refused = opened(&[&forged]).expect_err("another key");
        assert!(
            refused.contains("give all replicas the same SESSION_KEY"),
            "{refused}"
        );
        type Change<'a> = &'a dyn Fn(&mut Passport);
        let cases: [(Change<'_>, &str); 6] = [
            (&|it| it.hops = HOPS_MAX + 1, "it was forwarded too often"),
            (&|it| it.at -= LIFE + 1000, "its passport has expired"),
            (&|it| it.at += LIFE + 1000, "its passport has expired"),
            (
                &|it| it.method = "GET".into(),
                "its passport is for another request",
            ),
            (
                &|it| it.target = "/mcp".into(),
                "its passport is for another request",
            ),
            (
                &|it| it.to = ReplicaId::named("another"),
                "its passport is for another replica: each replica needs a replicas.address of its own",
            ),
        ];
        for (change, reason) in cases {
            assert_eq!(opened(&[&sealed(&key, change)]), Err(reason));
        }
    }
}
