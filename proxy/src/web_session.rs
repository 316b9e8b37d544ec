//! Logins at the web UI. `POST /api/login` with a token begins a login, `DELETE /api/login` ends it.
//!
//! A login is proved by two random values, called its halves. One of them alone is no credential.
//! - The first half is in a cookie with `HttpOnly` and `SameSite=Strict`: scripts cannot read it, and requests from other sites
//!   do not contain it. But browsers send cookies to all ports of a host, so another server there, such as that of a tool, may
//!   see it.
//! - The second half is in the response. The page stores it for its scheme, host and port, and sends it in the header [`HALF`].
//!
//! A request with both halves, at a listener that accepts `Basic`, is treated as if a browser had sent the token as a password:
//! the same rules apply, including the protection against requests from other pages, and the login ends when the token ends.
//! Logins are in memory only, and end with the process. Streams of a login end with it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::header::{AUTHORIZATION, CACHE_CONTROL, COOKIE, ORIGIN, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio::sync::watch;
use tooldock_base::secret::Secret;
use tooldock_filters::token::TokenDigest;
use tooldock_upstream::reply::{Head, Reply};

/// Path of requests that begin or end a login.
pub(crate) const PATH: &str = "/api/login";
/// Header with the second half of a login, which the page stores. The name is in lower case.
pub(crate) const HALF: HeaderName = HeaderName::from_static("x-tooldock-login");
/// Name of the cookie with the first half of a login.
const NAME: &str = "tooldock-session";
/// Maximum duration of a login at the web UI.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of logins. A further one replaces the oldest.
const LOGINS_MAX: usize = 1000;
/// Maximum number of logins with the same token. A further one replaces the oldest of that token, so that no client can displace
/// the logins of all others.
const LOGINS_OF_TOKEN_MAX: usize = 16;
/// Number of random bytes in each half of a login.
const HALF_BYTES: usize = 32;

/// The logins in this process that have not ended.
#[derive(Default)]
pub(crate) struct WebSessions {
    /// The logins by the value of their cookie.
    open: Mutex<HashMap<Box<str>, Login>>,
    /// True if a login has been opened since the start. If false, requests need no lookup.
    are_any: AtomicBool,
}

struct Login {
    token: Secret,
    /// Duration after which the login ends.
    lifetime: Duration,
    /// Digest of the login's token. Logins with the same token are found by it.
    digest: TokenDigest,
    /// Digest of the login's second half. The half itself is stored by the page alone.
    half: TokenDigest,
    since: Instant,
    /// Sender that is dropped together with the login. Streams of the login end then.
    ended: watch::Sender<()>,
}

/// The two halves of a new login: one for the cookie, one for the page.
struct NewLogin {
    /// The first half of the login: the value of the cookie.
    id: String,
    /// The second half of the login: the value of the header [`HALF`].
    half: String,
}

/// The login that a request has proved with both halves.
#[derive(Debug)]
pub(crate) struct ShownLogin {
    /// The value of `Authorization` with the login's token. The request is treated as if it contained this value.
    pub(crate) authorization: HeaderValue,
    pub(crate) end: LoginEnd,
}

/// Reports the end of a login to the streams that it has opened.
#[derive(Debug)]
pub(crate) struct LoginEnd {
    since: Instant,
    lifetime: Duration,
    ended: watch::Receiver<()>,
}

impl LoginEnd {
    /// The remaining time until the login expires.
    pub(crate) fn left(&self) -> Duration {
        self.lifetime.saturating_sub(self.since.elapsed())
    }

    /// Resolves when the login has ended early: by a log-out, or because a newer login replaced it.
    pub(crate) fn until_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        // No value is ever sent. The loop ends when the sender is dropped with the login.
        async move { while ended.changed().await.is_ok() {} }
    }
}

impl fmt::Debug for WebSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSessions").finish_non_exhaustive()
    }
}

