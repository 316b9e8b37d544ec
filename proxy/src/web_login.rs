//! Logins at the web UI by an issuer of access tokens, between their beginning and the issuer's answer.
//!
//! ```text
//! page: POST /api/login/oauth {issuer} ─▶ state, proof, cookie ─▶ browser at the issuer ─▶ /login?code&state
//! page: POST /api/login/oauth/code {state, code, proof} + cookie ─▶ token endpoint ─▶ access token ─▶ web_session
//! ```
//!
//! The browser that began a login ends it: the redirect has the `state`, the cookie is `HttpOnly` and `SameSite=Strict`, and the
//! page stores the proof for its own scheme, host and port, since servers at other ports of the host can read and set cookies.
//! The page itself sends the code, so that no other site's request has to carry a cookie, and it stores the place to return to,
//! which is therefore never part of an address.
//!
//! Begun logins are kept in memory alone, count once, and end after ten minutes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::header::{CACHE_CONTROL, COOKIE, HeaderMap, SET_COOKIE};
use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use tooldock_filters::config::OauthConfig;
use tooldock_filters::network::network_of;
use tooldock_filters::oauth::Issuer;
use tooldock_filters::token::TokenDigest;
use tooldock_upstream::reply::{Head, Reply};

use crate::issuers::login::AuthorizationRequest;
use crate::web_session::random;

/// The path at which logins begin.
pub(crate) const PATH: &str = "/api/login/oauth";
/// The path of the page to which issuers redirect browsers.
pub(crate) const REDIRECT: &str = "/login";
/// Name of the cookie of a begun login.
const COOKIE_NAME: &str = "tooldock-begun";
/// Time for logging in at the issuer.
const LIFETIME: Duration = Duration::from_secs(600);
/// Maximum number of begun logins. The oldest gives way.
const BEGUN_MAX: usize = 1000;
/// Maximum number of begun logins from the same address, so that no address can end those of all others. The oldest gives way.
const BEGUN_OF_CLIENT_MAX: usize = 16;

/// The body of a request that begins a login.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoginBeginning {
    /// The issuer's URL.
    pub(crate) issuer: String,
}

/// The body of a request that ends a login. Not `Debug`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoginCode {
    /// The `state` of the redirect.
    pub(crate) state: String,
    /// The `code` of the redirect.
    pub(crate) code: String,
    /// The `iss` of the redirect, where it has one.
    #[serde(default)]
    pub(crate) iss: Option<String>,
    /// The value that the page has stored at the beginning.
    pub(crate) proof: String,
}

/// The begun logins of this process.
#[derive(Default)]
pub(crate) struct BegunLogins {
    /// The logins by their `state`.
    begun: Mutex<HashMap<Box<str>, BegunLogin>>,
}

struct BegunLogin {
    /// The digest of the cookie.
    cookie: TokenDigest,
    /// The digest of the page's proof.
    proof: TokenDigest,
    /// The client's address, or the /64 of an IPv6 address.
    client: IpAddr,
    since: Instant,
    request: AuthorizationRequest,
}

impl BegunLogins {
    /// Stores a login that begins, and returns its cookie and its proof; `None` without random numbers.
    pub(crate) fn begin(
        &self,
        state: &str,
        client: IpAddr,
        request: AuthorizationRequest,
    ) -> Option<(String, String)> {
        let (cookie, proof) = (random()?, random()?);
        let since = Instant::now();
        let login = BegunLogin {
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

    /// Takes the login of this state, if the request comes from the browser and the page that began it. A login is taken once.
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

    fn begun(&self) -> MutexGuard<'_, HashMap<Box<str>, BegunLogin>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BegunLogin {
    fn is_open(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < LIFETIME
    }
}

/// Removes the oldest of the logins that `counts` chooses, if there are `max` of them.
fn make_room(
    begun: &mut HashMap<Box<str>, BegunLogin>,
    max: usize,
    counts: impl Fn(&BegunLogin) -> bool,
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

/// The issuers by which users of the web UI can log in, for its login page.
pub(crate) fn offered<'a>(issuers: impl IntoIterator<Item = &'a Issuer>) -> Reply {
    let configs = issuers.into_iter().map(Issuer::config);
    let offered = configs.filter(|config| config.web_login().is_some());
    let offered: Vec<_> = offered
        .map(|config| serde_json::json!({"issuer": config.issuer, "name": name(config)}))
        .collect();
    answer(&serde_json::json!({"issuers": offered}), None)
}

/// The name of an issuer for persons: the host of its URL.
pub(crate) fn name(config: &OauthConfig) -> &str {
    let (_, rest) = config.issuer.split_once("://").unwrap_or_default();
    rest.split('/').next().unwrap_or_default()
}

/// The answer to a request that begins a login.
pub(crate) fn begun(address: &str, state: &str, proof: &str, cookie: &str, secure: bool) -> Reply {
    let body = serde_json::json!({"address": address, "state": state, "proof": proof});
    answer(&body, Some(cookie_value(cookie, LIFETIME, secure)))
}

/// Adds a header that removes the cookie of a begun login.
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

/// The cookie of a begun login that a request shows.
fn shown_cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter();
    let cookies = cookies.filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;
    use crate::issuers::login::tests::request;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn begin(logins: &BegunLogins, state: &str, client: IpAddr) -> (String, String) {
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
        let logins = BegunLogins::default();
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
        let logins = BegunLogins::default();
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
