//! Logins at the web UI through an issuer of access tokens, from their beginning to the issuer's answer.
//!
//! ```text
//! page: POST /api/login/oauth {issuer} ─▶ state, proof, cookie ─▶ browser at the issuer ─▶ /login?code&state
//! page: POST /api/login/oauth/code {state, code, proof} + cookie ─▶ token endpoint ─▶ access token ─▶ web_session
//! ```
//!
//! Only the browser and page that began a login can end it. Three values ensure this:
//! - the `state`, which the issuer adds to the redirect
//! - a cookie with `HttpOnly` and `SameSite=Strict`
//! - a proof that the page stores for its scheme, host and port. The cookie is not sufficient, because servers at other ports of
//!   the same host can read and set cookies
//!
//! The page itself sends the code, so that no request from another site has to carry a cookie. The page also stores the place to
//! return to, so that this place is never part of a URL.
//!
//! Begun logins are in memory only. Each can be used once, and expires after ten minutes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::header::{CACHE_CONTROL, HeaderMap, SET_COOKIE};
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use tooldock_filters::config::OauthConfig;
use tooldock_filters::network::network_of;
use tooldock_filters::oauth::Issuer;
use tooldock_filters::token::TokenDigest;
use tooldock_upstream::reply::{Head, Reply};

use crate::issuers::login::AuthorizationRequest;
use crate::web_session::{self, random};

/// Path of requests that begin a login.
pub(crate) const PATH: &str = "/api/login/oauth";
/// Path of the web UI to which issuers redirect browsers.
pub(crate) const REDIRECT: &str = "/login";
/// Name of the cookie that belongs to a begun login.
const COOKIE_NAME: &str = "tooldock-begun";
/// Time limit for the user to log in at the issuer.
const LIFETIME: Duration = Duration::from_secs(600);
/// Maximum number of begun logins. A further one replaces the oldest.
const BEGUN_MAX: usize = 1000;
/// Maximum number of begun logins from the same address. A further one replaces the oldest of that address, so that no client can
/// displace the logins of all others.
const BEGUN_OF_CLIENT_MAX: usize = 16;

/// The body of a request that begins a login.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoginBeginning {
    /// URL of the issuer at which the user logs in.
    pub(crate) issuer: String,
}

/// The body of a request that ends a login. It contains secrets and therefore does not implement `Debug`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoginCode {
    /// The parameter `state` of the issuer's redirect.
    pub(crate) state: String,
    /// The parameter `code` of the issuer's redirect.
    pub(crate) code: String,
    /// The parameter `iss` of the issuer's redirect; `None` if the redirect has none.
    #[serde(default)]
    pub(crate) iss: Option<String>,
    /// The proof that the page received when the login began.
    pub(crate) proof: String,
}

/// The logins that have begun and not yet ended in this process.
#[derive(Default)]
pub(crate) struct PendingLogins {
    /// The begun logins by their `state`.
    begun: Mutex<HashMap<Box<str>, PendingLogin>>,
}

struct PendingLogin {
    /// Digest of the value of the login's cookie.
    cookie: TokenDigest,
    /// Digest of the proof that the page received when the login began.
    proof: TokenDigest,
    /// The client's address. For IPv6 it is the /64 network of the address.
    client: IpAddr,
    since: Instant,
    request: AuthorizationRequest,
}

impl PendingLogins {
    /// Stores a login that begins. Returns the values of its cookie and its proof; `None` if there are no random numbers.
    pub(crate) fn begin(
        &self,
        state: &str,
        client: IpAddr,
        request: AuthorizationRequest,
    ) -> Option<(String, String)> {
        let (cookie, proof) = (random()?, random()?);
        let since = Instant::now();
        let login = PendingLogin {
            cookie: TokenDigest::of(cookie.as_bytes()),
            proof: TokenDigest::of(proof.as_bytes()),
            client: network_of(client),
            since,
            request,
        };
        let mut begun = self.begun();
        begun.retain(|_, login| login.is_open(since));
        let client = network_of(client);
        make_room(&mut begun, BEGUN_OF_CLIENT_MAX, |it| it.client == client);
        make_room(&mut begun, BEGUN_MAX, |_| true);
        begun.insert(state.into(), login);
        Some((cookie, proof))
    }

