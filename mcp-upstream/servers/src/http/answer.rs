//! Interpretation of a backend's response to a request: the kind of its body, and its faults.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_base::answers::{AnswerAccount, AnswerClaim, COUNTED_FROM, NoAnswerRoom};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::jsonrpc::plain::call_number;
use tooldock_protocol::jsonrpc::{self, Message};
use tooldock_sessions::call_error::retry_seconds;
use tooldock_workers::remote::{BackendId, RemoteServer};

use super::media::{MediaKind, media_kind};
use super::port::{BackendResponse, BodyError, ResponseBody, SendError, SendErrorKind};
use super::session_words::{REFUSAL_MAX, SessionWords, session_words};

/// Retry delay for clients if the backend sends none.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum retry delay that is accepted from a backend, in seconds.
const RETRY_MAX: u64 = 3600;

/// Failure of a request that got no response.
#[derive(Debug, Clone)]
pub(super) struct RequestFailure {
    pub(super) error: CallError,
    /// True if the server did not begin to process the request.
    pub(super) is_unsent: bool,
    /// True if the server no longer knows the session.
    pub(super) is_session_gone: bool,
}

/// Reason why a body was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyReadError {
    /// The body is too large. Contains the size that was read or announced, in bytes.
    TooLarge(u64),
    /// All buffered responses together have reached their memory limit.
    NoRoom(NoAnswerRoom),
    /// The connection was lost in the middle of the body.
    Cut(BodyError),
}

/// Reads a body to its end, or fails as soon as `fits` returns false for the size so far. The bytes are added to `answers`, the
/// total over all responses.
///
/// # Errors
///
/// [`BodyReadError`].
pub async fn body(
    mut response: BackendResponse,
    fits: impl Fn(usize) -> bool,
    answers: Option<&AnswerAccount>,
) -> Result<Bytes, BodyReadError> {
    let announced = response.headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if let Some(size) = announced
        && !usize::try_from(size).is_ok_and(&fits)
    {
        return Err(BodyReadError::TooLarge(size));
    }
    let first = match response.body.chunk().await {
        Ok(first) => first.unwrap_or_default(),
        Err(error) => return Err(BodyReadError::Cut(error)),
    };
    let mut whole: Option<BytesMut> = None;
    let mut counted = CountedBody::new(answers);
    let mut size = first.len();
    loop {
        if !fits(size) {
            return Err(BodyReadError::TooLarge(size as u64));
        }
        match response.body.chunk().await {
            Ok(None) => return Ok(whole.map_or(first, BytesMut::freeze)),
            Ok(Some(piece)) => {
                size += piece.len();
                counted.has(size).map_err(BodyReadError::NoRoom)?;
                whole
                    .get_or_insert_with(|| BytesMut::from(&first[..]))
                    .extend_from_slice(&piece);
            }
            Err(error) => return Err(BodyReadError::Cut(error)),
        }
    }
}

/// Guard that adds the bytes of a large body to the total of all buffered responses, and subtracts them when it is dropped.
pub struct CountedBody<'a> {
    answers: Option<&'a AnswerAccount>,
    claim: Option<AnswerClaim>,
    counted: usize,
}

impl<'a> CountedBody<'a> {
    /// Starts a count of nothing, in the account of the call; `None` for a body that is not counted.
    #[inline]
    pub fn new(answers: Option<&'a AnswerAccount>) -> Self {
        Self {
            answers,
            claim: None,
            counted: 0,
        }
    }

    /// Records that the body now has this size in bytes.
    ///
    /// # Errors
    ///
    /// [`NoAnswerRoom`] if all buffered responses together would exceed their limit.
    pub fn has(&mut self, size: usize) -> Result<(), NoAnswerRoom> {
        let Some(answers) = self.answers.filter(|_| size >= COUNTED_FROM) else {
            return Ok(());
        };
        let more = size.saturating_sub(self.counted);
        match &self.claim {
            Some(claim) => claim.grow(more)?,
            None => self.claim = Some(answers.claim(more)?),
        }
        self.counted = size;
        Ok(())
    }
}

