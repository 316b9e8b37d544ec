//! Certificates of TLS listeners: read and checked before anything starts, swapped while running.
//!
//! Pingora is given a resolver instead of files. A reload reads the files again and swaps the key pair in one step; a
//! certificate that cannot be used is reported and the one before stays in force. So does a good one where clients would
//! refuse the next, because of its dates or its names. A start takes such a certificate and says so: other listeners, and
//! clients that do not check, are served meanwhile.

mod facts;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora_core::listeners::TlsAccept;
use pingora_core::listeners::tls::{Acceptor, TlsSettings};
use pingora_core::protocols::tls::TlsRef;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tooldock_filters::host::HostPattern;

use self::facts::{Expected, Facts};
use crate::config::{Effective, ListenerConfig, TlsConfig};
use crate::edge::{self, Limits, MultiplexedRequest, OpenConnection};

/// The certificate of one listener.
pub(crate) struct Certificate {
    /// The listener's name.
    pub(crate) listener: String,
    loopback: bool,
    files: TlsConfig,
    current: ArcSwap<CertifiedKey>,
    /// Of the certificate that is shown. Plain data.
    facts: Mutex<Facts>,
}

impl Certificate {
    /// Reads a listener's certificate chain and its key. A certificate that clients would refuse is taken, and told to the
    /// log.
    ///
    /// # Errors
    ///
    /// One line that names the file at fault.
    pub(crate) fn open(
        listener: &ListenerConfig,
        files: &TlsConfig,
        hosts: &[HostPattern],
    ) -> Result<Arc<Self>, String> {
        let (key, facts) = read(files)?;
        let certificate = Self {
            listener: listener.name.clone(),
            loopback: listener.address.ip().is_loopback(),
            files: files.clone(),
            current: ArcSwap::from_pointee(key),
            facts: Mutex::new(facts),
        };
        if let Some(problem) = certificate.problem(&certificate.facts(), hosts) {
            certificate.complain(&problem);
        }
        Ok(Arc::new(certificate))
    }

    /// Reads the files again. New handshakes use what they hold now.
    ///
    /// # Errors
    ///
    /// One line that names the file at fault; the certificate in use stays.
    pub(crate) fn reload(&self, hosts: &[HostPattern]) -> Result<(), String> {
        let (next, facts) = read(&self.files)?;
        if let Some(problem) = self.problem(&facts, hosts) {
            // Of two that clients refuse, the next is the one the operator wants.
            if self.problem(&self.facts(), hosts).is_none() {
                return Err(problem);
            }
            self.complain(&problem);
        }
        self.current.store(Arc::new(next));
        *self.facts() = facts;
        Ok(())
    }

    /// When the certificate that is shown ends, in seconds since 1970.
    pub(crate) fn not_after(&self) -> i64 {
        self.facts().not_after()
    }

    fn problem(&self, facts: &Facts, hosts: &[HostPattern]) -> Option<String> {
        problem(&self.files, facts, hosts, self.loopback)
    }

    fn complain(&self, problem: &str) {
        tracing::error!(
            listener = self.listener,
            "{problem}: clients will refuse it"
        );
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the handshakes of a listener with this certificate: HTTP/2 and HTTP/1.1 by ALPN.
    pub(crate) fn acceptor(self: &Arc<Self>) -> pingora_core::Result<Acceptor> {
        let mut settings = TlsSettings::with_callbacks(Box::new(MarkConnections))?;
        settings.set_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        settings.enable_h2();
        Ok(settings.build())
    }
}

/// Checks that a listener's certificate and key can be used, without keeping them.
///
/// # Errors
///
/// One line that names the file at fault.
pub(crate) fn check_usable(
    _effective: &Effective,
    _listener: &ListenerConfig,
    files: &TlsConfig,
) -> Result<(), String> {
    read(files).map(drop)
}

/// Checks that clients will accept a listener's certificate, too: for `tooldock check`.
///
/// # Errors
///
/// One line that names the file at fault.
pub(crate) fn check_good(
    effective: &Effective,
    listener: &ListenerConfig,
    files: &TlsConfig,
) -> Result<(), String> {
    let (_, facts) = read(files)?;
    let hosts = &effective.config.admission.hosts;
    let loopback = listener.address.ip().is_loopback();
    problem(files, &facts, hosts, loopback).map_or(Ok(()), Err)
}

fn problem(
    files: &TlsConfig,
    facts: &Facts,
    hosts: &[HostPattern],
    loopback: bool,
) -> Option<String> {
    let problem = facts.problem(SystemTime::now(), Expected { hosts, loopback })?;
    Some(format!("{}: {problem}", files.cert.display()))
}

fn read(files: &TlsConfig) -> Result<(CertifiedKey, Facts), String> {
    let (certificate, key) = (files.cert.as_path(), files.key.as_path());
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| format!("{}: {error}", certificate.display()))?;
    let Some(own) = chain.first() else {
        return Err(format!("{}: no certificate in it", certificate.display()));
    };
    let facts = Facts::of(own).map_err(|what| format!("{}: {what}", certificate.display()))?;
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
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
    Ok((certified, facts))
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("listener", &self.listener)
            .field("file", &self.files.cert)
            .finish_non_exhaustive()
    }
}

/// Tells a TLS connection of its requests.
///
/// An HTTP/2 connection's requests run in tasks of their own; what they share with their connection is the TLS digest,
/// and this rides in it.
pub(crate) struct Requests(Arc<OpenConnection>);

impl Requests {
    /// A request is there: its client is not waited for until what this gives back is dropped.
    pub(crate) fn arrived(&self, limits: &Limits) -> MultiplexedRequest {
        self.0.request_arrived(limits)
    }
}

/// Gives every TLS connection its mark.
struct MarkConnections;

#[async_trait]
impl TlsAccept for MarkConnections {
    async fn handshake_complete_callback(
        &self,
        _tls: &TlsRef,
    ) -> Option<Arc<dyn std::any::Any + Send + Sync>> {
        let open = edge::open_connection()?;
        Some(Arc::new(Requests(open)))
    }
}
