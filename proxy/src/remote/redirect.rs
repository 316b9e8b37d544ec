//! Redirects of backends. Web frameworks send a redirect if a path is requested without its slash at the end.
//!
//! Therefore a redirect is followed once, with the same method and body, if it only adds or removes that slash at the same
//! origin. Its target is stored for the backend and requested directly from then on, until the target is not found or redirects
//! back.
//!
//! No other redirect is followed. Errors name its target without query, user and secrets; for servers with tokens or personal
//! credentials they name only its origin.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use tooldock_upstream::http_client::{BackendRequest, BackendResponse, SendError};

use super::exchange;
use super::headers::Own;
use super::pool::{BackendInFlight, PoolMember};

/// Maximum number of characters of a redirect's target in errors and in the log.
const TOLD_MAX: usize = 200;

/// Sends a request. If the backend answers with a redirect that may be followed, sends it once more to the redirect's target. If
/// the target of an earlier redirect no longer exists, drops that target and requests the configured path. `in_flight` creates
/// the value that counts a request; it is called for each request.
pub(super) async fn send(
    member: &Arc<PoolMember>,
    request: &BackendRequest,
    own: &Own,
    in_flight: impl Fn() -> BackendInFlight + Send + Sync,
) -> Result<BackendResponse, SendError> {
    let moved = match request.target {
        Some(_) => None,
        None => member.moved.load_full(),
    };
    let asked = match &moved {
        Some(moved) => moved.as_str(),
        None => exchange::target(member, request),
    };
    let sent = exchange::send(member, request, asked, own, in_flight()).await;
    let is_gone = |status| moved.is_some() && status == StatusCode::NOT_FOUND;
    match sent {
        Ok(response) if response.status.is_redirection() || is_gone(response.status) => {
            // The future is boxed, so that futures of ordinary requests stay small.
            Box::pin(redirected(member, request, own, in_flight, moved, response)).await
        }
        sent => sent,
    }
}

async fn redirected(
    member: &Arc<PoolMember>,
    request: &BackendRequest,
    own: &Own,
    in_flight: impl Fn() -> BackendInFlight,
    mut moved: Option<Arc<String>>,
    mut response: BackendResponse,
) -> Result<BackendResponse, SendError> {
    let configured = exchange::target(member, request);
    if let Some(remembered) = &moved {
        let target = followed(member, remembered, &response);
        let leads_back = target.as_deref() == Some(configured);
        if leads_back || response.status == StatusCode::NOT_FOUND {
            // Drops the stored target, unless another request has replaced it meanwhile.
            member.moved.compare_and_swap(&moved, None);
            drop(response);
            response = exchange::send(member, request, configured, own, in_flight()).await?;
            if !response.status.is_redirection() {
                return Ok(response);
            }
            if leads_back {
                // The stored target and the configured path redirect to each other.
                redact_target(member, &mut response);
                return Ok(response);
            }
            moved = None;
        }
    }
    let asked = moved.as_deref().map_or(configured, String::as_str);
    let Some(target) = followed(member, asked, &response) else {
        redact_target(member, &mut response);
        return Ok(response);
    };
    drop(response);
    let mut sent = exchange::send(member, request, &target, own, in_flight()).await?;
    if sent.status.is_redirection() {
        redact_target(member, &mut sent);
    } else if request.target.is_none() && moved.is_none() && sent.status != StatusCode::NOT_FOUND {
        member.moved.store(Some(Arc::new(target)));
    }
    Ok(sent)
}

/// The target of a redirect, as path and query. `None` if the redirect must not be followed.
fn followed(member: &PoolMember, asked: &str, response: &BackendResponse) -> Option<String> {
    let keeps_method = matches!(
        response.status,
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
    );
    let location = location(&response.headers).filter(|_| keeps_method)?;
    let host = member.headers.host();
    let authorities = [Some(&*member.authority), host];
    let target = target_of(location, asked, member.spec.backend.tls, &authorities)?;
    differs_by_a_slash(asked, &target).then_some(target)
}

fn location(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::LOCATION)?.to_str().ok()
}

/// Returns true if two request targets have the same query and their paths differ only in a slash at the end.
fn differs_by_a_slash(one: &str, other: &str) -> bool {
    let parts = |target: &str| {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        (path.to_owned(), query.to_owned())
    };
    let (one, other) = (parts(one), parts(other));
    let adds = |short: &str, long: &str| long.strip_suffix('/') == Some(short);
    one.1 == other.1 && (adds(&one.0, &other.0) || adds(&other.0, &one.0))
}

/// Path and query of a header `Location`, resolved against the requested target. `None` if its origin is none of `authorities`.
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

/// Removes secrets from the target of a redirect that is not followed. Logs the first such target of the backend.
fn redact_target(member: &PoolMember, response: &mut BackendResponse) {
    let spec = &member.server.spec;
    // The server may have put a token or a personal credential into the path. Such a value is in no configuration and cannot be
    // recognized, so only the origin is shown.
    let origin_alone = spec.oauth.is_some() || spec.personal.is_needed();
    // Secrets are removed before the text is cut, so that no part of a secret remains.
    let shown = location(&response.headers).and_then(|it| {
        let told = match origin_alone {
            true => origin(it)?,
            false => redacted_target(it),
        };
        let told = member.server.without_secrets(&told);
        Some(told.chars().take(TOLD_MAX).collect::<String>())
    });
    let is_named = response.headers.remove(header::LOCATION).is_some();
    let told = match &shown {
        Some(shown) => shown.clone(),
        None if is_named && origin_alone => "an address of its own".to_owned(),
        None => return,
    };
    if !member.told_redirect.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            namespace = %member.server.name,
            backend = %member.spec.id,
            "a backend of {} answers with a redirect (HTTP {}) to {told}, which is not followed",
            member.server.name,
            response.status.as_u16(),
        );
    }
    if let Some(shown) = shown.and_then(|it| HeaderValue::from_str(&it).ok()) {
        response.headers.insert(header::LOCATION, shown);
    }
}

/// Scheme, host and port of a redirect's target. `None` if the target is relative and so has the origin of the request.
fn origin(location: &str) -> Option<String> {
    let told = redacted_target(location);
    let (scheme, rest) = told.split_once("//")?;
    let is_scheme = scheme.is_empty() || (scheme.ends_with(':') && !scheme.contains('/'));
    let authority = rest.split(['/', '\\']).next().filter(|_| is_scheme)?;
    Some(format!("{scheme}//{authority}"))
}

/// A redirect's target without its query, user and password.
fn redacted_target(location: &str) -> String {
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
            assert_eq!(redacted_target(location), expected);
        }
    }

    #[test]
    fn an_origin_has_nothing_of_path_query_and_user() {
        for (location, expected) in [
            (
                "https://login.example:8443/start/hunter2?token=t#f",
                Some("https://login.example:8443"),
            ),
            ("https://user:hunter2@b", Some("https://b")),
            ("https://b\\hunter2", Some("https://b")),
            ("//b/hunter2", Some("//b")),
            ("/hunter2//b", None),
            ("hunter2//b", None),
            ("hunter2", None),
            ("mailto:hunter2", None),
        ] {
            assert_eq!(origin(location).as_deref(), expected, "{location}");
        }
    }
}
