//! The configuration keys of one HTTP API, under `upstreams.openapi`. An API is a remote server whose tools come from an OpenAPI
//! document.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tooldock_base::bounds::{TIMES, within};
use tooldock_base::config::{LimitsPatch, PinMode};
use tooldock_base::names::NamespaceName;
use tooldock_base::server_failure::InvalidServer;
use tooldock_base::template::Template;
use tooldock_openapi::{ApiSettings, NameSource, check_patterns};

use crate::remote::{
    ApiConfig, BackendConfig, HeadersConfig, Mode, OAuthConfig, RemoteServerConfig, RemoteTimeouts,
    RemoteTls, Transport,
};
use crate::server_settings::Isolation;

/// Configuration key `upstreams.openapi:`, with the APIs by namespace.
pub type OpenApiServersConfig = BTreeMap<NamespaceName, OpenApiServerConfig>;

/// Value of `base_url` that stands for the first server in the document.
const AUTO: &str = "auto";

/// Configuration of an HTTP API. The key `spec` is required; `Default` has the default values of all other keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpenApiServerConfig {
    /// URL or path of the OpenAPI document, in JSON or YAML.
    pub spec: String,
    /// URL that the paths of the document are appended to; `auto` for the first server in the document.
    pub base_url: String,
    /// Patterns of the operations that become tools: names of tools, `GET /path`, or `tag:NAME`.
    pub include: Vec<String>,
    /// Patterns of the operations that become no tools.
    pub exclude: Vec<String>,
    /// Source of the names of tools.
    pub names: NameSource,
    /// Interval at which the document is read again.
    #[serde(with = "humantime_serde")]
    pub refresh: Duration,
    /// True if host names may resolve to addresses that are not public, and the document may name a server with such an address;
    /// false if both are refused.
    pub allow_private: bool,
    /// Changes to the headers of requests.
    pub headers: HeadersConfig,
    /// Value of the header `Authorization` in every request; see the same key of remote servers.
    pub credentials: Option<Template>,
    /// Names in `credentials` and `headers.set` for which each principal stores its own value.
    pub personal: Vec<String>,
    /// Settings with which the gateway requests access tokens for the API, instead of `credentials`.
    pub oauth: Option<OAuthConfig>,
    /// Settings of encrypted connections.
    pub tls: RemoteTls,
    /// Time limits for the steps of a request.
    pub timeouts: RemoteTimeouts,
    /// Treatment of tool definitions that differ from the recorded ones. Replaces `limits.pins` if both are set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pins: Option<PinMode>,
    /// Limits of the API's namespace, such as the time limit of a call.
    pub limits: LimitsPatch,
    /// True if the API is served under its namespace; false if it is switched off.
    pub enabled: bool,
}

impl Default for OpenApiServerConfig {
    fn default() -> Self {
        Self {
            spec: String::new(),
            base_url: AUTO.to_owned(),
            include: vec!["*".to_owned()],
            exclude: Vec::new(),
            names: NameSource::OperationId,
            refresh: Duration::from_secs(300),
            allow_private: false,
            headers: HeadersConfig::default(),
            credentials: None,
            personal: Vec::new(),
            oauth: None,
            tls: RemoteTls::default(),
            timeouts: RemoteTimeouts::default(),
            pins: None,
            limits: LimitsPatch::default(),
            enabled: true,
        }
    }
}

impl OpenApiServerConfig {
    /// Returns the configuration of the remote server that the API is served as.
    pub fn as_remote(&self) -> RemoteServerConfig {
        let api = ApiConfig {
            document: self.spec.clone(),
            base_url: (self.base_url != AUTO).then(|| self.base_url.clone()),
            settings: ApiSettings {
                include: self.include.clone(),
                exclude: self.exclude.clone(),
                names: self.names,
                headers: Vec::new(),
            },
            refresh: self.refresh,
        };
        let has_own =
            !self.personal.is_empty() || self.oauth.as_ref().is_some_and(|it| it.personal);
        let config = RemoteServerConfig {
            backends: vec![BackendConfig::new(api.backend_url())],
            mode: Mode::Client,
            transport: Transport::Streamable,
            allow_private: self.allow_private,
            headers: self.headers.clone(),
            credentials: self.credentials.clone(),
            personal: self.personal.clone(),
            oauth: self.oauth.clone(),
            tls: self.tls.clone(),
            timeouts: self.timeouts,
            pins: self.pins,
            limits: self.limits.clone(),
            enabled: self.enabled,
            api: Some(api),
            ..RemoteServerConfig::default()
        };
        RemoteServerConfig {
            // An API sends no requests to clients, so that clients with the same credentials can share a session.
            isolation: match has_own || config.takes_access_tokens() {
                true => Isolation::Auto,
                false => Isolation::Shared,
            },
            ..config
        }
    }

