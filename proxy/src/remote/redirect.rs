//! Redirects of backends. A redirect that only adds or removes the slash at the end of the path, at the same origin, is
//! followed once, with the same method and body, and remembered for the backend; frameworks send such redirects for a
//! mounted path without its slash. No other redirect is followed: errors name its target, without query, user and
//! secrets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use tooldock_upstream::http_client::{BackendRequest, BackendResponse, SendError};

use super::exchange;
use super::headers::Own;
use super::pool::{InFlight, Member};

/// The most characters of a redirect's target in errors and the log.
const TOLD_MAX: usize = 200;

/// Sends a request, and repeats it once at the target of a redirect that is followed. `in_flight` counts each sending.
pub(super) async fn send(
    member: &Arc<Member>,
    request: &BackendRequest,
    own: &Own,
    in_flight: impl Fn() -> InFlight + Send + Sync,
) -> Result<BackendResponse, SendError> {
    let sent = exchange::send(member, request, own, in_flight()).await;
    match sent {
        Ok(response) if response.status.is_redirection() => {
            // Boxed, so that the future of a usual request stays small.
            Box::pin(redirected(member, request, own, in_flight, response)).await
        }
        sent => sent,
    }
}

async fn redirected(
    member: &Arc<Member>,
    request: &BackendRequest,
    own: &Own,
    in_flight: impl Fn() -> InFlight,
    mut response: BackendResponse,
) -> Result<BackendResponse, SendError> {
    let asked = exchange::target(member, request);
    let Some(target) = followed(member, asked, &response) else {
        tell(member, &mut response);
        return Ok(response);
    };
    drop(response);
    let again = BackendRequest {
        target: Some(target.clone()),
        ..request.clone()
    };
    let mut sent = exchange::send(member, &again, own, in_flight()).await?;
    if sent.status.is_redirection() {
        tell(member, &mut sent);
    } else if request.target.is_none() && sent.status != StatusCode::NOT_FOUND {
        // A target that is remembered already stays. If the backend redirects from there, requests go by way of that
        // redirect.
        let _ = member.moved.set(target);
    }
    Ok(sent)
}

/// The target of a redirect; `None` if the redirect is not followed.
fn followed(member: &Member, asked: &str, response: &BackendResponse) -> Option<String> {
    let keeps_method = matches!(
        response.status,
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
    );
    let location = location(&response.headers).filter(|_| keeps_method)?;
    let host = member.headers.host();
    let authorities = [Some(&*member.authority), host];
    let target = target_of(location, asked, member.spec.backend.tls, &authorities)?;
    // Another request may have been redirected meanwhile: then `asked` is the remembered target already.
    let is_remembered = member.moved.get() == Some(&target);
    (is_remembered || differs_by_a_slash(asked, &target)).then_some(target)
}

fn location(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::LOCATION)?.to_str().ok()
}

/// True where the queries of two targets are equal, and one path is the other with a slash at its end.
fn differs_by_a_slash(one: &str, other: &str) -> bool {
    let parts = |target: &str| {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        (path.to_owned(), query.to_owned())
    };
    let (one, other) = (parts(one), parts(other));
    let adds = |short: &str, long: &str| long.strip_suffix('/') == Some(short);
    one.1 == other.1 && (adds(&one.0, &other.0) || adds(&other.0, &one.0))
}

/// Path and query of a `Location`, resolved against the requested target; `None` if the `Location` is at an origin
/// other than those of the authorities.
fn target_of(
    location: &str,
    asked: &str,
    tls: bool,
    authorities: &[Option<&str>],
) -> Option<String> {
    let location = location.split('#').next().unwrap_or_default();
    let is_plain = location
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if location.is_empty() || !is_plain {
        return None;
    }
    let (scheme, default) = if tls {
        ("https:", ":443")
    } else {
        ("http:", ":80")
    };
    let bare = |authority: &str| {
        let authority = authority.to_ascii_lowercase();
        authority
            .strip_suffix(default)
            .map(str::to_owned)
            .unwrap_or(authority)
    };
    let rest = match location.split_once("//") {
        Some((named, rest)) if named.is_empty() || named.eq_ignore_ascii_case(scheme) => rest,
        Some((named, _)) if named.ends_with(':') && !named.contains('/') => return None,
        _ if location.starts_with('/') => return Some(location.to_owned()),
        _ => {
            let first = location.split(['/', '?']).next().unwrap_or_default();
            if first.contains(':') {
                return None;
            }
            let path = asked.split('?').next().unwrap_or_default();
            let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
            return Some(format!("{folder}{location}"));
        }
    };
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(at);
    let mut own = authorities.iter().flatten();
    own.any(|own| bare(own) == bare(authority))
        .then(|| match target.starts_with('/') {
            true => target.to_owned(),
            false => format!("/{target}"),
        })
}

