//! Resolution of a configured remote server: the values of variables are inserted, and certificates are read.

use std::collections::BTreeSet;
use std::path::Path;

use tooldock_base::names::NamespaceName;
use tooldock_base::regular_file;
use tooldock_base::secret::Secret;
use tooldock_base::server_failure::{ExternalFailure, INVALID, InvalidServer, MISSING};
use tooldock_base::template::{NoValue, Sources, Template};
use tooldock_credentials::personal::Personal;
use tooldock_credentials::secrets::Secrets;

use super::backend::{Backend, BackendConfig};
use super::config::{RemoteServerConfig, RemoteTls};
use super::headers::is_header_value;
use super::oauth::OAuthConfig;
use super::spec::{BackendSpec, HeaderRules, Pem, RemoteSpec, TlsIdentity, TlsSpec};

/// Maximum size of a file with certificates or a key, in bytes.
const PEM_MAX: u64 = 4 * 1024 * 1024;

/// Error text for a value that no header can hold.
const UNSENDABLE: &str = "has a control character, such as a line end, in its value";

/// The names of the variables that a server's settings refer to, each once.
pub(crate) fn variables(config: &RemoteServerConfig) -> Vec<String> {
    let oauth = config.oauth.iter().flat_map(OAuthConfig::credentials);
    let templates = config.headers.set.values().chain(&config.credentials);
    let templates = templates.chain(oauth);
    let names: BTreeSet<_> = templates
        .flat_map(Template::names)
        .map(str::to_owned)
        .collect();
    names.into_iter().collect()
}

