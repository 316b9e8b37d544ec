//! Fetching the keys of an issuer: from its metadata, from a URL, or from a file.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use tooldock_base::address::is_public;
use tooldock_base::regular_file;
use tooldock_filters::config::{JwksSource, OauthConfig};
use tooldock_filters::oauth::KeySet;
use tooldock_workers::remote::{Backend, Host};

use crate::remote::{Fetch, Fetcher};

/// Maximum size of a document, in bytes. Key sets and metadata have some KiB.
const DOCUMENT_MAX: usize = 1024 * 1024;

/// Time limit for each document.
const DEADLINE: Duration = Duration::from_secs(10);

/// Fetched keys, and the URL from which they came; empty for a file.
pub(super) struct FetchedKeys {
    pub(super) keys: KeySet,
    pub(super) endpoint: String,
}

/// Fetches the keys. `endpoint` is the URL of the keys in the issuer's metadata, where that is known.
///
/// # Errors
///
/// The cause, for the log.
pub(super) async fn fetch(
    fetcher: &Fetcher,
    config: &OauthConfig,
    endpoint: Option<String>,
) -> Result<FetchedKeys, String> {
    let endpoint = match (&config.jwks, endpoint) {
        (JwksSource::File(file), _) => {
            let keys = KeySet::parse(&read(file).await?);
            return Ok(FetchedKeys {
                keys: keys.map_err(|error| format!("{}: {error}", file.display()))?,
                endpoint: String::new(),
            });
        }
        (JwksSource::Url(url), _) => url.clone(),
        (JwksSource::Auto, Some(endpoint)) => endpoint,
        (JwksSource::Auto, None) => discover(fetcher, config).await?,
    };
    let from = config.endpoint(&endpoint)?;
    let (status, body) = get(fetcher, config, &from).await?;
    if status != StatusCode::OK {
        return Err(format!(
            "{}: answered {status} to the request for its keys",
            from.id()
        ));
    }
    let keys = KeySet::parse(&body).map_err(|error| format!("{}: {error}", from.id()))?;
    Ok(FetchedKeys { keys, endpoint })
}

async fn get(
    fetcher: &Fetcher,
    config: &OauthConfig,
    from: &Backend,
) -> Result<(StatusCode, Bytes), String> {
    fetcher
        .fetch(Fetch {
            from,
            allow_private: config.allow_private,
            form: None,
            authorization: None,
            bytes_max: DOCUMENT_MAX,
            deadline: DEADLINE,
        })
        .await
}

async fn read(file: &Path) -> Result<Vec<u8>, String> {
    let wrong = |what: &str| format!("{}: {what}", file.display());
    let path = file.to_owned();
    let read = move || regular_file::read_following(&path, DOCUMENT_MAX as u64);
    let bytes = tokio::task::spawn_blocking(read).await;
    let bytes = bytes.map_err(|_| wrong("reading it was interrupted"))?;
    bytes.map_err(|error| wrong(&error.to_string()))
}

/// The members of an issuer's metadata that are read.
#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    jwks_uri: String,
}

/// The URL of the keys in the issuer's metadata (RFC 8414, OpenID Connect Discovery).
async fn discover(fetcher: &Fetcher, config: &OauthConfig) -> Result<String, String> {
    let mut last = String::new();
    for url in metadata_urls(&config.issuer) {
        let from = config.endpoint(&url)?;
        match get(fetcher, config, &from).await {
            Ok((StatusCode::OK, body)) => {
                let metadata = serde_json::from_slice(&body);
                let metadata =
                    metadata.map_err(|_| format!("{url}: is no metadata of an issuer"))?;
                return keys_of(config, metadata).map_err(|error| format!("{url}: {error}"));
            }
            Ok((status, _)) => last = format!("{url}: answered {status}"),
            // The next address would lead to the same host.
            Err(error) => return Err(error),
        }
    }
    Err(format!("the issuer has no metadata: {last}"))
}

/// The addresses at which an issuer's metadata may be.
fn metadata_urls(issuer: &str) -> Vec<String> {
    let issuer = issuer.strip_suffix('/').unwrap_or(issuer);
    let host_ends = issuer.find("://").map_or(0, |at| at + 3);
    let path_begins = issuer[host_ends..].find('/').map(|at| host_ends + at);
    let (origin, path) = issuer.split_at(path_begins.unwrap_or(issuer.len()));
    let mut urls = vec![
        format!("{origin}/.well-known/oauth-authorization-server{path}"),
        format!("{origin}/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        urls.push(format!("{issuer}/.well-known/openid-configuration"));
    }
    urls
}

/// The URL of the keys, if the metadata are this issuer's and name an address that may be asked.
fn keys_of(config: &OauthConfig, metadata: Metadata) -> Result<String, String> {
    if metadata.issuer != config.issuer {
        return Err("its issuer is not the configured one".into());
    }
    let keys = config.endpoint(&metadata.jwks_uri);
    let keys = keys.map_err(|error| format!("its jwks_uri {error}"))?;
    let own = config.endpoint(&config.issuer)?;
    // The operator has written the issuer's own address, but not this address.
    if let Host::Address(address, _) = &keys.host
        && !config.allow_private
        && !is_public(*address)
        && keys.host != own.host
    {
        return Err(format!(
            "its jwks_uri leads to {address}, which is not public; allow_private would allow it"
        ));
    }
    Ok(metadata.jwks_uri)
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn config(issuer: &str, more: &str) -> OauthConfig {
        let text = format!("{{ issuer: '{issuer}', audience: a, scopes: {{ r: read }}{more} }}");
        yaml::from_str(&text).expect("an issuer")
    }

    #[test]
    fn metadata_are_looked_for_where_the_specifications_put_them() {
        assert_eq!(
            metadata_urls("https://idp.example"),
            [
                "https://idp.example/.well-known/oauth-authorization-server",
                "https://idp.example/.well-known/openid-configuration",
            ]
        );
        assert_eq!(
            metadata_urls("https://idp.example/realms/x/"),
            [
                "https://idp.example/.well-known/oauth-authorization-server/realms/x",
                "https://idp.example/.well-known/openid-configuration/realms/x",
                "https://idp.example/realms/x/.well-known/openid-configuration",
            ]
        );
    }

    #[test]
    fn metadata_of_another_issuer_and_keys_in_private_networks_are_refused() {
        let keys = |config: &OauthConfig, issuer: &str, keys: &str| {
            let metadata = Metadata {
                issuer: issuer.to_owned(),
                jwks_uri: keys.to_owned(),
            };
            keys_of(config, metadata)
        };
        let public = config("https://idp.example", "");
        let of = |url: &str| keys(&public, "https://idp.example", url);
        assert!(of("https://keys.example/x").is_ok());
        assert!(keys(&public, "https://idp.example/", "https://keys.example/x").is_err());
        for url in [
            "http://keys.example/x",
            "https://169.254.169.254/x",
            "http://127.0.0.1:8080/x",
            "https://[::1]/x",
            "unix:/run/docker.sock",
            "file:///etc/passwd",
        ] {
            assert!(of(url).is_err(), "{url}");
        }
        let local = config("http://127.0.0.1:9", "");
        assert!(keys(&local, "http://127.0.0.1:9", "http://127.0.0.1:9/jwks").is_ok());
        assert!(keys(&local, "http://127.0.0.1:9", "http://127.0.0.1:8/jwks").is_err());
        let private = config("https://idp.example", ", allow_private: true");
        assert!(keys(&private, "https://idp.example", "https://10.0.0.1/x").is_ok());
    }
}
