//! Adapts token requests and their responses to endpoints that deviate from RFC 6749.
//!
//! A client sends its secret in the header `Authorization` or in the body. Some endpoints accept only one of these forms and do
//! not declare which. Therefore, if the endpoint refuses the client, the other form is tried once, and stored if it works.
//!
//! Responses are read leniently and rewritten in the form of RFC 6749 for the library that parses them. Accepted deviations are
//! lifetimes as texts or fractions, scopes as lists, a missing `token_type`, forms in place of JSON, and errors with status 200.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use oauth2::url::form_urlencoded;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tooldock_base::secret::Secret;
use tooldock_workers::remote::ClientAuth;

/// Maximum of a number of seconds, about thirty million years. Larger numbers are reduced to it.
const SECONDS_MAX: f64 = 1e15;

/// The media type of form-encoded request bodies.
const FORM: &str = "application/x-www-form-urlencoded";

/// Returns true if the request asks a token endpoint for a token.
pub(super) fn is_token_request(request: &Request<Vec<u8>>) -> bool {
    *request.method() == Method::POST
        && media(request.headers()) == FORM
        && pairs(request.body()).any(|(key, _)| key == "grant_type")
}

fn media(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let media = value.unwrap_or_default().split(';').next();
    media.unwrap_or_default().trim().to_ascii_lowercase()
}

pub(super) fn pairs(form: &[u8]) -> impl Iterator<Item = (String, String)> {
    form_urlencoded::parse(form).into_owned()
}

/// The client of a token request, and the form in which it sends its secret.
pub(super) struct TokenClient {
    pub(super) id: String,
    secret: String,
    pub(super) shown: ClientAuth,
}

impl TokenClient {
    /// Reads the client's id and secret from a token request. `None` if the client sends no secret.
    pub(super) fn of(request: &Request<Vec<u8>>) -> Option<Self> {
        if let Some(header) = request.headers().get(AUTHORIZATION) {
            let basic = header.to_str().ok()?.strip_prefix("Basic ")?;
            let basic = String::from_utf8(BASE64_STANDARD.decode(basic).ok()?).ok()?;
            let (id, secret) = basic.split_once(':')?;
            return Some(Self {
                id: decoded(id),
                secret: decoded(secret),
                shown: ClientAuth::Basic,
            });
        }
        let find = |wanted| pairs(request.body()).find(|(key, _)| key == wanted);
        let ((_, id), (_, secret)) = (find("client_id")?, find("client_secret")?);
        Some(Self {
            id,
            secret,
            shown: ClientAuth::Post,
        })
    }

    /// Returns the request with the client's secret in the given form. `None` if the secret cannot be the value of a header.
    pub(super) fn show(
        &self,
        request: &Request<Vec<u8>>,
        form: ClientAuth,
    ) -> Option<Request<Vec<u8>>> {
        let mut body = form_urlencoded::Serializer::new(String::new());
        let of_client = |key: &str| key == "client_id" || key == "client_secret";
        body.extend_pairs(pairs(request.body()).filter(|(key, _)| !of_client(key)));
        let mut authorization = None;
        match form {
            ClientAuth::Basic => {
                let basic = format!("Basic {}", basic(&self.id, &self.secret));
                let mut value = HeaderValue::from_str(&basic).ok()?;
                value.set_sensitive(true);
                authorization = Some(value);
            }
            ClientAuth::Post => {
                body.append_pair("client_id", &self.id);
                body.append_pair("client_secret", &self.secret);
            }
        }
        let mut shown = Request::new(body.finish().into_bytes());
        *shown.method_mut() = request.method().clone();
        *shown.uri_mut() = request.uri().clone();
        *shown.headers_mut() = request.headers().clone();
        shown.headers_mut().remove(AUTHORIZATION);
        if let Some(value) = authorization {
            shown.headers_mut().insert(AUTHORIZATION, value);
        }
        Some(shown)
    }
}

/// The value of a client's `Basic` credentials. Id and secret are each form-encoded first (RFC 6749 §2.3.1).
pub(super) fn basic(id: &str, secret: &str) -> String {
    BASE64_STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)))
}

