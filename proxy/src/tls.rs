//! The TLS settings of listeners. Certificates are read and checked before the listeners start, and are replaced while they run.
//!
//! A reload reads the files again and replaces certificates, TLS versions and authorities for client certificates in one step:
//! handshakes that begin afterwards use the new ones. If a file is unusable, this is reported and the previous settings stay.
//! They also stay if clients would refuse the new certificate because of its dates or names, provided that the previous one is
//! valid. At a start there is no previous certificate: one with wrong dates or names is reported but used, so that other
//! listeners, and clients that do not check certificates, are served meanwhile.

mod by_name;
mod client;
mod facts;
pub(crate) mod mutual;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora_core::listeners::TlsAccept;
use pingora_core::listeners::tls::{Acceptor, TlsSettings};
use pingora_core::protocols::tls::TlsRef;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use tooldock_filters::host::HostPattern;
use tooldock_filters::{self as filters, ClientCertificate};
use tooldock_workers::remote::pem_path;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use self::by_name::CertificatesByName;
use self::client::Authorities;
use self::facts::CertificateFacts;
pub(crate) use self::facts::ExpectedNames;
use crate::config::{KeyPairFiles, TlsConfig, TlsVersion};
use crate::connection::{self, ConnectionLimits, MultiplexedRequest, OpenConnection};

/// The TLS settings of a listener. A reload can replace them.
pub(crate) struct TlsListener {
    name: String,
    loopback: bool,
    acceptor: ArcSwap<Acceptor>,
    /// The certificates that the listener uses, with their files.
    shown: Mutex<Vec<ServedCertificate>>,
    /// The authorities that verify client certificates at this listener.
    authorities: Mutex<Arc<Trust>>,
}

/// The TLS settings of a listener as created from its files.
struct ListenerTls {
    acceptor: Acceptor,
    shown: Vec<ServedCertificate>,
    trust: Arc<Trust>,
}

/// The authorities that verify client certificates in handshakes. Each connection keeps a reference to the authorities of its
/// handshake, and can check whether a reload has replaced them.
struct Trust {
    authorities: Option<Authorities>,
    replaced: AtomicBool,
}

/// A certificate in use, with its file.
struct ServedCertificate {
    file: PathBuf,
    facts: CertificateFacts,
}

/// A certificate chain with its key, as read from the files.
struct KeyPair {
    file: PathBuf,
    certified: Arc<CertifiedKey>,
    facts: CertificateFacts,
}

impl TlsListener {
    /// Reads the files of a listener. A certificate that clients would refuse is reported in the log, but used nevertheless.
    ///
    /// # Errors
    ///
    /// A line of text that names the file at fault.
    pub(crate) fn open(
        name: &str,
        config: &TlsConfig,
        expected: ExpectedNames<'_>,
    ) -> Result<Arc<Self>, String> {
        let ListenerTls {
            acceptor,
            shown,
            trust,
        } = read_files(config, None)?;
        let opened = Self {
            name: name.to_owned(),
            loopback: expected.loopback,
            acceptor: ArcSwap::from_pointee(acceptor),
            shown: Mutex::new(shown),
            authorities: Mutex::new(trust),
        };
        for shown in opened.shown().iter() {
            if let Some(problem) = shown.problem(expected) {
                opened.complain(&problem);
            }
        }
        Ok(Arc::new(opened))
    }

    /// Reads the files again. The result is used after [`PreparedTls::put_into_force`] is called.
    ///
    /// # Errors
    ///
    /// A line of text that names the file at fault.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        config: &TlsConfig,
        hosts: &[HostPattern],
    ) -> Result<PreparedTls, String> {
        let expected = ExpectedNames {
            hosts,
            loopback: self.loopback,
        };
        let before = Arc::clone(&self.authorities());
        let made = read_files(config, Some(&before))?;
        let mut problems = Vec::new();
        for next in &made.shown {
            let Some(problem) = next.problem(expected) else {
                continue;
            };
            // A certificate that clients would refuse replaces only one that they refuse as well.
            let shown = self.shown();
            let before = shown.iter().find(|shown| shown.file == next.file);
            let was_bad = before.is_some_and(|it| it.problem(expected).is_some());
            if !was_bad {
                return Err(problem);
            }
            problems.push(problem);
        }
        Ok(PreparedTls {
            listener: Arc::clone(self),
            made,
            before,
            problems,
        })
    }

    /// The name of the listener.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The earliest expiry of the listener's certificates, in seconds since the Unix epoch.
    pub(crate) fn not_after(&self) -> i64 {
        let shown = self.shown();
        let ends = shown.iter().map(|shown| shown.facts.not_after());
        ends.min().unwrap_or_default()
    }

    /// The acceptor to use for the handshake of a new connection.
    pub(crate) fn acceptor(&self) -> Arc<Acceptor> {
        self.acceptor.load_full()
    }

    fn complain(&self, problem: &str) {
        tracing::error!(listener = self.name, "{problem}: clients will refuse it");
    }

    fn authorities(&self) -> MutexGuard<'_, Arc<Trust>> {
        let authorities = self.authorities.lock();
        authorities.unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> MutexGuard<'_, Vec<ServedCertificate>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The TLS settings that were read from the present files of a listener, but are not in force yet.