/// Returns true if a body is the response to the request with this id.
pub(super) fn answers(body: &[u8], id: u64) -> bool {
    answered(body).is_some_and(|answered| call_number(answered) == Some(id))
}

/// The id, as raw JSON, of the request to which a body is the response.
fn answered(body: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(body).ok()?;
    match jsonrpc::message(text.trim()) {
        Ok(Message::Response { id, .. }) => Some(id),
        _ => None,
    }
}

/// Converts an error without an id, or with the id `null`, to the response to the only request of its HTTP exchange, whose raw id
/// is `id`. `None` for other bodies.
pub fn error_of_request(body: &[u8], id: impl fmt::Display) -> Option<Bytes> {
    use serde::de::IgnoredAny;
    #[derive(Deserialize)]
    struct AnswerMembers<'a> {
        id: Option<IgnoredAny>,
        method: Option<IgnoredAny>,
        result: Option<IgnoredAny>,
        #[serde(borrow)]
        error: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct ErrorMembers<'a> {
        #[serde(rename = "code")]
        _code: i64,
        #[serde(borrow, rename = "message")]
        _message: Cow<'a, str>,
    }
    if body.len() > REFUSAL_MAX || memchr::memmem::find(body, b"\"error\"").is_none() {
        return None;
    }
    let answer: AnswerMembers<'_> = serde_json::from_slice(body).ok()?;
    if answer.id.is_some() || answer.method.is_some() || answer.result.is_some() {
        return None;
    }
    let error = answer.error.get();
    serde_json::from_str::<ErrorMembers<'_>>(error).ok()?;
    Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into())
}

/// State of a session at a backend, judged by the backend's response to one of the session's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionVerdict {
    /// The backend knows the session. The response is about the request alone.
    Known,
    /// The backend does not know the session, and did not process the request.
    Unknown,
    /// The backend does not know the session, but its response has the request's id, so it may have begun to process the
    /// request.
    Refused {
        /// True if the error's text mentions the session. Otherwise the error may be about the request.
        in_words: bool,
    },
}

/// Decides whether a session still exists, by the status and the body of a response to one of its requests. A 404 means that the
/// backend does not know the session, unless the body is an error about the method or its params. After a 400, a 410 or such an
/// error, the session counts as unknown only if the error's text states it; after a 200, only if the error also has the code
/// `SESSION_NOT_FOUND` or the stable code `NOT_INITIALIZED`. `is_own` returns true for the raw id of the request.
pub fn session_verdict(
    status: StatusCode,
    body: &[u8],
    is_own: impl FnOnce(&str) -> bool,
) -> SessionVerdict {
    use tooldock_protocol::version::code::{INVALID_PARAMS, METHOD_NOT_FOUND};
    #[derive(Default, Deserialize)]
    struct ErrorBody {
        #[serde(default)]
        error: serde_json::Value,
    }
    let may_say = match status {
        StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST | StatusCode::GONE => true,
        StatusCode::OK => may_deny_session(body),
        _ => false,
    };
    if !may_say {
        return SessionVerdict::Known;
    }
    let said = match body.len() <= REFUSAL_MAX {
        true => session_words(body),
        false => SessionWords::None,
    };
    let error = serde_json::from_slice::<ErrorBody>(body).unwrap_or_default();
    let code = error.error.get("code").and_then(serde_json::Value::as_i64);
    let about_request = [METHOD_NOT_FOUND, INVALID_PARAMS].map(|it| Some(i64::from(it)));
    let is_said = said == SessionWords::Denied;
    let needs_words = status != StatusCode::NOT_FOUND || about_request.contains(&code);
    let is_uninitialized = error.error.pointer("/data/code") == Some(&NOT_INITIALIZED.into());
    let has_other_code =
        status == StatusCode::OK && code != Some(SESSION_NOT_FOUND) && !is_uninitialized;
    if (needs_words && !is_said) || has_other_code {
        return SessionVerdict::Known;
    }
    match answered(body).is_some_and(is_own) {
        true => SessionVerdict::Refused {
            in_words: said != SessionWords::None,
        },
        false => SessionVerdict::Unknown,
    }
}

