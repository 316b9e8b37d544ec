//! Logins at the web UI in two halves: `POST /api/login` with a token opens one, `DELETE /api/login` ends it.
//!
//! The first half is a cookie with a random id, `HttpOnly` and `SameSite=Strict`: no script reads it, and no other site's request
//! has it. But browsers send cookies to all ports of a host, so the server of a tool there may see it. The second half is a
//! random value in the answer, which the page stores for its own scheme, host and port, and sends in the header [`HALF`].
//! A half alone is no credential.
//!
//! A request with both halves, at a listener that takes `Basic`, is judged as if a browser had added the token as its password:
//! the same rules, the same proof against other pages, and the end of the token ends the login. Logins are kept in memory
//! alone, and end with the process. Streams of a login end with it.

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

/// The path of logins.
pub(crate) const PATH: &str = "/api/login";
/// Header with the page's half of a login, in lower case.
pub(crate) const HALF: HeaderName = HeaderName::from_static("x-tooldock-login");
/// Name of the cookie.
const NAME: &str = "tooldock-session";
/// Maximum duration of a login.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of logins. The oldest gives way.
const LOGINS_MAX: usize = 1000;
/// Maximum number of logins by the same token, so that no token can end the logins of all others. The oldest gives way.
const LOGINS_OF_TOKEN_MAX: usize = 16;
/// Number of random bytes of each half.
const HALF_BYTES: usize = 32;

/// The open logins of this process.
#[derive(Default)]
pub(crate) struct WebSessions {
    /// The logins by the id of each cookie.
    open: Mutex<HashMap<Box<str>, Login>>,
    /// True once a session was opened, so that other requests cost no look.
    are_any: AtomicBool,
}

struct Login {
    token: Secret,
    /// Duration of the login.
    lifetime: Duration,
    /// The digest of `token`.
    digest: TokenDigest,
    /// The digest of the page's half.
    half: TokenDigest,
    since: Instant,
    /// Dropped with the login, which ends its streams.
    ended: watch::Sender<()>,
}

/// The two halves of a login: the cookie's and the page's.
struct Halves {
    /// The value of the cookie.
    id: String,
    /// The value of the header [`HALF`].
    half: String,
}

/// The login that a request shows.
#[derive(Debug)]
pub(crate) struct ShownLogin {
    /// The value of `Authorization` that the login stands for.
    pub(crate) authorization: HeaderValue,
    pub(crate) end: LoginEnd,
}

/// The end of a login, for the streams that it has opened.
#[derive(Debug)]
pub(crate) struct LoginEnd {
    since: Instant,
    lifetime: Duration,
    ended: watch::Receiver<()>,
}

impl LoginEnd {
    /// The time until the login ends by itself.
    pub(crate) fn left(&self) -> Duration {
        self.lifetime.saturating_sub(self.since.elapsed())
    }

    /// Resolves when the login has ended: by a log-out, or because it gave way to a newer one.
    pub(crate) fn come(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        // Nothing is ever sent: the only news is that the login is gone.
        async move { while ended.changed().await.is_ok() {} }
    }
}

impl fmt::Debug for WebSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSessions").finish_non_exhaustive()
    }
}

impl WebSessions {
    /// Returns true if a session was opened since the start.
    pub(crate) fn are_any(&self) -> bool {
        self.are_any.load(Ordering::Relaxed)
    }

    /// The login of a request that shows both halves of one, and no credentials of its own. The cookie alone opens the page,
    /// which a browser requests before any script can add a header; the page has the same bytes for every user. `user`:
    /// the name that the listener asks browsers for.
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

    /// Answers a request for [`PATH`] that the filters have admitted; `None` for another path or method. `is_tls`: the
    /// connection is encrypted. The cookie is for encrypted connections alone then, and behind a proxy that ends TLS, where
    /// the browser names the page's origin with `https`. `left`: the time until the credential of the request ends, which
    /// ends the login, too.
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
                let Some(Halves { id, half }) = self.open(token, lifetime) else {
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

    /// Opens a session for a token.
    fn open(&self, token: Secret, lifetime: Duration) -> Option<Halves> {
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
        Some(Halves { id, half })
    }

    /// Ends the login of which a request shows both halves. With the cookie alone, other servers of the host could end it.
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

    /// Returns true if the headers have the page's half of this login.
    fn is_completed_by(&self, headers: &HeaderMap) -> bool {
        let half = headers.get(HALF);
        half.is_some_and(|half| TokenDigest::of(half.as_bytes()).matches(&self.half))
    }
}

/// Removes the oldest of the logins that `counts` chooses, if there are `max` of them.
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

/// A new random half, in letters, digits, `-` and `_`.
pub(crate) fn random() -> Option<String> {
    let mut bytes = [0; HALF_BYTES];
    getrandom::fill(&mut bytes).ok()?;
    Some(URL_SAFE_NO_PAD.encode(bytes))
}

/// Returns true for a request that gets the page itself.
fn asks_for_page(request: &Parts) -> bool {
    matches!(request.method, Method::GET | Method::HEAD) && request.uri.path() == "/"
}

/// Returns true if the cookies of a page are for encrypted connections alone.
pub(crate) fn is_secure(headers: &HeaderMap, is_tls: bool) -> bool {
    is_tls || is_from_https(headers)
}

/// Returns true if a page that was loaded by https sends the request.
fn is_from_https(headers: &HeaderMap) -> bool {
    let origin = headers.get(ORIGIN);
    origin.is_some_and(|origin| origin.as_bytes().starts_with(b"https://"))
}

/// The id that a request's cookie shows.
pub(crate) fn shown_id(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter();
    let cookies = cookies.filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(NAME)?.strip_prefix('='))
}

/// The bearer token of a request.
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
    // Ids are letters, digits, `-` and `_`.
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

    fn opened(sessions: &WebSessions, token: &str) -> Halves {
        opened_for(sessions, token, LIFETIME)
    }

    fn opened_for(sessions: &WebSessions, token: &str, lifetime: Duration) -> Halves {
        let token = Secret::new(token.to_owned());
        sessions.open(token, lifetime).expect("opened")
    }

    /// A request of the page that shows a login.
    fn showing(Halves { id, half }: &Halves) -> Parts {
        let cookie = format!("a=b; {NAME}={id}");
        request(
            Method::GET,
            "/api/me",
            &[(COOKIE, &*cookie), (HALF, half.as_str())],
        )
    }

    fn knows(sessions: &WebSessions, login: &Halves) -> bool {
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
        let mut end = Box::pin(found.end.come());
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
        assert!(end.come().now_or_never().is_some(), "streams go on");
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
