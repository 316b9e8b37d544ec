//! Fetches the metadata of an authorization server (RFC 8414) from the addresses that belong to its issuer. Metadata that name
//! another issuer are refused, wherever they are found.

use http::{Method, Request, StatusCode};
use oauth2::url::Url;
use rmcp::transport::auth::AuthorizationMetadata;

use super::http_client::Http;
use super::words::Reason;

/// The two well-known paths at which an issuer may publish its metadata.
const OAUTH: &str = "/.well-known/oauth-authorization-server";
const OPENID: &str = "/.well-known/openid-configuration";

/// Fetches the metadata of an issuer, and checks that they name this issuer.
///
/// # Errors
///
/// When no metadata were found. The text is one line.
pub(super) async fn metadata(http: &Http, issuer: &str) -> Result<AuthorizationMetadata, Reason> {
    let reason = |text: &str| http.reason(text);
    for address in addresses(issuer).map_err(|text| reason(&text))? {
        let request = Request::builder()
            .method(Method::GET)
            .uri(address.as_str())
            .header("accept", "application/json")
            .body(Vec::new())
            .map_err(|error| reason(&error.to_string()))?;
        let answer = http.send(request).await;
        let answer = answer.map_err(|error| reason(&error.to_string()))?;
        if answer.status().is_server_error() {
            let text = format!("{} answered {}", address.path(), answer.status());
            return Err(reason(&text));
        }
        if answer.status() != StatusCode::OK {
            continue;
        }
        let Ok(found) = serde_json::from_slice::<AuthorizationMetadata>(answer.body()) else {
            continue;
        };
        let named = found.issuer.as_deref();
        if named.is_some_and(|it| is_same(it, issuer)) {
            return Ok(found);
        }
        let text = format!(
            "the metadata of the authorization server {issuer} name another issuer, {}",
            named.unwrap_or("none")
        );
        return Err(reason(&text));
    }
    Err(reason(&format!(
        "the authorization server {issuer} has no metadata: write oauth.token_url, or correct oauth.issuer"
    )))
}

/// Returns true if two texts name the same issuer: they are equal, or differ only in the trailing slash of a URL without a
/// path.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    fn without_root(issuer: &str) -> &str {
        let bare = issuer.strip_suffix('/').unwrap_or(issuer);
        let host = bare.split_once("://").map_or(bare, |it| it.1);
        match host.contains('/') {
            true => issuer,
            false => bare,
        }
    }
    without_root(one) == without_root(other)
}

/// The issuers that may publish their metadata at the URL: one without and one with a slash at the end. Empty if the URL is not
/// that of metadata.
pub(super) fn of_address(address: &Url) -> Vec<String> {
    let path = address.path();
    let inserted = [OAUTH, OPENID].iter().find_map(|it| path.strip_prefix(it));
    let Some(own) = inserted.or_else(|| path.strip_suffix(OPENID)) else {
        return Vec::new();
    };
    let issuer = |path: &str| {
        let mut url = address.clone();
        url.set_path(path);
        url.set_query(None);
        String::from(url)
    };
    vec![issuer(own), issuer(&format!("{own}/"))]
}

/// The URLs of an issuer's metadata, in the order in which they are tried.
fn addresses(issuer: &str) -> Result<Vec<Url>, String> {
    let wrong = || format!("{issuer} is no URL of an authorization server");
    let url = Url::parse(issuer).map_err(|_| wrong())?;
    let is_plain = url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    if !["https", "http"].contains(&url.scheme()) || !url.has_host() || !is_plain {
        return Err(wrong());
    }
    let path = url.path().trim_end_matches('/');
    let paths = match path {
        "" => vec![OAUTH.to_owned(), OPENID.to_owned()],
        path => vec![
            format!("{OAUTH}{path}"),
            format!("{OPENID}{path}"),
            format!("{path}{OPENID}"),
        ],
    };
    let at = |path: String| {
        let mut url = url.clone();
        url.set_path(&path);
        url
    };
    Ok(paths.into_iter().map(at).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_are_sought_at_the_addresses_of_the_issuer_alone() {
        let paths = |issuer: &str| -> Vec<String> {
            let addresses = addresses(issuer).expect(issuer);
            addresses.iter().map(|it| it.path().to_owned()).collect()
        };
        assert_eq!(paths("https://a.example"), [OAUTH, OPENID]);
        assert_eq!(paths("https://a.example/"), [OAUTH, OPENID]);
        assert_eq!(
            paths("https://a.example/realms/x"),
            [
                "/.well-known/oauth-authorization-server/realms/x",
                "/.well-known/openid-configuration/realms/x",
                "/realms/x/.well-known/openid-configuration",
            ]
        );
        for issuer in [
            "https://a.example",
            "https://a.example/realms/x",
            "https://a.example/x/",
        ] {
            for address in addresses(issuer).expect(issuer) {
                let found = of_address(&address);
                assert!(
                    found.iter().any(|it| is_same(it, issuer)),
                    "{address}: {found:?}"
                );
            }
        }
        let other = Url::parse("https://a.example/.well-known/x").expect("a URL");
        assert!(of_address(&other).is_empty());
        for issuer in ["a", "ftp://a", "https://a?b", "https://a#b", "https://u@a"] {
            assert!(addresses(issuer).is_err(), "{issuer}");
        }
    }

    #[test]
    fn issuers_are_the_same_only_where_their_texts_are() {
        assert!(is_same("https://a", "https://a/"));
        for (one, other) in [
            ("https://a/x", "https://a/x/"),
            ("https://a", "http://a"),
            ("https://a", "https://A"),
            ("https://a", "https://a:443"),
            ("https://a", "https://a.b"),
            ("https://a", "https://a/x"),
        ] {
            assert!(!is_same(one, other), "{one} {other}");
        }
    }
}