    /// Removes and returns the login with this state. `None` unless the request comes from the browser and the page that began
    /// it.
    pub(crate) fn take(
        &self,
        state: &str,
        proof: &str,
        headers: &HeaderMap,
    ) -> Option<AuthorizationRequest> {
        let cookie = TokenDigest::of(shown_cookie(headers)?.as_bytes());
        let proof = TokenDigest::of(proof.as_bytes());
        let mut begun = self.begun();
        let login = begun.get(state).filter(|it| it.is_open(Instant::now()))?;
        if !cookie.matches(&login.cookie) || !proof.matches(&login.proof) {
            return None;
        }
        Some(begun.remove(state)?.request)
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<Box<str>, PendingLogin>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingLogin {
    fn is_open(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < LIFETIME
    }
}

/// Makes room for one more login: if `counts` returns true for `max` logins or more, removes the oldest of them.
fn make_room(
    begun: &mut HashMap<Box<str>, PendingLogin>,
    max: usize,
    counts: impl Fn(&PendingLogin) -> bool,
) {
    let counted = begun.iter().filter(|(_, login)| counts(login));
    let counted: Vec<_> = counted.collect();
    if counted.len() < max {
        return;
    }
    let oldest = counted.into_iter().min_by_key(|(_, login)| login.since);
    if let Some(oldest) = oldest.map(|(state, _)| state.clone()) {
        begun.remove(&oldest);
    }
}

/// The response that lists the issuers through which users of the web UI can log in. Used by the login page.
pub(crate) fn offered<'a>(issuers: impl IntoIterator<Item = &'a Issuer>) -> Reply {
    let configs = issuers.into_iter().map(Issuer::config);
    let offered = configs.filter(|config| config.web_login().is_some());
    let offered: Vec<_> = offered
        .map(|config| serde_json::json!({"issuer": config.issuer, "name": name(config)}))
        .collect();
    answer(&serde_json::json!({"issuers": offered}), None)
}

/// Name of an issuer to show to users: the host in its URL.
pub(crate) fn name(config: &OauthConfig) -> &str {
    let (_, rest) = config.issuer.split_once("://").unwrap_or_default();
    rest.split('/').next().unwrap_or_default()
}

/// The response to a request that begins a login.
pub(crate) fn begun(address: &str, state: &str, proof: &str, cookie: &str, secure: bool) -> Reply {
    let body = serde_json::json!({"address": address, "state": state, "proof": proof});
    answer(&body, Some(cookie_value(cookie, LIFETIME, secure)))
}

/// Adds a header to the response that makes the browser remove the cookie of a begun login.
pub(crate) fn forgotten(reply: &mut Reply, secure: bool) {
    if let Reply::Full { head, .. } = reply
        && let Ok(cookie) = HeaderValue::from_str(&cookie_value("", Duration::ZERO, secure))
    {
        head.headers.push((SET_COOKIE, cookie));
    }
}

fn cookie_value(value: &str, lifetime: Duration, secure: bool) -> String {
    let seconds = lifetime.as_secs();
    let secure = if secure { "; Secure" } else { "" };
    format!(
        "{COOKIE_NAME}={value}; Path={PATH}; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"
    )
}

fn answer(body: &serde_json::Value, cookie: Option<String>) -> Reply {
    let cache = HeaderValue::from_static("no-store, no-transform");
    let mut head = Head::json(StatusCode::OK).with(CACHE_CONTROL, cache);
    if let Some(mut cookie) = cookie.and_then(|it| HeaderValue::from_str(&it).ok()) {
        cookie.set_sensitive(true);
        head = head.with(SET_COOKIE, cookie);
    }
    let body = body.to_string().into();
    Reply::Full { head, body }
}

/// The value of the cookie for a begun login in a request.
fn shown_cookie(headers: &HeaderMap) -> Option<&str> {
    let mut pairs = web_session::cookie_pairs(headers);
    pairs.find_map(|pair| pair.strip_prefix(COOKIE_NAME)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use http::header::COOKIE;
    use tooldock_base::yaml;

    use super::*;
    use crate::issuers::login::tests::request;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn begin(logins: &PendingLogins, state: &str, client: IpAddr) -> (String, String) {
        let begun = logins.begin(state, client, request("{ client_id: ui }", false, false));
        begun.expect("random numbers")
    }

    fn showing(cookie: &str) -> HeaderMap {
        let value = format!("tooldock-session=x; {COOKIE_NAME}={cookie}");
        let value = HeaderValue::from_str(&value).expect("a value");
        HeaderMap::from_iter([(COOKIE, value)])
    }

    #[test]
    fn a_login_is_ended_once_by_the_browser_and_page_that_began_it() {
        let logins = PendingLogins::default();
        let (cookie, proof) = begin(&logins, "one", CLIENT);
        let (other_cookie, other_proof) = begin(&logins, "two", CLIENT);
        for (state, proof, headers) in [
            ("one", &*proof, HeaderMap::new()),
            ("one", &proof, showing(&other_cookie)),
            ("one", &other_proof, showing(&cookie)),
            ("one", "", showing(&cookie)),
            ("one", &other_proof, showing(&other_cookie)),
            ("", &proof, showing(&cookie)),
            ("none", &proof, showing(&cookie)),
        ] {
            assert!(logins.take(state, proof, &headers).is_none(), "{state}");
        }
        assert!(logins.take("one", &proof, &showing(&cookie)).is_some());
        assert!(logins.take("one", &proof, &showing(&cookie)).is_none());
    }

    #[test]
    fn the_oldest_login_of_an_address_gives_way_before_those_of_others() {
        let logins = PendingLogins::default();
        let (cookie, proof) = begin(&logins, "first", CLIENT);
        let other = IpAddr::from([192, 0, 2, 1]);
        for number in 0..BEGUN_OF_CLIENT_MAX + 1 {
            begin(&logins, &number.to_string(), other);
        }
        assert_eq!(logins.begun().len(), BEGUN_OF_CLIENT_MAX + 1);
        assert!(!logins.begun().contains_key("0"));
        assert!(logins.take("first", &proof, &showing(&cookie)).is_some());
        for number in 0..=255 {
            for part in 0..8 {
                let client = IpAddr::from([192, 0, part, number]);
                begin(&logins, &format!("{part}.{number}"), client);
            }
        }
        assert_eq!(logins.begun().len(), BEGUN_MAX);
    }

    #[test]
    fn persons_see_the_host_of_an_issuer() {
        let config =
            "{ issuer: 'https://idp.example:8443/realms/x', audience: a, scopes: { r: read } }";
        let config: OauthConfig = yaml::from_str(config).expect("an issuer");
        assert_eq!(name(&config), "idp.example:8443");
    }
}