/// Encodes a text as a value in a form-encoded request body.
pub(super) fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

fn decoded(text: &str) -> String {
    let pair = format!("x={text}");
    let decoded = pairs(pair.as_bytes()).next();
    decoded.map_or_else(|| text.to_owned(), |(_, value)| value)
}

/// The alternative to `form` for sending a client's secret: the body instead of the header, or the header instead of the body.
pub(super) fn other(form: ClientAuth) -> ClientAuth {
    match form {
        ClientAuth::Basic => ClientAuth::Post,
        ClientAuth::Post => ClientAuth::Basic,
    }
}

/// Returns true if the endpoint refuses the client's id and secret, or did not find them. Endpoints that read only one form
/// report a request in the other form as invalid, or its client as unauthorized.
pub(super) fn refuses_client(answer: &Response<Vec<u8>>) -> bool {
    const REFUSALS: [&str; 3] = ["invalid_client", "invalid_request", "unauthorized_client"];
    let error = members(answer).and_then(|it| it.get("error")?.as_str().map(str::to_owned));
    match (answer.status(), error) {
        (StatusCode::UNAUTHORIZED, Some(error)) => error != "invalid_grant",
        (_, Some(error)) => REFUSALS.contains(&&*error),
        (StatusCode::UNAUTHORIZED, None) => true,
        _ => false,
    }
}

/// The parameters in a token endpoint's response, whose body may be JSON or a form. `None` if it is neither.
fn members(answer: &Response<Vec<u8>>) -> Option<Map<String, Value>> {
    let body = answer.body().strip_prefix(b"\xef\xbb\xbf");
    let body = body.unwrap_or(answer.body());
    if let Some(members) = json_members(body) {
        return Some(members);
    }
    if serde_json::from_slice::<IgnoredAny>(body).is_ok() {
        return None;
    }
    let text = std::str::from_utf8(body).ok()?.trim();
    let is_form = text.bytes().all(|byte| byte.is_ascii_graphic()) && text.contains('=');
    let members: Map<_, _> = pairs(text.as_bytes())
        .map(|(key, value)| (key, Value::String(value)))
        .filter(|_| is_form)
        .collect();
    ["access_token", "error"]
        .iter()
        .any(|key| members.contains_key(*key))
        .then_some(members)
}

/// Function that prepares a text from a token endpoint for logs and errors: it removes secrets and shortens the text. The second
/// argument contains secrets from the response itself.
pub(super) type ResponseSanitizer<'a> = dyn Fn(&str, &[Secret]) -> String + Sync + 'a;

/// The fields of a JSON object. Fields that cannot be read, such as numbers out of range, are omitted.
fn json_members(json: &[u8]) -> Option<Map<String, Value>> {
    let members = serde_json::from_slice::<BTreeMap<String, Box<RawValue>>>(json).ok()?;
    let members = members.into_iter();
    let read = members.filter_map(|(key, raw)| Some((key, serde_json::from_str(raw.get()).ok()?)));
    Some(read.collect())
}

/// Rewrites the response of a token endpoint in the form of RFC 6749: a token with status 200, or an error with another status.
///
/// # Errors
///
/// When the response is neither a token nor an error. The message describes the response without its body.
pub(super) fn normalized(
    answer: Response<Vec<u8>>,
    words: &ResponseSanitizer<'_>,
) -> Result<Response<Vec<u8>>, String> {
    let status = answer.status();
    let what = || {
        let media = match media(answer.headers()) {
            media if media.is_empty() => "no media type".to_owned(),
            media => media,
        };
        format!(
            "the authorization server answered with HTTP {} ({media})",
            status.as_u16()
        )
    };
    let Some(mut members) = members(&answer) else {
        return Err(match answer.body().is_empty() {
            true => format!("{} and an empty body, which is no token", what()),
            false => format!("{}, which is no token", what()),
        });
    };
    let has_token = members.get("access_token").and_then(Value::as_str);
    let has_token = has_token.is_some_and(|token| !token.is_empty());
    let (status, body) = match has_token && status.is_success() {
        true => {
            mend(&mut members);
            (StatusCode::OK, members)
        }
        false => {
            let Some(error) = error(&members, words) else {
                return Err(match status.is_success() {
                    true => format!("{} without an access_token", what()),
                    false => format!("{}, which is no token", what()),
                });
            };
            let failed = if status.is_success() {
                StatusCode::BAD_REQUEST
            } else {
                status
            };
            (failed, error)
        }
    };
    let mut normalized = Response::new(Value::Object(body).to_string().into_bytes());
    *normalized.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    normalized.headers_mut().insert(CONTENT_TYPE, json);
    Ok(normalized)
}

