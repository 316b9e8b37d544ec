//! HTTP APIs that are served as tools: the place of an API's document, and the base URL of requests to the API.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tooldock_base::address::is_public;
use tooldock_base::regular_file;
use tooldock_base::server_failure::InvalidServer;
use tooldock_openapi::{ApiSettings, DOCUMENT_MAX, Document};

use super::backend::{Backend, Host};
use super::config::RemoteServerConfig;
use super::spec::{RemoteServer, RemoteSpec};

/// Placeholder URL of an API's backend while the configuration is checked and the document, a file, is not read yet.
const UNKNOWN: &str = "https://document.invalid/";

/// Settings of an API that other remote servers do not have, as configured.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiConfig {
    /// URL or path of the OpenAPI document.
    pub document: String,
    /// Base URL of requests; `None` for the first server in the document.
    pub base_url: Option<String>,
    /// Selection and names of the tools.
    pub settings: ApiSettings,
    /// Interval at which the document is read again.
    pub refresh: Duration,
}

/// An API that is served as tools, with its settings resolved.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiSpec {
    /// Place of the document.
    pub source: DocumentSource,
    /// URL of the document; `None` for a file.
    document_url: Option<String>,
    /// Modification time and size in bytes of the document's file, so that a reload notices a changed file; `None` for a URL, or
    /// if the file cannot be inspected.
    file: Option<(SystemTime, u64)>,
    /// Path of the configured base URL; `None` if the first server in the document decides the path.
    base_path: Option<String>,
    /// Selection and names of the tools.
    pub settings: ApiSettings,
    /// Interval at which the document is read again.
    pub refresh: Duration,
}

/// Place of an OpenAPI document.
#[derive(Clone, PartialEq, Eq)]
pub enum DocumentSource {
    /// A file.
    File(PathBuf),
    /// Path and query of the document at the API's own server. The document is requested with the API's credentials, which all
    /// principals share.
    SameServer(String),
    /// Another server than the API's, or the API's server if each principal has credentials of its own there. The document is
    /// requested without credentials.
    OtherServer(Arc<RemoteServer>),
}

impl fmt::Debug for ApiSpec {
    /// Prints no URL of the document, since a query may contain a credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            DocumentSource::File(path) => path.display().to_string(),
            DocumentSource::SameServer(_) => "same server".to_owned(),
            DocumentSource::OtherServer(_) => "other server".to_owned(),
        };
        f.debug_struct("ApiSpec")
            .field("source", &source)
            .field("file", &self.file)
            .field("base_path", &self.base_path)
            .field("settings", &self.settings)
            .field("refresh", &self.refresh)
            .finish_non_exhaustive()
    }
}

/// Returns true for the URL of a document, false for the path of a file.
fn is_url(document: &str) -> bool {
    ["http://", "https://", "unix:"].iter().any(|scheme| {
        let start = document.get(..scheme.len());
        start.is_some_and(|it| it.eq_ignore_ascii_case(scheme))
    })
}

impl ApiConfig {
    /// Returns the URL of the API's backend, without reading the document: the base URL, the document's URL, or [`UNKNOWN`].
    pub(crate) fn backend_url(&self) -> &str {
        match &self.base_url {
            Some(url) => url,
            None if is_url(&self.document) => &self.document,
            None => UNKNOWN,
        }
    }

    /// Returns the URL of the API's backend. Reads the document if it is a file and no base URL is configured.
    pub(super) fn placed(&self, allow_private: bool) -> Result<String, InvalidServer> {
        if self.base_url.is_some() || is_url(&self.document) {
            return Ok(self.backend_url().to_owned());
        }
        let named = named_server(Path::new(&self.document));
        let named = named.map_err(|message| {
            let remedy = "write a URL, or a path, which is relative to the directory in which the gateway is started";
            InvalidServer::new("spec", format!("{message}: {remedy}"))
        })?;
        let url = server_url(named, None, allow_private);
        url.map_err(|message| InvalidServer::new("base_url", message))
    }