impl WebSessions {
    /// Returns true if a login has been opened since the start of the process.
    pub(crate) fn are_any(&self) -> bool {
        self.are_any.load(Ordering::Relaxed)
    }

    /// Returns the login of a request that contains both halves. `None` if the request has an `Authorization` header.
    ///
    /// If the page itself is requested, the cookie is sufficient: the browser sends that request before any script can add a
    /// header, and the page's content is the same for all users. `user` is the user name that the listener requires for
    /// `Basic`.
    pub(crate) fn shown(&self, user: &str, request: &Parts) -> Option<ShownLogin> {
        let headers = &request.headers;
        if headers.contains_key(AUTHORIZATION) {
            return None;
        }
        let id = shown_id(headers)?;
        let now = Instant::now();
        let logins = self.logins();
        let login = logins.get(id).filter(|it| it.is_open(now))?;
        if !asks_for_page(request) && !login.is_completed_by(headers) {
            return None;
        }
        let pair = format!("{user}:{}", login.token.expose());
        let end = LoginEnd {
            since: login.since,
            lifetime: login.lifetime,
            ended: login.ended.subscribe(),
        };
        drop(logins);
        let value = format!("Basic {}", STANDARD.encode(pair));
        let mut authorization = HeaderValue::from_str(&value).ok()?;
        authorization.set_sensitive(true);
        Some(ShownLogin { authorization, end })
    }

    /// Answers a request for [`PATH`] that was admitted. `None` for another path or method.
    ///
    /// `is_tls` is true if the connection is encrypted. The cookie is then marked as `Secure`. The same is done behind a proxy
    /// that ends TLS: the browser's header `Origin` then begins with `https`. `left` is the time until the credential of the
    /// request expires; the login ends at that time, too.
    pub(crate) fn answer(
        &self,
        request: &Parts,
        is_tls: bool,
        left: Option<Duration>,
    ) -> Option<Reply> {
        if request.uri.path() != PATH {
            return None;
        }
        let is_secure = is_secure(&request.headers, is_tls);
        let secure = if is_secure { "; Secure" } else { "" };
        match request.method {
            Method::POST => {
                let Some(token) = shown_token(&request.headers) else {
                    let message = "Log in with `Authorization: Bearer <token>`.";
                    return Some(refusal(StatusCode::BAD_REQUEST, "invalid_request", message));
                };
                let lifetime = left.map_or(LIFETIME, |left| left.min(LIFETIME));
                let Some(NewLogin { id, half }) = self.open(token, lifetime) else {
                    let message = "No random numbers are available; try again.";
                    let status = StatusCode::SERVICE_UNAVAILABLE;
                    return Some(refusal(status, "internal_error", message));
                };
                let seconds = lifetime.as_secs();
                let cookie = format!(
                    "{NAME}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"
                );
                let body = serde_json::json!({"login": half, "seconds": seconds});
                Some(done(&body, &cookie))
            }
            Method::DELETE => {
                self.close(&request.headers);
                let cookie =
                    format!("{NAME}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0{secure}");
                Some(done(&serde_json::json!({"success": true}), &cookie))
            }
            _ => None,
        }
    }

    /// Begins a login for a token. `None` if there are no random numbers.
    fn open(&self, token: Secret, lifetime: Duration) -> Option<NewLogin> {
        let (id, half) = (random()?, random()?);
        let digest = TokenDigest::of(token.expose().as_bytes());
        let since = Instant::now();
        let login = Login {
            token,
            lifetime,
            digest,
            half: TokenDigest::of(half.as_bytes()),
            since,
            ended: watch::Sender::new(()),
        };
        let mut logins = self.logins();
        logins.retain(|_, login| login.is_open(since));
        let by_token = |login: &Login| login.digest.matches(&digest);
        make_room(&mut logins, LOGINS_OF_TOKEN_MAX, by_token);
        make_room(&mut logins, LOGINS_MAX, |_| true);
        self.are_any.store(true, Ordering::Relaxed);
        logins.insert(id.as_str().into(), login);
        Some(NewLogin { id, half })
    }