/// The error code by which servers refuse an unknown session.
const SESSION_NOT_FOUND: i64 = -32001;

/// Stable code (`error.data.code`) with which a ToolDock gateway refuses requests of a session before
/// `notifications/initialized`.
const NOT_INITIALIZED: &str = "not_initialized";

/// Returns true if a response with status 200 is short and contains an error code for a session that cannot be used.
fn may_deny_session(body: &[u8]) -> bool {
    let has = |code: &str| memchr::memmem::find(body, code.as_bytes()).is_some();
    body.len() <= REFUSAL_MAX && (has("-32001") || has(NOT_INITIALIZED))
}

/// Reads the beginning of a refusal's body, so that it can be searched for an error about the session.
pub async fn refusal_words(body: &mut dyn ResponseBody) -> Result<BytesMut, BodyError> {
    let mut read = BytesMut::new();
    while read.len() < REFUSAL_MAX
        && let Some(piece) = body.chunk().await?
    {
        read.extend_from_slice(&piece);
    }
    Ok(read)
}

/// Returns true if the response to `server/discover` may come from a server or a front end that does not know the method.
/// Unknown methods are refused with almost any status; only after 401 (missing credentials) and 429 (a limit) would
/// `initialize` fail as well.
pub(super) fn knows_no_such_question(response: &BackendResponse) -> bool {
    let kind = || media_kind(&response.headers);
    match response.status.as_u16() {
        202 | 204 => !matches!(kind(), MediaKind::Json | MediaKind::Events),
        200..=299 => kind() == MediaKind::Other,
        401 | 429 => false,
        _ => true,
    }
}

/// Returns true if a backend that did not answer `server/discover` may not support the method: the backend was reached, but
/// closed the connection or sent something other than HTTP.
pub(super) fn may_be_no_such_question(error: &SendError) -> bool {
    let broke_off = matches!(error.kind, SendErrorKind::Closed | SendErrorKind::Malformed);
    broke_off && !error.unsent
}

/// The JSON-RPC response of a server that does not know the method.
pub(super) fn unknown_method(id: u64) -> Bytes {
    let code = tooldock_protocol::version::code::METHOD_NOT_FOUND;
    let error = format!(r#"{{"code":{code},"message":"no such method"}}"#);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into()
}

/// Returns true if the status of the response to `initialize` may be that of a server that speaks HTTP+SSE of 2024-11-05.
pub(super) fn may_be_sse_only(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
    )
}

/// Creates the error for a failure of a namespace's server. `what` is worded to follow the server's name. The text of the backend
/// is only logged, and not sent to clients.
pub(super) fn failed(
    server: &RemoteServer,
    backend: &BackendId,
    code: CallErrorCode,
    what: &str,
) -> RequestFailure {
    let what = server.without_secrets(what);
    let message = format!("the server of namespace {} {what}", server.name);
    RequestFailure {
        error: CallError::new(code, message)
            .caused_by(code.as_str(), format!("{backend}: {what}"))
            .retry_after(RETRY),
        is_unsent: false,
        is_session_gone: false,
    }
}