pub(crate) struct PreparedTls {
    listener: Arc<TlsListener>,
    made: ListenerTls,
    before: Arc<Trust>,
    /// The reasons why clients will refuse some of the certificates. The certificates are used nevertheless.
    problems: Vec<String>,
}

impl PreparedTls {
    /// The name of the listener for which the settings were read.
    pub(crate) fn listener(&self) -> &str {
        self.listener.name()
    }

    /// If the new authorities differ from the old ones, invalidates all client certificates that the old ones have verified and
    /// returns true.
    pub(crate) fn retire_authorities(&self) -> bool {
        let replaced = self.has_other_authorities();
        if replaced {
            self.before.replaced.store(true, Ordering::Release);
        }
        replaced
    }

    /// Returns true if the authorities for client certificates differ from those in force.
    pub(crate) fn has_other_authorities(&self) -> bool {
        !Arc::ptr_eq(&self.before, &self.made.trust)
    }

    /// Makes new handshakes of the listener use these settings.
    pub(crate) fn put_into_force(self) {
        for problem in &self.problems {
            self.listener.complain(problem);
        }
        let ListenerTls {
            acceptor,
            shown,
            trust,
        } = self.made;
        self.listener.acceptor.store(Arc::new(acceptor));
        *self.listener.shown() = shown;
        *self.listener.authorities() = trust;
    }
}

impl ServedCertificate {
    /// The reason why clients would refuse the certificate now; `None` if they accept it.
    fn problem(&self, expected: ExpectedNames<'_>) -> Option<String> {
        let problem = self.facts.problem(SystemTime::now(), expected)?;
        Some(format!("{}: {problem}", self.file.display()))
    }
}

/// Checks that the files of a listener can be used. The result is discarded.
///
/// # Errors
///
/// A line of text that names the file at fault.
pub(crate) fn check_usable(config: &TlsConfig, _: ExpectedNames<'_>) -> Result<(), String> {
    read_files(config, None).map(drop)
}

/// The time at which a certificate expires.
#[derive(Debug, Clone)]
pub(crate) struct CertificateEnd {
    /// The expiry of the certificate in seconds since the Unix epoch.
    pub(crate) seconds: i64,
    /// The expiry of the certificate as text, with its time zone.
    pub(crate) shown: String,
}

impl CertificateEnd {
    /// The expiry of a certificate in DER encoding; `None` if it cannot be read.
    pub(crate) fn of(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let end = certificate.validity().not_after;
        Some(Self {
            seconds: end.timestamp(),
            shown: end.to_string(),
        })
    }
}

/// The files of a listener's certificates, each with the certificate's expiry.
///
/// # Errors
///
/// A line of text that names the file at fault.
pub(crate) fn ends(config: &TlsConfig) -> Result<Vec<(PathBuf, CertificateEnd)>, String> {
    read_files(config, None)?;
    let files = config.certificates.iter().map(|pair| pair.cert.clone());
    let with_ends = files.map(|file| {
        let certificates = certificates_in(&file)?;
        let end = certificates.first().and_then(|der| CertificateEnd::of(der));
        let end = end.ok_or_else(|| format!("{}: has no end", file.display()))?;
        Ok((file, end))
    });
    with_ends.collect()
}

/// A host name that fits a listener's certificate, for use by a client. `None` if the certificate has no name or cannot be read.
pub(crate) fn certificate_name(config: &TlsConfig) -> Option<String> {
    let certificates = certificates_in(&config.default_certificate().cert).ok()?;
    let facts = CertificateFacts::of(certificates.first()?).ok()?;
    let name = facts.host_names().next()?;
    Some(match name.strip_prefix("*.") {
        Some(domain) => format!("gateway.{domain}"),
        None => name.to_owned(),
    })
}