    /// Ends the login of a request that contains both halves. The cookie alone is not sufficient, because other servers on the
    /// same host also receive it.
    fn close(&self, headers: &HeaderMap) {
        let Some(id) = shown_id(headers) else {
            return;
        };
        let mut logins = self.logins();
        if logins.get(id).is_some_and(|it| it.is_completed_by(headers)) {
            logins.remove(id);
        }
    }

    fn logins(&self) -> MutexGuard<'_, HashMap<Box<str>, Login>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Login {
    fn is_open(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < self.lifetime
    }

    /// Returns true if the headers contain the second half of this login.
    fn is_completed_by(&self, headers: &HeaderMap) -> bool {
        let half = headers.get(HALF);
        half.is_some_and(|half| TokenDigest::of(half.as_bytes()).matches(&self.half))
    }
}

/// Makes room for one more login: if `counts` returns true for `max` logins or more, removes the oldest of them.
fn make_room(logins: &mut HashMap<Box<str>, Login>, max: usize, counts: impl Fn(&Login) -> bool) {
    let counted = logins.iter().filter(|(_, login)| counts(login));
    let counted: Vec<_> = counted.collect();
    if counted.len() < max {
        return;
    }
    let oldest = counted.into_iter().min_by_key(|(_, login)| login.since);
    if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
        logins.remove(&oldest);
    }
}

/// Creates a random value, in letters, digits, `-` and `_`. `None` if there are no random numbers.
pub(crate) fn random() -> Option<String> {
    let mut bytes = [0; HALF_BYTES];
    getrandom::fill(&mut bytes).ok()?;
    Some(URL_SAFE_NO_PAD.encode(bytes))
}

/// Returns true if the request is for the page of the web UI itself.
fn asks_for_page(request: &Parts) -> bool {
    matches!(request.method, Method::GET | Method::HEAD) && request.uri.path() == "/"
}

/// Returns true if cookies must be marked as `Secure`, so that browsers send them only over encrypted connections.
pub(crate) fn is_secure(headers: &HeaderMap, is_tls: bool) -> bool {
    is_tls || is_from_https(headers)
}

/// Returns true if the request was sent by a page that was loaded over https.
fn is_from_https(headers: &HeaderMap) -> bool {
    let origin = headers.get(ORIGIN);
    origin.is_some_and(|origin| origin.as_bytes().starts_with(b"https://"))
}

/// The value of the login cookie in a request.
pub(crate) fn shown_id(headers: &HeaderMap) -> Option<&str> {
    let mut pairs = cookie_pairs(headers);
    pairs.find_map(|pair| pair.strip_prefix(NAME)?.strip_prefix('='))
}

/// Returns the cookies of a request, each as `NAME=VALUE`.
pub(crate) fn cookie_pairs(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let cookies = headers.get_all(COOKIE).iter();
    let cookies = cookies.filter_map(|value| value.to_str().ok());
    cookies.flat_map(|value| value.split(';')).map(str::trim)
}

/// The bearer token in a request's `Authorization` header.
fn shown_token(headers: &HeaderMap) -> Option<Secret> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    let is_bearer = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty();
    is_bearer.then(|| Secret::new(token.to_owned()))
}

fn done(body: &serde_json::Value, cookie: &str) -> Reply {
    let mut head = Head::json(StatusCode::OK).with(
        CACHE_CONTROL,
        HeaderValue::from_static("no-store, no-transform"),
    );
    // The conversion cannot fail, because ids consist of letters, digits, `-` and `_`.
    if let Ok(mut cookie) = HeaderValue::from_str(cookie) {
        cookie.set_sensitive(true);
        head = head.with(SET_COOKIE, cookie);
    }
    let body = body.to_string().into();
    Reply::Full { head, body }
}