/// The error for a response whose status shows that the backend refused the request.
pub(super) fn refused(
    server: &RemoteServer,
    backend: &BackendId,
    status: StatusCode,
    headers: &HeaderMap,
) -> RequestFailure {
    let number = status.as_u16();
    let mut passed = server.spec.headers.pass.iter();
    let whose = match passed.any(|name| name == "authorization") {
        true => "client's own credentials, or missed them",
        false => "gateway's own credentials",
    };
    let again = retry_after(headers).unwrap_or(RETRY);
    let (code, what) = match number {
        401 | 403 => (
            CallErrorCode::WorkerUnavailable,
            format!(
                "refused the {whose} (HTTP {number}). Ask whoever operates the gateway to check the key credentials of this \
                 server"
            ),
        ),
        429 => (
            CallErrorCode::RateLimited,
            format!(
                "takes no more requests at the moment (HTTP 429). Try again in {} s",
                retry_seconds(again)
            ),
        ),
        503 => (
            CallErrorCode::WorkerUnavailable,
            format!(
                "is not available at the moment (HTTP 503). Try again in {} s",
                retry_seconds(again)
            ),
        ),
        504 => (
            CallErrorCode::ExecutionTimeout,
            "was not answered in time behind its own front end (HTTP 504)".to_owned(),
        ),
        300..=399 => (
            CallErrorCode::WorkerUnavailable,
            format!(
                "answered with a redirect (HTTP {number}){}, which is not followed",
                redirect_target(headers)
            ),
        ),
        _ => (
            CallErrorCode::WorkerUnavailable,
            format!("refused the request (HTTP {number})"),
        ),
    };
    let mut failed = failed(server, backend, code, &what);
    failed.error.retry_after = match number {
        429 | 503 => Some(again),
        401 | 403 | 300..=399 => None,
        _ => Some(RETRY),
    };
    failed
}

/// Text for an error about a redirect: the redirect's target, to follow the words "a redirect". Empty if there is no target. The
/// HTTP client has removed secrets from it.
#[inline]
pub fn redirect_target(headers: &HeaderMap) -> String {
    let target = headers
        .get(header::LOCATION)
        .and_then(|it| it.to_str().ok());
    target.map_or_else(String::new, |target| format!(" to {target}"))
}

/// Reads the header `Retry-After`, which contains seconds or a date. The delay until a date is computed from the response's own
/// `Date` header, so that the clocks of gateway and backend need not agree.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| Some(headers.get(name)?.to_str().ok()?.trim());
    let value = text(header::RETRY_AFTER)?;
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = |text| httpdate::parse_http_date(text).ok();
            let now = text(header::DATE).and_then(date);
            let until = date(value)?.duration_since(now.unwrap_or_else(SystemTime::now));
            // A date in the past counts as the shortest delay.
            until.unwrap_or(RETRY).max(RETRY)
        }
    };
    Some(wait.min(Duration::from_secs(RETRY_MAX)))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::super::testing::text;
    use super::*;

    #[test]
    fn every_status_but_that_of_missing_credentials_and_of_a_limit_may_mean_an_unknown_question() {
        for status in 300..600 {
            let found = knows_no_such_question(&text(status, "no"));
            assert_eq!(found, !matches!(status, 401 | 429), "{status}");
        }
    }

    #[test]
    fn an_error_without_an_id_is_that_of_the_request() {
        let error = r#"{"code":-32602,"message":"no \"x\"","data":[1]}"#;
        let own = format!(r#"{{"jsonrpc":"2.0","id":"a","error":{error}}}"#);
        for (body, is_own) in [
            (r#"{"jsonrpc":"2.0","id":null,"error":E}"#, true),
            (r#"{"jsonrpc":"2.0","error":E}"#, true),
            (r#" {"error":E, "result":null} "#, true),
            (r#"{"jsonrpc":"2.0","id":1,"error":E}"#, false),
            (r#"{"method":"x","error":E}"#, false),
            (r#"{"result":{},"error":E}"#, false),
            (r#"{"error":"unknown"}"#, false),
            (r#"{"error":{"code":1}}"#, false),
            (r#"{"error":null}"#, false),
        ] {
            let found = error_of_request(body.replace('E', error).as_bytes(), "\"a\"");
            assert_eq!(found.as_deref(), is_own.then_some(own.as_bytes()), "{body}");
        }
    }

    #[test]
    fn a_server_says_in_seconds_or_by_a_date_when_to_come_back() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (value, seconds) in [
            ("17", Some(17)),
            ("99999999", Some(RETRY_MAX)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(1)),
            ("soon", None),
        ] {
            let headers = [(header::RETRY_AFTER, value), (header::DATE, date)];
            let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
            let found = retry_after(&headers.into_iter().collect());
            assert_eq!(found, seconds.map(Duration::from_secs), "{value}");
        }
    }
}
