//! The metadata of an issuer (RFC 8414, OpenID Connect Discovery), which contains the URLs of its endpoints.
//!
//! The operator configures only the issuer's URL. Endpoints on other hosts must have public addresses, unless `allow_private` is
//! set.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use tooldock_base::address::is_public;
use tooldock_filters::config::OauthConfig;
use tooldock_workers::remote::{Backend, Host};

use crate::remote::{Fetch, Fetcher};

/// Maximum size of a document of an issuer, in bytes. Key sets and metadata have some KiB.
pub(super) const DOCUMENT_MAX: usize = 1024 * 1024;

/// Time limit for fetching a document of an issuer.
const DEADLINE: Duration = Duration::from_secs(10);

/// The fields of an issuer's metadata that the gateway uses.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Metadata {
    pub(super) issuer: String,
    #[serde(default)]
    pub(super) jwks_uri: Option<String>,
    #[serde(default)]
    pub(super) authorization_endpoint: Option<String>,
    #[serde(default)]
    pub(super) token_endpoint: Option<String>,
    /// Methods by which clients may authenticate at the token endpoint; empty if the issuer names none.
    #[serde(default)]
    pub(super) token_endpoint_auth_methods_supported: Vec<String>,
    /// Supported methods of PKCE; `None` if the issuer names none.
    #[serde(default)]
    pub(super) code_challenge_methods_supported: Option<Vec<String>>,
    /// True if redirects name the issuer (RFC 9207).
    #[serde(default)]
    pub(super) authorization_response_iss_parameter_supported: bool,
}

/// Fetches the metadata of an issuer.
///
/// # Errors
///
/// The cause, for the log. Metadata that names another issuer is refused.
pub(super) async fn discover(fetcher: &Fetcher, config: &OauthConfig) -> Result<Metadata, String> {
    let mut last = String::new();
    for url in metadata_urls(&config.issuer) {
        let from = config.endpoint(&url)?;
        match get(fetcher, config, &from).await {
            Ok((StatusCode::OK, body)) => {
                let metadata = serde_json::from_slice::<Metadata>(&body);
                let metadata =
                    metadata.map_err(|_| format!("{url}: is no metadata of an issuer"))?;
                return metadata
                    .of(config)
                    .map_err(|error| format!("{url}: {error}"));
            }
            Ok((status, _)) => last = format!("{url}: answered {status}"),
            // After a failed connection the other URLs are not tried, since they have the same host.
            Err(error) => return Err(error),
        }
    }
    Err(format!("the issuer has no metadata: {last}"))
}

/// Sends a GET request for a document of an issuer.
///
/// # Errors
///
/// The cause, for the log.
pub(super) async fn get(
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

/// Returns the URLs at which an issuer's metadata may be, by the specifications.
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

impl Metadata {
    /// Returns the metadata if it names the configured issuer.
    ///
    /// # Errors
    ///
    /// If the metadata names another issuer.
    fn of(self, config: &OauthConfig) -> Result<Self, String> {
        match self.issuer == config.issuer {
            true => Ok(self),
            false => Err("its issuer is not the configured one".into()),
        }
    }

    /// Returns the URL of the issuer's keys.
    ///
    /// # Errors
    ///
    /// If the URL is missing, or the gateway may not connect to it.
    pub(super) fn keys(&self, config: &OauthConfig) -> Result<String, String> {
        endpoint(config, "jwks_uri", self.jwks_uri.as_deref())
    }

    /// Returns the URL of the token endpoint.
    ///
    /// # Errors
    ///
    /// If the URL is missing, or the gateway may not connect to it.
    pub(super) fn token(&self, config: &OauthConfig) -> Result<String, String> {
        endpoint(config, "token_endpoint", self.token_endpoint.as_deref())
    }

    /// Returns the URL of the authorization endpoint, to which browsers are sent.
    ///
    /// # Errors
    ///
    /// If the URL is missing, or the gateway may not connect to it.
    pub(super) fn authorization(&self, config: &OauthConfig) -> Result<String, String> {
        let url = self.authorization_endpoint.as_deref();
        endpoint(config, "authorization_endpoint", url)
    }
}

/// Returns an endpoint's URL from the metadata, if the gateway may connect to its address.
fn endpoint(config: &OauthConfig, member: &str, url: Option<&str>) -> Result<String, String> {
    let url = url.ok_or_else(|| format!("its metadata has no {member}"))?;
    let named = config.endpoint(url);
    let named = named.map_err(|error| format!("its {member} {error}"))?;
    let own = config.endpoint(&config.issuer)?;
    // This address was chosen by the issuer and not by the operator, so that it must be public.
    if let Host::Address(address, _) = &named.host
        && !config.allow_private
        && !is_public(*address)
        && named.host != own.host
    {
        return Err(format!(
            "its {member} leads to {address}, which is not public; allow_private would allow it"
        ));
    }
    Ok(url.to_owned())
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
                jwks_uri: Some(keys.to_owned()),
                ..Metadata::default()
            };
            metadata.of(config)?.keys(config)
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