/// Rewrites the parameters of a token response in the form that the OAuth library reads. Parameters that cannot be read are
/// removed.
fn mend(token: &mut Map<String, Value>) {
    if !token.get("token_type").is_some_and(Value::is_string) {
        token.insert("token_type".into(), "bearer".into());
    }
    let lifetime = token.get("expires_in").and_then(seconds);
    let lifetime = lifetime.or_else(|| {
        let bearer = token.get("access_token")?.as_str()?;
        until_expiry(bearer)
    });
    match lifetime {
        Some(lifetime) => token.insert("expires_in".into(), lifetime.into()),
        None => token.remove("expires_in"),
    };
    let scope = match token.get("scope") {
        Some(Value::String(scope)) => Some(scope.clone()),
        Some(Value::Array(scopes)) => {
            let scopes: Vec<_> = scopes.iter().filter_map(Value::as_str).collect();
            Some(scopes.join(" "))
        }
        _ => None,
    };
    match scope {
        Some(scope) => token.insert("scope".into(), scope.into()),
        None => token.remove("scope"),
    };
    let refresh = token.get("refresh_token").and_then(Value::as_str);
    if refresh.is_none_or(str::is_empty) {
        token.remove("refresh_token");
    }
}

/// Reads a number of seconds, also from a text or with a fraction. Numbers above [`SECONDS_MAX`] are reduced to it.
fn seconds(value: &Value) -> Option<u64> {
    let number: f64 = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }?;
    let number = number.is_finite().then(|| number.min(SECONDS_MAX))?;
    let seconds = Duration::try_from_secs_f64(number).ok()?;
    Some(seconds.as_secs())
}

/// The remaining lifetime of a JWT in seconds, from its claim `exp`. `None` if it has expired. The signature is not checked,
/// because the token was received from its issuer.
fn until_expiry(bearer: &str) -> Option<u64> {
    let claims = bearer.split('.').nth(1)?.trim_end_matches('=');
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
    let claims = json_members(&claims)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    seconds(claims.get("exp")?)?
        .checked_sub(now.as_secs())
        .filter(|it| *it > 0)
}

/// Names of the parameters in a token endpoint's response whose values are secrets.
const SECRETS: [&str; 4] = ["access_token", "refresh_token", "id_token", "client_secret"];