/// Checks that the files of a listener can be used, and that clients will accept its certificates. Used by `tooldock check`.
///
/// # Errors
///
/// A line of text that names the file at fault.
pub(crate) fn check_good(config: &TlsConfig, expected: ExpectedNames<'_>) -> Result<(), String> {
    let shown = read_files(config, None)?.shown;
    let mut problems = shown.iter().map(|shown| shown.problem(expected));
    problems.find_map(|problem| problem).map_or(Ok(()), Err)
}

/// Reads all files of a listener. If the authorities are the same as in `before`, `before` is reused.
fn read_files(config: &TlsConfig, before: Option<&Arc<Trust>>) -> Result<ListenerTls, String> {
    let pairs = config.certificates.iter().map(KeyPair::read);
    let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
    let resolver = Arc::new(CertificatesByName::new(&pairs)?);
    let provider = Arc::new(default_provider());
    let authorities = match &config.client_ca {
        Some(file) => client::authorities(file, config.client_auth)?,
        None => None,
    };
    let verifier = match (&config.client_ca, &authorities) {
        (Some(file), Some(authorities)) => {
            let (_, verifier) = client::verifier(file, authorities, config.client_auth, &provider)?;
            Some(verifier)
        }
        _ => None,
    };
    let trust = match before {
        Some(before) if before.authorities == authorities => Arc::clone(before),
        _ => Arc::new(Trust {
            authorities,
            replaced: AtomicBool::new(false),
        }),
    };
    let shown = pairs.into_iter().map(|pair| ServedCertificate {
        file: pair.file,
        facts: pair.facts,
    });
    let mark = MarkConnections {
        trust: Arc::clone(&trust),
    };
    Ok(ListenerTls {
        acceptor: handshakes(config.min_version, provider, verifier, resolver, mark)?,
        shown: shown.collect(),
        trust,
    })
}

/// Creates the acceptor for handshakes. HTTP/2 or HTTP/1.1 is negotiated by ALPN.
fn handshakes(
    min_version: TlsVersion,
    provider: Arc<CryptoProvider>,
    verifier: Option<client::Verifier>,
    resolver: Arc<CertificatesByName>,
    mark: MarkConnections,
) -> Result<Acceptor, String> {
    let versions: &[_] = match min_version {
        TlsVersion::V1_2 => &[&rustls::version::TLS12, &rustls::version::TLS13],
        TlsVersion::V1_3 => &[&rustls::version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|error| error.to_string())?;
    let asks = verifier.is_some();
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::clone(&resolver) as _);
    config.alpn_protocols = [&b"h2"[..], b"http/1.1"].map(<[u8]>::to_vec).into();
    if asks {
        // Sessions are not resumed, because a resumed session would reuse its client certificate without verifying it again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    // Pingora's settings cannot limit the TLS versions. They are used only to set the callback; the rest of the acceptor is
    // replaced.
    let mut settings =
        TlsSettings::with_callbacks(Box::new(mark)).map_err(|error| error.to_string())?;
    settings.set_cert_resolver(resolver);
    let mut acceptor = settings.build();
    acceptor.acceptor = Arc::new(config).into();
    Ok(acceptor)
}

impl KeyPair {
    /// Reads a certificate chain and its key.
    ///
    /// # Errors
    ///
    /// A line of text that names the file at fault.
    fn read(files: &KeyPairFiles) -> Result<Self, String> {
        let certificate = pem_path(&files.cert).map_err(|why| format!("cert {why}"))?;
        let key = pem_path(&files.key).map_err(|why| format!("key {why}"))?;
        let chain = certificates_in(certificate)?;
        let own = chain.first().map(CertificateDer::as_ref);
        let facts = CertificateFacts::of(own.unwrap_or_default())
            .map_err(|what| format!("{}: {what}", certificate.display()))?;
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| format!("{}: {error}", key.display()))?;
        let signing = any_supported_type(&private)
            .map_err(|error| format!("{}: unusable key: {error}", key.display()))?;
        let certified = CertifiedKey::new(chain, signing);
        certified.keys_match().map_err(|_| {
            format!(
                "{} does not belong to the certificate {}",
                key.display(),
                certificate.display()
            )
        })?;
        Ok(Self {
            file: files.cert.clone(),
            certified: Arc::new(certified),
            facts,
        })
    }
}