fn refusal(status: StatusCode, code: &str, message: &str) -> Reply {
    let body = serde_json::json!({"detail": message, "error": {"code": code, "message": message, "details": {}}});
    let head = Head::json(status).with(
        CACHE_CONTROL,
        HeaderValue::from_static("no-store, no-transform"),
    );
    let body = body.to_string().into();
    Reply::Full { head, body }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn request(method: Method, path: &str, headers: &[(HeaderName, &str)]) -> Parts {
        let mut request = http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn cookie_of(reply: &Reply) -> String {
        let headers = &reply.head().headers;
        let found = headers.iter().find(|(name, _)| *name == SET_COOKIE);
        let (_, value) = found.expect("a cookie");
        value.to_str().expect("text").to_owned()
    }

    fn half_of(reply: &Reply) -> String {
        let Reply::Full { body, .. } = reply else {
            panic!("no whole answer");
        };
        let body: serde_json::Value = serde_json::from_slice(body).expect("JSON");
        body["login"].as_str().expect("a half").to_owned()
    }

    fn opened(sessions: &WebSessions, token: &str) -> NewLogin {
        opened_for(sessions, token, LIFETIME)
    }

    fn opened_for(sessions: &WebSessions, token: &str, lifetime: Duration) -> NewLogin {
        let token = Secret::new(token.to_owned());
        sessions.open(token, lifetime).expect("opened")
    }

    /// A request of the page that shows a login.
    fn showing(NewLogin { id, half }: &NewLogin) -> Parts {
        let cookie = format!("a=b; {NAME}={id}");
        request(
            Method::GET,
            "/api/me",
            &[(COOKIE, &*cookie), (HALF, half.as_str())],
        )
    }

    fn knows(sessions: &WebSessions, login: &NewLogin) -> bool {
        sessions.shown("admin", &showing(login)).is_some()
    }

    #[test]
    fn both_halves_stand_for_their_token_until_the_login_ends() {
        let sessions = WebSessions::default();
        let login = request(Method::POST, PATH, &[(AUTHORIZATION, "Bearer t0ken")]);
        let reply = sessions.answer(&login, true, None).expect("answered");
        let (cookie, half) = (cookie_of(&reply), half_of(&reply));
        for attribute in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Secure"] {
            assert!(cookie.contains(attribute), "{cookie}");
        }
        let (pair, _) = cookie.split_once(';').expect("attributes");
        for part in ["t0ken", &half] {
            assert!(!cookie.contains(part));
        }
        let headers = [(COOKIE, pair), (HALF, &*half)];
        let shown = request(Method::GET, "/api/me", &headers);
        let found = sessions.shown("admin", &shown).expect("known");
        let expected = format!("Basic {}", STANDARD.encode("admin:t0ken"));
        assert_eq!(found.authorization, expected);
        assert!(found.authorization.is_sensitive());
        assert!(found.end.left() > LIFETIME - Duration::from_secs(600));
        let mut end = Box::pin(found.end.until_ended());
        assert!((&mut end).now_or_never().is_none());

        let logout = request(Method::DELETE, PATH, &headers);
        let ended = cookie_of(&sessions.answer(&logout, false, None).expect("answered"));
        assert!(
            ended.contains("Max-Age=0") && !ended.contains("Secure"),
            "{ended}"
        );
        assert!(sessions.shown("admin", &shown).is_none());
        assert!(end.now_or_never().is_some(), "streams go on");
    }

    #[test]
    fn a_login_ends_with_its_token() {
        let sessions = WebSessions::default();
        let login = request(Method::POST, PATH, &[(AUTHORIZATION, "Bearer t")]);
        for (left, expected) in [(90, 90), (0, 0), (10 * LIFETIME.as_secs(), 12 * 3600)] {
            let left = Some(Duration::from_secs(left));
            let reply = sessions.answer(&login, true, left).expect("answered");
            let age = format!("; Max-Age={expected};");
            assert!(cookie_of(&reply).contains(&age), "{age}");
        }
        let ended = opened_for(&sessions, "t", Duration::ZERO);
        assert!(!knows(&sessions, &ended));
        let open = opened_for(&sessions, "t", Duration::from_secs(90));
        let end = sessions.shown("admin", &showing(&open)).expect("known").end;
        assert!(end.left() <= Duration::from_secs(90));
    }

    #[test]
    fn half_a_login_opens_nothing_but_the_page_and_ends_nothing() {
        let sessions = WebSessions::default();
        let (login, other) = (opened(&sessions, "a"), opened(&sessions, "b"));
        let cookie = format!("{NAME}={}", login.id);
        let alone = [(COOKIE, &*cookie)];
        for (method, path, expected) in [
            (Method::GET, "/", true),
            (Method::HEAD, "/", true),
            (Method::POST, "/", false),
            (Method::GET, "/api/me", false),
            (Method::GET, "//", false),
            (Method::POST, "/mcp", false),
            (Method::DELETE, PATH, false),
        ] {
            let found = sessions.shown("admin", &request(method.clone(), path, &alone));
            assert_eq!(found.is_some(), expected, "{method} {path}");
        }
        for half in ["", "guessed", &other.half, &login.id] {
            let shown = [(COOKIE, &*cookie), (HALF, half)];
            let shown = request(Method::GET, "/api/me", &shown);
            assert!(sessions.shown("admin", &shown).is_none(), "{half}");
        }
        let shown = request(Method::GET, "/api/me", &[(HALF, &*login.half)]);
        assert!(sessions.shown("admin", &shown).is_none());
        let logout = request(Method::DELETE, PATH, &alone);
        assert!(sessions.answer(&logout, false, None).is_some());
        assert!(knows(&sessions, &login));
    }

    #[test]
    fn a_login_by_a_page_of_https_has_a_cookie_for_https_alone() {
        let sessions = WebSessions::default();
        for (origin, expected) in [
            ("https://tools.example", true),
            ("http://https.example", false),
            ("null", false),
        ] {
            let headers = [(AUTHORIZATION, "Bearer t"), (ORIGIN, origin)];
            let login = request(Method::POST, PATH, &headers);
            let cookie = cookie_of(&sessions.answer(&login, false, None).expect("answered"));
            assert_eq!(cookie.contains("; Secure"), expected, "{origin}: {cookie}");
        }
    }

    #[test]
    fn other_credentials_decide_alone() {
        let sessions = WebSessions::default();
        let mut shown = showing(&opened(&sessions, "first"));
        assert!(sessions.shown("admin", &shown).is_some());
        let other = HeaderValue::from_static("Bearer other");
        shown.headers.insert(AUTHORIZATION, other);
        assert!(sessions.shown("admin", &shown).is_none());
        let basic = request(Method::POST, PATH, &[(AUTHORIZATION, "Basic YTpi")]);
        let refused = sessions.answer(&basic, false, None).expect("answered");
        assert_eq!(refused.head().status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn the_oldest_login_of_a_token_gives_way_before_those_of_others() {
        let sessions = WebSessions::default();
        let others = opened(&sessions, "other");
        let first = opened(&sessions, "first");
        let end = sessions
            .shown("admin", &showing(&first))
            .expect("known")
            .end;
        for _ in 1..LOGINS_OF_TOKEN_MAX {
            opened(&sessions, "first");
        }
        assert!(knows(&sessions, &first));
        let newest = opened(&sessions, "first");
        assert!(!knows(&sessions, &first) && knows(&sessions, &newest));
        assert!(end.until_ended().now_or_never().is_some(), "streams go on");
        for _ in 0..LOGINS_MAX {
            opened(&sessions, "first");
        }
        assert!(knows(&sessions, &others));
        assert_eq!(sessions.logins().len(), LOGINS_OF_TOKEN_MAX + 1);
        for number in 0..LOGINS_MAX {
            opened(&sessions, &number.to_string());
        }
        assert!(!knows(&sessions, &others));
        assert_eq!(sessions.logins().len(), LOGINS_MAX);
    }
}