/// The parameters of an error response, without secrets. `None` if the response contains no error.
fn error(
    members: &Map<String, Value>,
    words: &ResponseSanitizer<'_>,
) -> Option<Map<String, Value>> {
    let secrets = SECRETS.iter().filter_map(|key| members.get(*key)?.as_str());
    let secrets: Vec<_> = secrets.map(Secret::new).collect();
    let text = |value: Option<&Value>| {
        let text = value.and_then(Value::as_str);
        text.filter(|it| !it.is_empty())
            .map(|it| words(it, &secrets))
    };
    let (error, mut description) = match members.get("error") {
        Some(Value::Object(inner)) => {
            let code = ["status", "code", "error", "type"];
            let code = code.iter().find_map(|key| text(inner.get(*key)));
            (
                code.or_else(|| Some("error".to_owned())),
                text(inner.get("message")),
            )
        }
        error => (text(error), None),
    };
    let names = ["error_description", "error_message", "message"];
    description = description.or_else(|| names.iter().find_map(|key| text(members.get(*key))));
    let mut found = Map::new();
    found.insert("error".into(), error?.into());
    if let Some(description) = description {
        found.insert("error_description".into(), description.into());
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, media: &str, body: &str) -> Response<Vec<u8>> {
        let mut answer = Response::new(body.as_bytes().to_vec());
        *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
        if !media.is_empty() {
            let media = HeaderValue::from_str(media).expect("a value");
            answer.headers_mut().insert(CONTENT_TYPE, media);
        }
        answer
    }

    fn read(status: u16, media: &str, body: &str) -> Result<(u16, Value), String> {
        let words = |text: &str, _: &[Secret]| text.to_owned();
        let normalized = normalized(answer(status, media, body), &words)?;
        let body = serde_json::from_slice(normalized.body()).expect("JSON");
        Ok((normalized.status().as_u16(), body))
    }

    const JSON: &str = "application/json";
    const HUGE: Option<u64> = Some(1_000_000_000_000_000);

    #[test]
    fn a_token_is_read_however_its_members_are_written() {
        for (members, expires_in, scope) in [
            (
                r#""token_type":"Bearer","expires_in":"3600""#,
                Some(3600),
                None,
            ),
            (
                r#""token_type":"Bearer","expires_in":3599.7"#,
                Some(3599),
                None,
            ),
            (
                r#""token_type":"Bearer","expires_in":"3600.5""#,
                Some(3600),
                None,
            ),
            (r#""expires_in":3600"#, Some(3600), None),
            (
                r#""token_type":null,"expires_in":null,"scope":null"#,
                None,
                None,
            ),
            (
                r#""expires_in":"soon","scope":["a","b"]"#,
                None,
                Some("a b"),
            ),
            (r#""expires_in":-1,"scope":"a b""#, None, Some("a b")),
            (
                r#""expires_in":{},"scope":{},"refresh_token":null"#,
                None,
                None,
            ),
            (r#""expires_in":1e400"#, None, None),
            (r#""expires_in":-1e400,"scope":"a b""#, None, Some("a b")),
            (r#""expires_in":"1e400""#, None, None),
            (r#""expires_in":"inf""#, None, None),
            (r#""expires_in":"nan""#, None, None),
            (r#""expires_in":1e19"#, HUGE, None),
            (r#""expires_in":"1e19""#, HUGE, None),
            (r#""expires_in":1e300"#, HUGE, None),
            (r#""expires_in":18446744073709551615"#, HUGE, None),
            (r#""expires_in":"99999999999999999999999""#, HUGE, None),
            (
                r#""expires_in":60,"expires_at":1e400,"x":{"y":[1e999]}"#,
                Some(60),
                None,
            ),
        ] {
            for (begin, status) in [("", 200), ("\u{feff}", 200), ("", 201)] {
                let body = format!("{begin}{{\"access_token\":\"good\",{members}}}");
                let (found, token) = read(status, JSON, &body).expect(&body);
                assert_eq!(
                    (found, &token["access_token"]),
                    (200, &"good".into()),
                    "{body}"
                );
                assert_eq!(token["expires_in"].as_u64(), expires_in, "{body}");
                assert_eq!(token["scope"].as_str(), scope, "{body}");
                assert!(token["token_type"].is_string(), "{body}");
                let library: rmcp::transport::auth::OAuthTokenResponse =
                    serde_json::from_value(token).expect(&body);
                drop(library);
            }
        }
        for media in [
            "application/x-www-form-urlencoded; charset=utf-8",
            "text/html",
            "",
        ] {
            let body = "access_token=g%2Bd&token_type=bearer&scope=repo&expires_in=60";
            let (status, token) = read(200, media, body).expect(media);
            assert_eq!((status, &token["access_token"]), (200, &"g+d".into()));
            assert_eq!(token["expires_in"], 60);
        }
    }

    #[test]
    fn a_jwt_tells_its_lifetime_where_the_answer_does_not() {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        let jwt = |exp: u64| {
            let claims = BASE64_URL_SAFE_NO_PAD.encode(format!(r#"{{"exp":{exp}}}"#));
            format!(r#"{{"access_token":"e30.{claims}.c2ln"}}"#)
        };
        let (_, token) = read(200, JSON, &jwt(now.as_secs() + 1000)).expect("a token");
        let lifetime = token["expires_in"].as_u64().expect("a lifetime");
        assert!((900..=1000).contains(&lifetime), "{lifetime}");
        let (_, token) = read(200, JSON, &jwt(7)).expect("a token");
        assert_eq!(token["expires_in"], Value::Null);
        let (_, token) = read(200, JSON, &jwt(u64::MAX)).expect("a token");
        let lifetime = token["expires_in"].as_u64().expect("a lifetime");
        assert!(lifetime < 1_000_000_000_000_000, "{lifetime}");
    }

    #[test]
    fn an_error_is_one_whatever_its_status_and_shape() {
        for (status, media, body, expected) in [
            (
                200,
                JSON,
                r#"{"error":"invalid_scope","error_description":"no such scope"}"#,
                400,
            ),
            (
                200,
                JSON,
                r#"{"ok":false,"error":"invalid_scope","message":"no such scope"}"#,
                400,
            ),
            (
                200,
                FORM,
                "error=invalid_scope&error_description=no+such+scope",
                400,
            ),
            (
                401,
                JSON,
                "\u{feff}{\"error\":\"invalid_scope\",\"error_description\":\"no such scope\"}",
                401,
            ),
            (
                403,
                JSON,
                r#"{"error":{"status":"invalid_scope","message":"no such scope"}}"#,
                403,
            ),
        ] {
            let (found, error) = read(status, media, body).expect(body);
            assert_eq!(found, expected, "{body}");
            assert_eq!(error["error"], "invalid_scope", "{body}");
            assert_eq!(error["error_description"], "no such scope", "{body}");
        }
    }

    #[test]
    fn what_is_neither_is_told_without_its_body() {
        for (status, media, body, words) in [
            (
                200,
                "text/html; charset=utf-8",
                "<html>hunter2",
                "HTTP 200 (text/html), which is no token",
            ),
            (
                503,
                "text/plain",
                "busy",
                "HTTP 503 (text/plain), which is no token",
            ),
            (
                200,
                JSON,
                r#"{"id_token":"hunter2"}"#,
                "HTTP 200 (application/json) without an access_token",
            ),
            (
                200,
                JSON,
                r#"{"access_token":""}"#,
                "without an access_token",
            ),
            (200, JSON, "[]", "which is no token"),
            (204, "", "", "HTTP 204 (no media type) and an empty body"),
        ] {
            let error = read(status, media, body).expect_err(body);
            assert!(
                error.starts_with("the authorization server answered"),
                "{error}"
            );
            assert!(
                error.contains(words) && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_client_shows_its_secret_in_either_form() {
        let mut request = Request::new(
            b"grant_type=client_credentials&client_id=a+b&client_secret=s%3A%26%C3%A9&scope=x"
                .to_vec(),
        );
        *request.method_mut() = Method::POST;
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(FORM));
        assert!(is_token_request(&request));
        let client = TokenClient::of(&request).expect("a client");
        assert_eq!((&*client.id, client.shown), ("a b", ClientAuth::Post));
        let basic = client.show(&request, ClientAuth::Basic).expect("a header");
        let body = String::from_utf8(basic.body().clone()).expect("text");
        assert_eq!(body, "grant_type=client_credentials&scope=x");
        let header = &basic.headers()[AUTHORIZATION];
        assert!(header.is_sensitive());
        let header = header
            .to_str()
            .expect("text")
            .strip_prefix("Basic ")
            .expect("Basic");
        let header = BASE64_STANDARD.decode(header).expect("base64");
        assert_eq!(header, b"a+b:s%3A%26%C3%A9");
        let client = TokenClient::of(&basic).expect("a client");
        assert_eq!((&*client.id, client.shown), ("a b", ClientAuth::Basic));
        let post = client.show(&basic, ClientAuth::Post).expect("a body");
        assert!(!post.headers().contains_key(AUTHORIZATION));
        let body = String::from_utf8(post.body().clone()).expect("text");
        assert!(
            body.ends_with("client_id=a+b&client_secret=s%3A%26%C3%A9"),
            "{body}"
        );
    }
}