    /// Checks the keys, as far as possible without I/O. Does not check an API that is switched off.
    ///
    /// # Errors
    ///
    /// The first invalid key, and the remedy.
    pub fn validate(&self) -> Result<(), InvalidServer> {
        if !self.enabled {
            return Ok(());
        }
        let wrong = |key: &str, message: &str| Err(InvalidServer::new(key, message));
        if self.spec.is_empty() {
            return wrong(
                "spec",
                "is missing: write the URL or the path of the API's OpenAPI document",
            );
        }
        if self.spec.starts_with("file:") {
            return wrong(
                "spec",
                "is a file: URL: write the path alone, without file://",
            );
        }
        if self.base_url.contains('?') {
            return wrong(
                "base_url",
                "has a query: write headers or credentials for what every request needs",
            );
        }
        for (key, patterns) in [("include", &self.include), ("exclude", &self.exclude)] {
            check_patterns(patterns).map_err(|message| InvalidServer::new(key, message))?;
        }
        within(self.refresh, &TIMES).map_err(|message| InvalidServer::new("refresh", message))?;
        self.as_remote()
            .validate()
            .map_err(|error| match error.key.starts_with("backends") {
                true if self.base_url == AUTO => InvalidServer::new("spec", error.message),
                true => InvalidServer::new("base_url", error.message),
                false => error,
            })
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;
    use tooldock_credentials::secrets::Secrets;

    use super::*;
    use crate::remote::{DocumentSource, RemoteServer};

    fn parse(yaml: &str) -> OpenApiServerConfig {
        yaml::from_str(yaml).expect(yaml)
    }

    #[test]
    fn an_api_may_take_tokens_that_are_exchanged_for_those_of_callers() {
        let yaml = "{ spec: a.yaml, base_url: 'https://a.example', oauth: { grant: token_exchange, client_id: i, \
                    client_secret: '${S}', token_url: 'https://b.example/t' } }";
        let api = parse(yaml);
        api.validate().expect("valid");
        assert_eq!(api.as_remote().isolation, Isolation::Auto);
        let without = parse("{ spec: a.yaml, base_url: 'https://a.example' }");
        assert_eq!(without.as_remote().isolation, Isolation::Shared);
    }

    #[test]
    fn the_first_wrong_key_is_named() {
        for (yaml, said) in [
            ("{}", "spec: is missing"),
            ("{ spec: 'ftp://a/x' }", ""),
            ("{ spec: 'file:///a.json' }", "spec: is a file: URL"),
            ("{ spec: 'https://a b/' }", "spec: has a space"),
            (
                "{ spec: a.yaml, base_url: 'a.example' }",
                "base_url: has no scheme",
            ),
            (
                "{ spec: a.yaml, base_url: 'https://a/?k=1' }",
                "base_url: has a query",
            ),
            (
                "{ spec: a.yaml, include: ['a['] }",
                "include: \"a[\" is no pattern",
            ),
            ("{ spec: a.yaml, refresh: 0s }", "refresh: "),
            ("{ spec: a.yaml, personal: [T] }", "personal"),
            ("{ enabled: false }", ""),
        ] {
            let error = parse(yaml)
                .validate()
                .err()
                .map(|it| it.to_string())
                .unwrap_or_default();
            assert!(
                error.starts_with(said) && error.is_empty() == said.is_empty(),
                "{yaml}: {error}"
            );
        }
    }

    fn resolved(yaml: &str) -> RemoteServer {
        let name = "pets".parse().expect("a name");
        let environment = |_: &str| Some("hunter2".to_owned());
        let config = parse(yaml).as_remote();
        RemoteServer::resolve(&name, &config, &Secrets::default(), &environment).expect(yaml)
    }

    #[test]
    fn only_the_api_itself_gets_the_credentials() {
        let key = "credentials: 'Bearer ${TOKEN}'";
        let server = resolved(&format!("{{ spec: 'https://a/o.json', {key} }}"));
        let api = server.spec.api.expect("an API");
        assert!(matches!(api.source, DocumentSource::SameServer(target) if target == "/o.json"));
        let server = resolved(&format!(
            "{{ spec: 'https://b/o.json', base_url: 'https://a/v1', {key} }}"
        ));
        assert_eq!(server.spec.backends[0].id.as_str(), "a:443");
        let api = server.spec.api.as_ref().expect("an API");
        let DocumentSource::OtherServer(other) = &api.source else {
            panic!("{api:?}");
        };
        assert_eq!(other.spec.backends[0].id.as_str(), "b:443");
        assert!(other.spec.credentials.is_none() && server.spec.credentials.is_some());
    }

    #[test]
    fn a_file_decides_the_base_url() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("api.yaml");
        std::fs::write(
            &file,
            "openapi: 3.1.0\nservers: [{ url: 'https://api.example/v2/' }]\n",
        )
        .expect("written");
        let server = resolved(&format!("{{ spec: '{}' }}", file.display()));
        assert_eq!(server.spec.backends[0].backend.target, "/v2");
        std::fs::write(
            &file,
            "openapi: 3.1.0\nservers: [{ url: 'http://192.168.0.1/' }]\n",
        )
        .expect("written");
        let name = "pets".parse().expect("a name");
        let config = parse(&format!("{{ spec: '{}' }}", file.display())).as_remote();
        let error = RemoteServer::resolve(&name, &config, &Secrets::default(), &|_| None)
            .expect_err("private");
        assert!(
            error
                .to_string()
                .starts_with("base_url: is missing, and the document names the private address"),
            "{error}"
        );
    }
}
