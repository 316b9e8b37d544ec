//! The builder's HTTP client. Responses have a maximum size, and connections, including redirects, are made only to public
//! addresses.
//!
//! Registries that the operator configured may have private addresses. URLs in their responses may not, unless they have the
//! same host and port.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tooldock_base::address::is_public;
use tooldock_process::repositories::{BuilderConfig, BuilderError};
use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use url::Url;

use crate::reach::{Reach, refused};

/// Maximum duration of one HTTP request.
const REQUEST_TIME: Duration = Duration::from_secs(120);
const CONNECT_TIME: Duration = Duration::from_secs(15);
/// Maximum number of redirections of one HTTP request.
const REDIRECTS_MAX: u32 = 5;

/// URLs of the package registries, from the environment variables of npm, pip and uv. They may contain credentials and must
/// never be shown.
pub(crate) struct Registries {
    pub(crate) npm: Url,
    pub(crate) pypi: Url,
}

impl Registries {
    pub(crate) fn of_process() -> Result<Self, BuilderError> {
        Self::from(|name| std::env::var(name).ok())
    }

    pub(crate) fn from(variable: impl Fn(&str) -> Option<String>) -> Result<Self, BuilderError> {
        let url = |names: &[&str], default: &str| {
            let said = names
                .iter()
                .find_map(|name| Some((*name, variable(name).filter(|it| !it.is_empty())?)));
            let (name, text) = said.unwrap_or(("", default.to_owned()));
            Url::parse(&format!("{}/", text.trim_end_matches('/')))
                .ok()
                .filter(|it| matches!(it.scheme(), "http" | "https"))
                .ok_or_else(|| {
                    BuilderError::failed(format!(
                        "the variable {name} of the gateway is not the URL of a registry (http or https)."
                    ))
                })
        };
        Ok(Self {
            npm: url(
                &["npm_config_registry", "NPM_CONFIG_REGISTRY"],
                "https://registry.npmjs.org",
            )?,
            pypi: url(
                &["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"],
                "https://pypi.org/simple",
            )?,
        })
    }
}

/// HTTP client of the builder.
pub(crate) struct Client {
    agent: Agent,
    /// Credentials of the registries: a registry's host and port, and the value of the header `Authorization`.
    credentials: Vec<(String, String)>,
}

impl Client {
    pub(crate) fn new(
        config: &BuilderConfig,
        registries: &Registries,
    ) -> Result<Self, BuilderError> {
        let mut trusted = Vec::new();
        let mut credentials = Vec::new();
        let of_config = Url::parse(&config.registry).ok();
        for url in [&registries.npm, &registries.pypi]
            .into_iter()
            .chain(&of_config)
        {
            let place = place(url);
            if !url.username().is_empty() {
                let decoded = |text: &str| percent_decoded(text);
                let pair = format!(
                    "{}:{}",
                    decoded(url.username()),
                    decoded(url.password().unwrap_or_default())
                );
                credentials.push((place.clone(), format!("Basic {}", STANDARD.encode(pair))));
            }
            trusted.push(place);
        }
        let roots = rustls_native_certs::load_native_certs().certs;
        let roots = roots.iter().map(|it| Certificate::from_der(it).to_owned());
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(RootCerts::from(roots))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let config_of_agent = Config::builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(REDIRECTS_MAX)
            .timeout_global(Some(REQUEST_TIME))
            .timeout_connect(Some(CONNECT_TIME))
            .user_agent("tooldock")
            .build();
        let resolver = PublicOnly {
            reach: Reach::new(config),
            trusted,
            inner: DefaultResolver::default(),
        };
        Ok(Self {
            agent: Agent::with_parts(config_of_agent, DefaultConnector::default(), resolver),
            credentials,
        })
    }

    /// Fetches a URL, and returns the body of a successful response of at most `bytes_max` bytes.
    ///
    /// # Errors
    ///
    /// The message names the host and describes the problem.
    pub(crate) fn get(
        &self,
        url: &str,
        accept: &str,
        bytes_max: u64,
    ) -> Result<Vec<u8>, BuilderError> {
        let mut url = Url::parse(url)
            .ok()
            .filter(|it| matches!(it.scheme(), "http" | "https") && it.has_host())
            .ok_or_else(|| {
                BuilderError::unavailable("a registry pointed at something that is no URL.")
            })?;
        // Credentials are removed from the URL, so that errors do not show them; they are sent as a header.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        let host = url.host_str().unwrap_or_default().to_owned();
        let mut request = self.agent.get(url.as_str()).header("accept", accept);
        if let Some((_, credentials)) = self.credentials.iter().find(|it| it.0 == place(&url)) {
            request = request.header("authorization", credentials);
        }
        let failed = |error: ureq::Error| explain(&host, bytes_max, error);
        let mut response = request.call().map_err(failed)?;
        let status = response.status().as_u16();
        match status {
            200 => {}
            404 | 410 => {
                return Err(BuilderError::not_found(format!("{url} does not exist.")));
            }
            401 | 403 => {
                return Err(BuilderError::unavailable(format!(
                    "{host} refuses access to {url} (status {status}). The operator can name a registry with credentials in \
                     the usual variables."
                )));
            }
            _ => {
                return Err(BuilderError::unavailable(format!(
                    "{host} answered {url} with status {status}. Try again later, or check the address of the registry."
                )));
            }
        }
        let body = response.body_mut().with_config().limit(bytes_max);
        body.read_to_vec().map_err(failed)
    }
}

fn explain(host: &str, bytes_max: u64, error: ureq::Error) -> BuilderError {
    match error {
        ureq::Error::BodyExceedsLimit(_) => BuilderError::too_large(format!(
            "the answer of {host} is larger than {} MiB.",
            bytes_max / (1024 * 1024)
        )),
        ureq::Error::Io(error) if error.get_ref().is_some_and(|it| it.is::<BuilderError>()) => {
            let inner = error
                .into_inner()
                .and_then(|it| it.downcast::<BuilderError>().ok());
            inner.map_or_else(|| BuilderError::failed("refused"), |it| *it)
        }
        error => BuilderError::unavailable(format!(
            "{host} cannot be reached: {error}. Check the gateway's access to the network, its proxy settings, or the address \
             of the registry."
        )),
    }
}

/// DNS resolver that fails for private addresses, unless the host is trusted.
struct PublicOnly {
    reach: Reach,
    /// Hosts and ports of the registries that the operator configured; they may have private addresses.
    trusted: Vec<String>,
    inner: DefaultResolver,
}

impl fmt::Debug for PublicOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicOnly").finish_non_exhaustive()
    }
}

impl Resolver for PublicOnly {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        let host = uri.host().unwrap_or_default();
        let of_operator =
            Url::parse(&uri.to_string()).is_ok_and(|it| self.trusted.contains(&place(&it)));
        // The operator's HTTP proxy may have a private address; the proxy itself decides to which hosts it connects.
        let is_proxy = config.proxy().is_some_and(|proxy| proxy.host() == host);
        let private = found.iter().find(|it| !is_public(it.ip()));
        match private {
            Some(address) if !of_operator && !is_proxy && !self.reach.is_trusted(host) => Err(
                ureq::Error::Io(io::Error::other(refused(host, address.ip()))),
            ),
            _ => Ok(found),
        }
    }
}

fn place(url: &Url) -> String {
    format!(
        "{}:{}",
        url.host_str().unwrap_or_default(),
        url.port_or_known_default().unwrap_or(0)
    )
}

fn percent_decoded(text: &str) -> String {
    let pairs = format!("v={}", text.replace('+', "%2B"));
    url::form_urlencoded::parse(pairs.as_bytes())
        .next()
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}