/// Reads the certificates of a PEM file. An error if it contains none.
pub(crate) fn certificates_in(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let file = pem_path(file).map_err(|why| format!("the file of certificates {why}"))?;
    let certificates: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| format!("{}: {error}", file.display()))?;
    if certificates.is_empty() {
        return Err(format!("{}: no certificate in it", file.display()));
    }
    Ok(certificates)
}

/// State of a TLS connection that its requests need.
///
/// The requests of an HTTP/2 connection run in separate tasks. They share the TLS digest of the connection, which contains this
/// state.
pub(crate) struct TlsConnection {
    open: Arc<OpenConnection>,
    client: Option<VerifiedCertificate>,
}

/// A client certificate that a handshake has verified, and its expiry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ShownCertificate {
    certificate: ClientCertificate,
    /// The expiry of the certificate in seconds since the Unix epoch.
    not_after: i64,
}

/// The client certificate of a connection, with the authorities that have verified it.
struct VerifiedCertificate {
    shown: ShownCertificate,
    /// The authorities that have verified the certificate in the handshake.
    trust: Arc<Trust>,
}

impl TlsConnection {
    /// Registers an HTTP/2 request of this connection. When all returned values have been dropped, the time limit for the
    /// client's next request starts.
    pub(crate) fn request_arrived(&self, limits: &ConnectionLimits) -> MultiplexedRequest {
        self.open.request_arrived(limits)
    }

    /// Records whether the most recent request on the connection was admitted by a credential.
    pub(crate) fn note_admitted(&self, admitted: bool) {
        self.open.admitted(admitted);
    }

    /// The verified client certificate. It counts as outdated if it has expired since the handshake, or if a reload has replaced
    /// its authorities.
    pub(crate) fn certificate(&self) -> filters::PeerCertificate<'_> {
        let Some(shows) = &self.client else {
            return filters::PeerCertificate::Nothing;
        };
        let replaced = shows.trust.replaced.load(Ordering::Acquire);
        match replaced {
            true => filters::PeerCertificate::Outdated,
            false => shows.shown.certificate(),
        }
    }

    /// The verified client certificate, to be passed to another replica. `None` if there is none or it is outdated.
    pub(crate) fn shown(&self) -> Option<ShownCertificate> {
        let counts = matches!(self.certificate(), filters::PeerCertificate::Certificate(_));
        let shows = self.client.as_ref().filter(|_| counts)?;
        Some(shows.shown.clone())
    }

    /// The remaining validity of the client certificate; `None` if the client has sent none.
    pub(crate) fn counts_for(&self) -> Option<Duration> {
        let shows = self.client.as_ref()?;
        Some(shows.shown.counts_for())
    }

    /// Returns true if the client's certificate is outdated. The connection must then be closed, so that the client is verified
    /// again by the next handshake.
    pub(crate) fn is_outdated(&self) -> bool {
        self.certificate() == filters::PeerCertificate::Outdated
    }
}

impl ShownCertificate {
    /// The client certificate in the form that admission checks.
    pub(crate) fn certificate(&self) -> filters::PeerCertificate<'_> {
        match self.left() {
            Some(_) => filters::PeerCertificate::Certificate(&self.certificate),
            None => filters::PeerCertificate::Outdated,
        }
    }

    /// The remaining validity of the certificate; zero once it has expired.
    pub(crate) fn counts_for(&self) -> Duration {
        self.left().unwrap_or_default()
    }

    /// The remaining validity of the certificate; `None` once it has expired.
    fn left(&self) -> Option<Duration> {
        // The certificate is valid until the end of its last second.
        let ends = u64::try_from(self.not_after).ok()?.checked_add(1)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Duration::from_secs(ends).checked_sub(now)
    }
}

/// Attaches a [`TlsConnection`] to every TLS connection.
struct MarkConnections {
    trust: Arc<Trust>,
}

#[async_trait]
impl TlsAccept for MarkConnections {
    async fn handshake_complete_callback(
        &self,
        tls: &TlsRef,
    ) -> Option<Arc<dyn std::any::Any + Send + Sync>> {
        let open = connection::open_connection()?;
        let shown = tls.peer_certificate_der().map(client::certificate);
        let client = shown.map(|(certificate, not_after)| VerifiedCertificate {
            shown: ShownCertificate {
                certificate,
                not_after,
            },
            trust: Arc::clone(&self.trust),
        });
        if let Some(shows) = &client {
            // The names are logged because the operator can use them in entries of `admission.certificates`.
            tracing::debug!(names = ?shows.shown.certificate.names, "a client has shown its certificate");
        }
        Some(Arc::new(TlsConnection { open, client }))
    }
}