    /// Resolves the settings of the API. `config` and `spec`: the configured and the resolved settings of its remote server.
    pub(super) fn resolve(
        &self,
        name: &tooldock_base::names::NamespaceName,
        config: &RemoteServerConfig,
        spec: &RemoteSpec,
    ) -> Result<ApiSpec, InvalidServer> {
        let own = spec.backends.first().map(|it| &it.backend);
        let is_own = |it: &Backend| own.is_some_and(|own| own.host == it.host && own.tls == it.tls);
        let (source, document_url) = match is_url(&self.document) {
            false => (DocumentSource::File(PathBuf::from(&self.document)), None),
            true => {
                let backend = Backend::parse(&self.document);
                let backend = backend.map_err(|message| InvalidServer::new("spec", message))?;
                // All principals use the same document, so it is not requested with the credentials of a single principal.
                let is_of_caller = spec.personal.is_needed() || config.takes_access_tokens();
                let source = match is_own(&backend) && !is_of_caller {
                    true => DocumentSource::SameServer(backend.target),
                    false => {
                        let server = RemoteServer::new(
                            name.member("openapi"),
                            spec.elsewhere(backend, "if-none-match"),
                        );
                        DocumentSource::OtherServer(Arc::new(server))
                    }
                };
                (source, Some(self.document.clone()))
            }
        };
        let file = match &source {
            DocumentSource::File(path) => version_of(path),
            _ => None,
        };
        let configured = self.base_url.as_ref().and(own);
        let base_path = configured.map(|it| it.path().trim_end_matches('/').to_owned());
        let mut settings = self.settings.clone();
        let rules = &config.headers;
        let named = rules.set.keys().chain(&rules.pass).chain(&rules.remove);
        settings.headers = named.map(|it| it.to_ascii_lowercase()).collect();
        Ok(ApiSpec {
            source,
            document_url,
            file,
            base_path,
            settings,
            refresh: self.refresh,
        })
    }
}

/// Returns the first server in a document's file; `None` if the document has no servers. Keeps the result while the file is
/// unchanged, so that not every reload parses it.
fn named_server(path: &Path) -> Result<Option<String>, String> {
    type Servers = BTreeMap<PathBuf, ((SystemTime, u64), Option<String>)>;
    static SERVERS: Mutex<Servers> = Mutex::new(BTreeMap::new());
    let servers = || SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let version = version_of(path);
    if let Some((known, named)) = servers().get(path)
        && Some(*known) == version
    {
        return Ok(named.clone());
    }
    let text = read_file(path)?;
    let document = Document::parse(&text).map_err(|error| error.to_string())?;
    let named = document.server_url();
    if let Some(version) = version {
        servers().insert(path.to_owned(), (version, named.clone()));
    }
    Ok(named)
}

/// Returns modification time and size in bytes of a file; `None` if the file cannot be inspected.
fn version_of(path: &Path) -> Option<(SystemTime, u64)> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len()))
}

/// Reads the file of a document.
///
/// # Errors
///
/// The reason, without the path: clients may see the message.
pub fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let read = regular_file::read_following(path, DOCUMENT_MAX as u64);
    read.map_err(|error| format!("cannot be read: {error}"))
}

impl ApiSpec {
    /// Returns the document's URL, which the `Debug` form leaves out; `None` for a file.
    pub(super) fn document_url(&self) -> Option<&str> {
        self.document_url.as_deref()
    }

    /// Returns the base path of requests to the API, without a slash at its end. `server`: the settings of its remote server.
    ///
    /// # Errors
    ///
    /// When the document's first server is not the API's server, which requests and credentials are sent to, or is not permitted.
    /// The sentence begins with "the document".
    pub fn base_path(&self, document: &Document, server: &RemoteSpec) -> Result<String, String> {
        if let Some(path) = &self.base_path {
            return Ok(path.clone());
        }
        let about = |message: String| format!("the document: base_url {message}");
        let from = self.document_url.as_deref();
        let url = server_url(document.server_url(), from, server.allow_private).map_err(about)?;
        let named = Backend::parse(&url).map_err(about)?;
        let own = server.backends.first().map(|it| &it.backend);
        match own.is_some_and(|own| own.host == named.host && own.tls == named.tls) {
            true => Ok(named.path().trim_end_matches('/').to_owned()),
            false => Err(format!(
                "the document names the server {url}, which is not where the document is: if requests and credentials may go \
                 there, write base_url: \"{url}\""
            )),
        }
    }
}

/// Returns the URL of the first server in a document. `named`: the server's URL in the document; without one, it is `/`. `from`:
/// the document's own URL, which a relative URL is joined to.
///
/// # Errors
///
/// When the URL is invalid, is relative without `from`, or has a Unix socket or a private address as host. A private address is
/// permitted with `allow_private`, and both are permitted as the host of `from`. The sentence is worded to follow `base_url`.
fn server_url(
    named: Option<String>,
    from: Option<&str>,
    allow_private: bool,
) -> Result<String, String> {
    let named = named.unwrap_or_else(|| "/".to_owned());
    let named = named.trim().to_owned();
    let url = match (named.contains("://"), from) {
        (true, _) => named,
        (false, Some(from)) => joined(from, &named),
        (false, None) => {
            return Err(
                "is missing, since the document names no server: write the API's URL".to_owned(),
            );
        }
    };
    let url = match url.trim_end_matches('/') {
        // The target of a Unix socket's URL must begin with a slash.
        socket if socket.starts_with("unix:") && socket.ends_with(':') => format!("{socket}/"),
        url => url.to_owned(),
    };
    let backend = Backend::parse(&url)
        .map_err(|why| format!("is missing, and the URL of the document's server {why}"))?;
    let is_written =
        from.is_some_and(|it| Backend::parse(it).is_ok_and(|it| it.host == backend.host));
    match backend.host {
        Host::Unix(_) if !is_written => {
            Err("is missing, and the document's server is a Unix socket".to_owned())
        }
        Host::Address(address, _) if !is_public(address) && !allow_private && !is_written => {
            Err(format!(
                "is missing, and the document names the private address {address}: write base_url, or allow_private: true"
            ))
        }
        _ => Ok(url),
    }
}

