//! Logins at the web UI that a session cookie carries: `POST /api/login` with a token opens one, `DELETE /api/login` ends it.
//!
//! The cookie is a random id. A request that shows it, at a listener that takes `Basic`, is judged as if a browser had added the
//! token as its password: the same rules, the same proof against other pages, and the end of the token ends the login. The
//! cookie is `HttpOnly` and `SameSite=Strict`, so no script reads it and no other site's request has it. Logins are kept in
//! memory alone, and end with the process.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::header::{AUTHORIZATION, CACHE_CONTROL, COOKIE, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tooldock_base::secret::Secret;
use tooldock_upstream::reply::{Head, Reply};

/// The path of logins.
pub(crate) const PATH: &str = "/api/login";
/// Name of the cookie.
const NAME: &str = "tooldock-session";
/// Duration of a login.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of logins. The oldest gives way.
const LOGINS_MAX: usize = 1000;
/// Number of random bytes of an id.
const ID_BYTES: usize = 32;

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
    since: Instant,
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

    /// The value of `Authorization` for a request that shows an open session and no credentials of its own. `user`: the name
    /// that the listener asks browsers for.
    pub(crate) fn authorization(&self, user: &str, headers: &HeaderMap) -> Option<HeaderValue> {
        if headers.contains_key(AUTHORIZATION) {
            return None;
        }
        let id = shown_id(headers)?;
        let now = Instant::now();
        let logins = self.logins();
        let login = logins.get(id).filter(|it| it.is_open(now))?;
        let pair = format!("{user}:{}", login.token.expose());
        drop(logins);
        let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair))).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// Answers a request for [`PATH`] that the filters have admitted; `None` for another path or method. `is_tls`: the
    /// cookie is for encrypted connections alone.
    pub(crate) fn answer(&self, request: &Parts, is_tls: bool) -> Option<Reply> {
        if request.uri.path() != PATH {
            return None;
        }
        let secure = if is_tls { "; Secure" } else { "" };
        match request.method {
            Method::POST => {
                let Some(token) = shown_token(&request.headers) else {
                    let message = "Log in with `Authorization: Bearer <token>`.";
                    return Some(refusal(StatusCode::BAD_REQUEST, "invalid_request", message));
                };
                let Some(id) = self.open(token) else {
                    let message = "No random numbers are available; try again.";
                    let status = StatusCode::SERVICE_UNAVAILABLE;
                    return Some(refusal(status, "internal_error", message));
                };
                let seconds = LIFETIME.as_secs();
                let cookie = format!(
                    "{NAME}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"
                );
                Some(done(&format!("{{\"seconds\":{seconds}}}"), &cookie))
            }
            Method::DELETE => {
                if let Some(id) = shown_id(&request.headers) {
                    self.logins().remove(id);
                }
                let cookie =
                    format!("{NAME}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0{secure}");
                Some(done("{\"success\":true}", &cookie))
            }
            _ => None,
        }
    }

    /// Opens a session for a token. Returns its id.
    fn open(&self, token: Secret) -> Option<String> {
        let mut bytes = [0; ID_BYTES];
        getrandom::fill(&mut bytes).ok()?;
        let id = URL_SAFE_NO_PAD.encode(bytes);
        let since = Instant::now();
        let mut logins = self.logins();
        logins.retain(|_, login| login.is_open(since));
        if logins.len() >= LOGINS_MAX {
            let oldest = logins.iter().min_by_key(|(_, login)| login.since);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                logins.remove(&oldest);
            }
        }
        self.are_any.store(true, Ordering::Relaxed);
        logins.insert(id.as_str().into(), Login { token, since });
        Some(id)
    }

    fn logins(&self) -> MutexGuard<'_, HashMap<Box<str>, Login>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Login {
    fn is_open(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < LIFETIME
    }
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

fn done(body: &str, cookie: &str) -> Reply {
    let mut head = Head::json(StatusCode::OK).with(
        CACHE_CONTROL,
        HeaderValue::from_static("no-store, no-transform"),
    );
    // Ids are letters, digits, `-` and `_`.
    if let Ok(mut cookie) = HeaderValue::from_str(cookie) {
        cookie.set_sensitive(true);
        head = head.with(SET_COOKIE, cookie);
    }
    let body = body.to_owned().into();
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
    use super::*;

    fn request(method: Method, name: http::HeaderName, value: &str) -> Parts {
        let request = http::Request::builder().method(method).uri(PATH);
        let request = request.header(name, value).body(()).expect("a request");
        request.into_parts().0
    }

    fn cookie_of(reply: &Reply) -> String {
        let headers = &reply.head().headers;
        let found = headers.iter().find(|(name, _)| *name == SET_COOKIE);
        let (_, value) = found.expect("a cookie");
        value.to_str().expect("text").to_owned()
    }

    #[test]
    fn a_cookie_stands_for_its_token_until_the_login_ends() {
        let sessions = WebSessions::default();
        let login = request(Method::POST, AUTHORIZATION, "Bearer t0ken");
        let cookie = cookie_of(&sessions.answer(&login, true).expect("answered"));
        for attribute in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Secure"] {
            assert!(cookie.contains(attribute), "{cookie}");
        }
        assert!(!cookie.contains("t0ken"));
        let (pair, _) = cookie.split_once(';').expect("attributes");
        let shown = request(Method::GET, COOKIE, &format!("a=b; {pair}"));
        let value = sessions
            .authorization("admin", &shown.headers)
            .expect("known");
        assert_eq!(value, format!("Basic {}", STANDARD.encode("admin:t0ken")));
        assert!(value.is_sensitive());
        let logout = request(Method::DELETE, COOKIE, pair);
        let ended = cookie_of(&sessions.answer(&logout, false).expect("answered"));
        assert!(
            ended.contains("Max-Age=0") && !ended.contains("Secure"),
            "{ended}"
        );
        assert_eq!(sessions.authorization("admin", &shown.headers), None);
    }

    #[test]
    fn other_credentials_decide_alone_and_the_oldest_login_gives_way() {
        let sessions = WebSessions::default();
        let first = sessions
            .open(Secret::new("first".to_owned()))
            .expect("opened");
        let mut shown = request(Method::GET, COOKIE, &format!("{NAME}={first}")).headers;
        assert!(sessions.authorization("admin", &shown).is_some());
        shown.insert(AUTHORIZATION, HeaderValue::from_static("Bearer other"));
        assert_eq!(sessions.authorization("admin", &shown), None);
        shown.remove(AUTHORIZATION);
        for _ in 0..LOGINS_MAX {
            sessions
                .open(Secret::new("more".to_owned()))
                .expect("opened");
        }
        assert_eq!(sessions.authorization("admin", &shown), None);
        assert_eq!(sessions.logins().len(), LOGINS_MAX);
        let guessed = request(Method::GET, COOKIE, &format!("{NAME}=guessed"));
        assert_eq!(sessions.authorization("admin", &guessed.headers), None);
        let basic = request(Method::POST, AUTHORIZATION, "Basic YTpi");
        let refused = sessions.answer(&basic, false).expect("answered");
        assert_eq!(refused.head().status, StatusCode::BAD_REQUEST);
    }
}