/// Removes secrets from the target of a redirect that is not followed, and logs the target once.
fn tell(member: &Member, response: &mut BackendResponse) {
    // Shortened last, so that no part of a secret remains.
    let told = location(&response.headers).map(|it| {
        let told = member.server.without_secrets(&told(it));
        told.chars().take(TOLD_MAX).collect::<String>()
    });
    response.headers.remove(header::LOCATION);
    let Some(told) = told else { return };
    if !member.told_redirect.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            namespace = %member.server.name,
            backend = %member.spec.id,
            "a backend of {} answers with a redirect (HTTP {}) to {told}, which is not followed",
            member.server.name,
            response.status.as_u16(),
        );
    }
    if let Ok(told) = HeaderValue::from_str(&told) {
        response.headers.insert(header::LOCATION, told);
    }
}

/// A target without its query, user and password.
fn told(location: &str) -> String {
    let bare = location.split(['?', '#']).next().unwrap_or_default();
    match bare.split_once("//") {
        Some((scheme, rest)) if scheme.is_empty() || scheme.ends_with(':') => {
            let at = rest.find('/').unwrap_or(rest.len());
            let (authority, path) = rest.split_at(at);
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}//{host}{path}")
        }
        _ => bare.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slash_at_the_same_origin_is_followed() {
        let followed = |location: &str, asked: &str| {
            let target = target_of(location, asked, false, &[Some("a:8080"), Some("virtual")])?;
            differs_by_a_slash(asked, &target).then_some(target)
        };
        for (location, asked, target) in [
            ("/mcp/", "/mcp", Some("/mcp/")),
            ("/mcp", "/mcp/", Some("/mcp")),
            ("mcp/", "/mcp", Some("/mcp/")),
            ("/mcp/#top", "/mcp", Some("/mcp/")),
            ("/mcp/?k=1", "/mcp?k=1", Some("/mcp/?k=1")),
            ("http://a:8080/mcp/", "/mcp", Some("/mcp/")),
            ("HTTP://A:8080/mcp/", "/mcp", Some("/mcp/")),
            ("//a:8080/mcp/", "/mcp", Some("/mcp/")),
            ("http://virtual:80/mcp/", "/mcp", Some("/mcp/")),
            ("/mcp/", "/mcp?k=1", None),
            ("/mcp//", "/mcp", None),
            ("/other/", "/mcp", None),
            ("/mcp", "/mcp", None),
            ("https://a:8080/mcp/", "/mcp", None),
            ("http://a/mcp/", "/mcp", None),
            ("http://a:8080@evil/mcp/", "/mcp", None),
            ("//evil/mcp/", "/mcp", None),
            ("/\\evil/mcp/", "/mcp", None),
            ("javascript:alert(1)", "/mcp", None),
            ("/mc p/", "/mc p", None),
            ("", "/mcp", None),
        ] {
            assert_eq!(followed(location, asked).as_deref(), target, "{location}");
        }
    }

    #[test]
    fn a_target_is_told_without_query_and_user() {
        for (location, expected) in [
            (
                "https://login.example/start?token=t#f",
                "https://login.example/start",
            ),
            ("https://user:hunter2@b/x", "https://b/x"),
            ("/login?next=/mcp", "/login"),
            ("//user@b", "//b"),
        ] {
            assert_eq!(told(location), expected);
        }
    }
}