/// Resolves the configuration of a server to the settings with which it is called.
pub(crate) fn spec(
    name: &NamespaceName,
    config: &RemoteServerConfig,
    secrets: &Secrets,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<RemoteSpec, ExternalFailure> {
    let fails = |code, reason| ExternalFailure::new(name, "cannot be reached", code, reason);
    config.validate().map_err(|reason| fails(INVALID, reason))?;
    let placed;
    let config = match &config.api {
        None => config,
        Some(api) => {
            let url = api
                .placed(config.allow_private)
                .map_err(|reason| fails(INVALID, reason))?;
            placed = RemoteServerConfig {
                backends: vec![BackendConfig::new(url)],
                ..config.clone()
            };
            &placed
        }
    };
    let secrets = secrets.for_namespace(&name.owner()).values;
    let sources = Sources {
        secrets: &secrets,
        environment,
        allowed: None,
    };
    let told = |key: &str, error: NoValue| {
        let code = match error {
            NoValue::Missing(_) => MISSING,
            NoValue::Own(_) | NoValue::NotAllowed(_) | NoValue::Malformed => INVALID,
        };
        fails(code, InvalidServer::new(key, error.to_string()))
    };
    let mut hidden = Vec::new();
    let mut personal = Personal::new(&config.personal);
    // Settings with personal values are resolved later, when the caller is known.
    let mut fill = |key: String, header: &str, template: &Template| {
        let told = |error| told(&key, error);
        if personal.take(header, template, &sources).map_err(told)? {
            return Ok(None);
        }
        let value = template.fill(&sources).map_err(told)?;
        if !is_header_value(value.expose()) {
            return Err(fails(INVALID, InvalidServer::new(key, UNSENDABLE)));
        }
        hidden.extend(template.hidden(&sources));
        Ok(Some(value))
    };
    let passes = config.passes_credentials();
    let credentials = config.credentials.as_ref().filter(|_| !passes);
    let credentials = credentials
        .map(|it| fill("credentials".into(), "authorization", it))
        .transpose()?
        .flatten();
    let mut set = Vec::new();
    for (header, template) in &config.headers.set {
        let lower = header.to_ascii_lowercase();
        let value = fill(format!("headers.set.{header}"), &lower, template)?;
        set.extend(value.map(|value| (lower, value)));
    }
    let mut oauth = None;
    if let (Some(wanted), Some(first)) = (&config.oauth, config.backends.first()) {
        let mut credential = |key: &str, template: &Template| {
            let key = format!("oauth.{key}");
            let value = template.fill(&sources);
            let value = value.map_err(|error| told(&key, error))?;
            hidden.extend(template.hidden(&sources));
            // A private key has several lines, and is never the value of a header.
            if !key.ends_with("client_key") && !is_header_value(value.expose()) {
                return Err(fails(INVALID, InvalidServer::new(key, UNSENDABLE)));
            }
            Ok(value)
        };
        oauth = Some(wanted.spec(&first.url, &mut credential)?);
    }
    if let Some(by) = config.oauth.as_ref().and_then(OAuthConfig::authorized_by) {
        personal.authorize(by);
    }
    let lower = |names: &[String]| names.iter().map(|it| it.to_ascii_lowercase()).collect();
    let mut pass: Vec<String> = lower(&config.headers.pass);
    // For an exchange, the client's header is passed to the HTTP client, which replaces its token before the request is sent.
    let takes_tokens = config.takes_access_tokens();
    pass.extend(takes_tokens.then(|| "authorization".to_owned()));
    let mut backends = Vec::new();
    for (index, entry) in config.backends.iter().enumerate() {
        let backend = Backend::parse(&entry.url).map_err(|message| {
            fails(
                INVALID,
                InvalidServer::new(format!("backends[{index}]"), message),
            )
        })?;
        backends.push(BackendSpec {
            id: backend.id(),
            backend,
            weight: entry.weight,
            backup: entry.backup,
        });
    }
    let mut spec = RemoteSpec {
        backends,
        balance: config.balance,
        mode: config.mode,
        transport: config.transport,
        isolation: config.isolation,
        stateful: config.stateful,
        lists: config.lists,
        allow_private: config.allow_private,
        headers: HeaderRules {
            forward_id: config.headers.forward_id,
            set,
            remove: lower(&config.headers.remove),
            pass,
        },
        credentials,
        personal,
        oauth,
        secrets: hidden,
        tls: config.tls.read().map_err(|reason| fails(INVALID, reason))?,
        timeouts: config.timeouts,
        keepalive: config.keepalive,
        retry: config.retry,
        health: config.health.clone(),
        api: None,
    };
    if let Some(api) = &config.api {
        let api = api
            .resolve(name, config, &spec)
            .map_err(|reason| fails(INVALID, reason))?;
        spec.api = Some(api);
    }
    Ok(spec)
}

impl RemoteTls {
    /// Reads the files with certificates and keys. Their content is not validated.
    ///
    /// # Errors
    ///
    /// The configuration key whose file cannot be read.
    pub fn read(&self) -> Result<TlsSpec, InvalidServer> {
        let read = |key: &str, path: &Option<std::path::PathBuf>| {
            let content = path.as_deref().map(content).transpose();
            content.map_err(|message| InvalidServer::new(key, message))
        };
        let keys = self;
        let ca = read("tls.ca", &keys.ca)?.map(|it| Pem(it.into()));
        let identity = match (read("tls.cert", &keys.cert)?, read("tls.key", &keys.key)?) {
            (Some(cert), Some(key)) => {
                let key = String::from_utf8(key)
                    .map_err(|_| InvalidServer::new("tls.key", "is not PEM"))?;
                Some(TlsIdentity {
                    cert: Pem(cert.into()),
                    key: Secret::new(key),
                })
            }
            _ => None,
        };
        Ok(TlsSpec {
            ca,
            identity,
            server_name: keys.server_name.clone(),
            verify: keys.verify,
        })
    }
}

/// Returns an error if a path is PEM text. The error does not quote the text, which may be a private key.
///
/// # Errors
///
/// The remedy, as the end of a message that begins with the configuration key.
pub fn pem_path(path: &Path) -> Result<&Path, String> {
    match path.to_string_lossy().contains("-----BEGIN") {
        true => Err(
            "holds PEM text, which is not shown: write the path of a file that has it".to_owned(),
        ),
        false => Ok(path),
    }
}

fn content(path: &Path) -> Result<Vec<u8>, String> {
    let path = pem_path(path)?;
    let told = |error: std::io::Error| format!("{}: {error}", path.display());
    regular_file::read_following(path, PEM_MAX).map_err(told)
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    #[test]
    fn pem_text_in_the_place_of_a_path_is_refused_and_not_repeated() {
        let tls = RemoteTls {
            cert: Some("-----BEGIN CERTIFICATE-----".into()),
            key: Some("-----BEGIN PRIVATE KEY-----hunter2".into()),
            ..RemoteTls::default()
        };
        let error = tls.read().expect_err("no path");
        assert_eq!(error.key, "tls.cert");
        assert!(
            error.message.contains("write the path of a file"),
            "{error:?}"
        );
        let key = RemoteTls { cert: None, ..tls };
        let error = key.read().expect_err("no path");
        assert!(
            error.key == "tls.key" && !error.message.contains("hunter2"),
            "{error:?}"
        );
        assert_eq!(pem_path(Path::new("key.pem")), Ok(Path::new("key.pem")));
    }

    fn stored() -> Secrets {
        Secrets::global([
            ("STORED", Secret::new("hunter3")),
            ("LINES", Secret::new("hunter4\r\nx: y")),
        ])
    }

    fn resolved(yaml: &str) -> Result<RemoteSpec, ExternalFailure> {
        let config: RemoteServerConfig = yaml::from_str(yaml).expect(yaml);
        let environment = |name: &str| (name == "HERE").then(|| "hunter2".to_owned());
        spec(
            &"a".parse().expect("a name"),
            &config,
            &stored(),
            &environment,
        )
    }

    #[test]
    fn credentials_and_headers_take_secrets_and_variables_of_the_gateway() {
        let spec = resolved(
            "{ backends: ['https://A/mcp'], credentials: 'Bearer ${STORED}', \
             headers: { set: { X-Key: '${HERE}' }, remove: [X-B], pass: [X-C] } }",
        )
        .expect("a spec");
        assert_eq!(spec.backends[0].id.as_str(), "a:443");
        assert_eq!(
            spec.credentials.as_ref().map(Secret::expose),
            Some("Bearer hunter3")
        );
        let (name, value) = &spec.headers.set[0];
        assert_eq!((name.as_str(), value.expose()), ("x-key", "hunter2"));
        assert_eq!(
            (spec.headers.remove, spec.headers.pass),
            (vec!["x-b".to_owned()], vec!["x-c".to_owned()])
        );
        let hidden: Vec<_> = spec.secrets.iter().map(Secret::expose).collect();
        assert_eq!(hidden, ["hunter3", "Bearer hunter3", "hunter2", "hunter2"]);
    }

    #[test]
    fn the_word_pass_is_no_credential_but_passes_the_clients_own_on() {
        let spec = resolved("{ backends: ['https://a'], credentials: pass }").expect("a spec");
        assert_eq!((spec.credentials, spec.secrets.len()), (None, 0));
        assert_eq!(spec.headers.pass, ["authorization"]);
        let spec = resolved("{ backends: ['https://a'], credentials: 'Bearer pass' }");
        let credentials = spec.expect("a spec").credentials;
        assert_eq!(
            credentials.as_ref().map(Secret::expose),
            Some("Bearer pass")
        );
    }

    #[test]
    fn what_cannot_be_looked_up_or_read_names_its_key_and_no_value() {
        for (yaml, key, code) in [
            (
                "credentials: 'Bearer ${STORED} ${NOT_SET}'",
                "credentials",
                MISSING,
            ),
            ("credentials: '${BEARER_TOKEN}'", "credentials", INVALID),
            ("credentials: '${LINES}'", "credentials", INVALID),
            ("headers: { set: { A: '${' } }", "headers.set.A", INVALID),
            ("tls: { ca: /no/such/file }", "tls.ca", INVALID),
            ("tls: { ca: /etc }", "tls.ca", INVALID),
            ("balance: random, keepalive: 20000", "keepalive", INVALID),
        ] {
            let failure = resolved(&format!("{{ backends: ['https://a'], {yaml} }}"));
            let failure = failure.expect_err(yaml);
            assert_eq!((&*failure.reason.key, failure.code), (key, code), "{yaml}");
            assert!(!failure.error.message.contains("hunter"), "{failure:?}");
            assert_eq!(failure.keeps_old, code == INVALID);
        }
    }
}