/// Joins a relative URL to the URL of the document (`from`).
fn joined(from: &str, relative: &str) -> String {
    let from = from.split(['?', '#']).next().unwrap_or_default();
    if let Some(socket) = from.strip_prefix("unix:") {
        let (socket, target) = socket.split_once(":/").unwrap_or((socket, ""));
        let below = joined(&format!("http://socket/{target}"), relative);
        return match below.strip_prefix("http://socket/") {
            Some(target) => format!("unix:{socket}:/{target}"),
            None => below,
        };
    }
    let scheme = from.find("://").map_or(0, |at| at + 3);
    if let Some(rest) = relative.strip_prefix("//") {
        return format!("{}//{rest}", &from[..scheme.saturating_sub(2)]);
    }
    let root = from[scheme..]
        .find('/')
        .map_or(from.len(), |at| scheme + at);
    if relative.starts_with('/') {
        return format!("{}{relative}", &from[..root]);
    }
    let mut segments: Vec<&str> = from[root..].split('/').collect();
    segments.pop();
    for segment in relative.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let path = segments
        .into_iter()
        .filter(|it| !it.is_empty())
        .collect::<Vec<_>>()
        .join("/");
    format!("{}/{path}", &from[..root])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(url: &str, from: Option<&str>, allow_private: bool) -> Result<String, String> {
        let text = format!(r#"{{"openapi":"3.0.0","servers":[{{"url":"{url}"}}]}}"#);
        let document = Document::parse(text.as_bytes()).expect("a document");
        server_url(document.server_url(), from, allow_private)
    }

    #[test]
    fn relative_servers_are_below_the_documents_url() {
        let from = Some("https://a.example/docs/v1/openapi.json?key=1");
        for (url, expected) in [
            ("/api/v3", "https://a.example/api/v3"),
            ("v2", "https://a.example/docs/v1/v2"),
            ("../v2/", "https://a.example/docs/v2"),
            ("//b.example/x", "https://b.example/x"),
            ("https://c.example", "https://c.example"),
            ("/", "https://a.example"),
        ] {
            assert_eq!(named(url, from, false).as_deref(), Ok(expected), "{url}");
        }
        assert!(
            named("/api", None, false)
                .expect_err("no server")
                .starts_with("is missing")
        );
    }

    #[test]
    fn relative_servers_are_at_the_socket_of_the_document() {
        let from = Some("unix:/run/a.sock:/docs/openapi.json");
        for (url, expected) in [
            ("/api", "unix:/run/a.sock:/api"),
            ("v2/", "unix:/run/a.sock:/docs/v2"),
            ("/", "unix:/run/a.sock:/"),
        ] {
            assert_eq!(named(url, from, false).as_deref(), Ok(expected), "{url}");
        }
        assert_eq!(
            named("//b.example/x", from, false).as_deref(),
            Ok("http://b.example/x")
        );
    }

    #[test]
    fn an_unchanged_file_keeps_its_server_and_a_changed_one_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.json");
        let write = |url: &str| {
            let text = format!(r#"{{"openapi":"3.0.0","servers":[{{"url":"{url}"}}]}}"#);
            std::fs::write(&file, text).expect("written");
        };
        for url in ["https://a.example", "https://longer.example"] {
            write(url);
            for _ in 0..2 {
                assert_eq!(named_server(&file), Ok(Some(url.to_owned())));
            }
        }
    }

    #[test]
    fn a_private_address_in_a_document_is_refused_unless_it_was_written() {
        let error = named("http://10.0.0.7/v1", None, false).expect_err("private");
        assert!(error.contains("the private address 10.0.0.7"), "{error}");
        assert!(named("http://10.0.0.7/v1", None, true).is_ok());
        let own = Some("http://10.0.0.7/openapi.json");
        assert!(named("/v1", own, false).is_ok());
        assert!(named("http://10.0.0.8/v1", own, false).is_err());
        assert!(named("unix:/run/a.sock", None, true).is_err());
    }

    #[test]
    fn files_and_urls_are_told_apart() {
        assert!(is_url("HTTPS://a/x") && is_url("unix:/run/a.sock:/x"));
        assert!(!is_url("petstore.yaml") && !is_url("/etc/https://x"));
    }
}
