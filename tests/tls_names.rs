//! Several certificates on one listener, chosen by the name that the client asks for; the versions that are spoken.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use crate::support::ports::free_address;
use crate::support::{Gateway, eventually};

/// A certificate for some names, on disk.
struct Written {
    cert: PathBuf,
    key: PathBuf,
    der: CertificateDer<'static>,
}

impl Written {
    fn new(folder: &Path, file: &str, names: &[&str], until: i32) -> Self {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let pair = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&pair).unwrap();
        let (cert, key) = (
            folder.join(format!("{file}.pem")),
            folder.join(format!("{file}.key")),
        );
        fs::write(&cert, certificate.pem()).unwrap();
        fs::write(&key, pair.serialize_pem()).unwrap();
        Self {
            cert,
            key,
            der: certificate.der().clone(),
        }
    }

    fn files(&self) -> Value {
        json!({"cert": self.cert, "key": self.key})
    }
}

/// The certificate that a client is shown which asks for `name`, or for an address, which is no name.
async fn shown(
    port: u16,
    name: &str,
    trusted: &[&Written],
    versions: &[&'static SupportedProtocolVersion],
) -> Option<CertificateDer<'static>> {
    let mut roots = RootCertStore::empty();
    for certificate in trusted {
        roots.add(certificate.der.clone()).unwrap();
    }
    let mut config = ClientConfig::builder_with_protocol_versions(versions)
        .with_root_certificates(roots)
        .with_no_client_auth();
    // The tests themselves check the certificate.
    config
        .dangerous()
        .set_certificate_verifier(Arc::new(Anybody));
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .ok()?;
    let chain = stream.get_ref().1.peer_certificates()?;
    Some(chain[0].clone().into_owned())
}

const BOTH: &[&SupportedProtocolVersion] = &[&TLS12, &TLS13];

/// Takes every certificate, and looks at nothing but the signature of the handshake.
#[derive(Debug)]
struct Anybody;

mod anybody {
    use tokio_rustls::rustls::client::danger::{
        HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
    };
    use tokio_rustls::rustls::crypto::ring::default_provider;
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use tokio_rustls::rustls::{DigitallySignedStruct, Error, SignatureScheme};

    impl ServerCertVerifier for super::Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            default_provider()
                .signature_verification_algorithms
                .supported_schemes()
        }
    }
}

/// A gateway whose only core listener has this `tls`.
async fn gateway(tls: Value) -> (Gateway, u16) {
    let (plain, secure, metrics) = (free_address(), free_address(), free_address());
    let gateway = Gateway::empty()
        .listening(plain, metrics)
        .config(listeners(
            &plain.to_string(),
            &secure.to_string(),
            &metrics.to_string(),
            tls,
        ))
        .start()
        .await;
    (gateway, secure.port())
}

fn listeners(plain: &str, secure: &str, metrics: &str, tls: Value) -> Value {
    json!({"listeners": [
        {"name": "core", "address": plain, "profile": "core"},
        {"name": "secure", "address": secure, "profile": "core", "tls": tls},
        {"name": "metrics", "address": metrics, "profile": "metrics"}]})
}

#[tokio::test]
async fn the_name_a_client_asks_for_chooses_the_certificate() {
    let folder = tempfile::TempDir::new().unwrap();
    let first = Written::new(folder.path(), "first", &["gw.example"], 4000);
    let wild = Written::new(folder.path(), "wild", &["*.tools.example"], 4000);
    let (_gateway, port) = gateway(json!({
        "cert": first.cert, "key": first.key, "certificates": [wild.files()]}))
    .await;
    let trusted = [&first, &wild];
    for (name, expected) in [
        ("gw.example", &first),
        ("a.tools.example", &wild),
        ("A.Tools.example", &wild),
        ("tools.example", &first),
        ("a.b.tools.example", &first),
        ("nobody.example", &first),
        // An address is no name to ask for.
        ("127.0.0.1", &first),
    ] {
        let shown = shown(port, name, &trusted, BOTH).await;
        assert_eq!(shown.as_ref(), Some(&expected.der), "{name}");
    }
}

#[tokio::test]
async fn a_reload_reads_all_certificates_and_takes_new_ones() {
    let folder = tempfile::TempDir::new().unwrap();
    let first = Written::new(folder.path(), "first", &["gw.example"], 4000);
    let second = Written::new(folder.path(), "second", &["b.example"], 4000);
    let (gateway, port) = gateway(json!({"certificates": [first.files(), second.files()]})).await;

    let renewed = Written::new(folder.path(), "second", &["b.example"], 4001);
    gateway.signal(Signal::HUP);
    eventually("the second certificate is shown anew", || async {
        let shown = shown(port, "b.example", &[&second, &renewed], BOTH).await?;
        (shown == renewed.der).then_some(())
    })
    .await;

    let third = Written::new(folder.path(), "third", &["c.example"], 4000);
    let listeners = {
        let mut listeners = gateway.configured()["listeners"].clone();
        let all = json!([first.files(), second.files(), third.files()]);
        listeners[1]["tls"] = json!({"certificates": all});
        listeners
    };
    gateway.reconfigure(json!({ "listeners": listeners }));
    gateway.signal(Signal::HUP);
    eventually("the third certificate is shown", || async {
        let shown = shown(port, "c.example", &[&third], BOTH).await?;
        (shown == third.der).then_some(())
    })
    .await;

    // A single certificate that clients would refuse keeps all of them as they are.
    Written::new(folder.path(), "third", &["c.example"], 2021);
    gateway.signal(Signal::HUP);
    eventually("the expired certificate is in the log", || async {
        let log = gateway.log();
        (log.contains("third.pem: expired on") && log.contains("those in force stay")).then_some(())
    })
    .await;
    let still = shown(port, "c.example", &[&third], BOTH).await;
    assert_eq!(still, Some(third.der));
}

#[tokio::test]
async fn the_oldest_version_is_the_configured_one() {
    let folder = tempfile::TempDir::new().unwrap();
    let only = Written::new(folder.path(), "only", &["gw.example"], 4000);
    let (_gateway, port) = gateway(json!({
        "cert": only.cert, "key": only.key, "min_version": 1.3}))
    .await;
    assert!(
        shown(port, "gw.example", &[&only], &[&TLS13])
            .await
            .is_some()
    );
    assert!(
        shown(port, "gw.example", &[&only], &[&TLS12])
            .await
            .is_none()
    );

    let (_gateway, port) = gateway(only.files()).await;
    assert!(
        shown(port, "gw.example", &[&only], &[&TLS12])
            .await
            .is_some()
    );
}

#[tokio::test]
async fn certificates_that_contradict_each_other_end_the_start_with_one_line() {
    let folder = tempfile::TempDir::new().unwrap();
    let first = Written::new(folder.path(), "first", &["gw.example", "b.example"], 4000);
    let second = Written::new(folder.path(), "second", &["b.example"], 4000);
    for (tls, named) in [
        (
            json!({"certificates": [first.files(), second.files()]}),
            &[
                "listeners[1].tls: ",
                "first.pem",
                "second.pem",
                "both for b.example",
            ][..],
        ),
        (
            json!({"certificates": [first.files(), {"cert": second.cert, "key": first.key}]}),
            &[
                "listeners[1].tls: ",
                "first.key does not belong to the certificate",
                "second.pem",
            ],
        ),
        (
            json!({}),
            &["listeners[1].tls: no certificate: write cert and key"],
        ),
        (
            json!({"cert": first.cert, "key": first.key, "min_version": "1.1"}),
            &["listeners[1].tls.min_version: ", "1.2 or 1.3"],
        ),
        (
            json!({"cert": first.cert, "key": first.key, "client_auth": "required"}),
            &["listeners[1].tls.client_auth: needs client_ca"],
        ),
        (
            json!({"cert": first.cert, "key": first.key, "client_auth": "required", "client_ca": first.key}),
            &["listeners[1].tls: ", "first.key: no certificate in it"],
        ),
    ] {
        let [plain, secure, metrics] = [(); 3].map(|()| free_address().to_string());
        let gateway = Gateway::empty()
            .config(listeners(&plain, &secure, &metrics, tls))
            .spawn();
        let status = gateway.ended().await;
        let log = gateway.log();
        assert_eq!(status.code(), Some(2), "{log}");
        for part in named {
            assert!(log.contains(part), "{part}: {log}");
        }
    }
}

#[tokio::test]
async fn an_expired_certificate_is_told_at_the_start_and_shown() {
    let folder = tempfile::TempDir::new().unwrap();
    let first = Written::new(folder.path(), "first", &["gw.example"], 4000);
    let second = Written::new(folder.path(), "second", &["b.example"], 2021);
    let (gateway, port) = gateway(json!({"certificates": [first.files(), second.files()]})).await;
    assert!(gateway.log().contains("second.pem: expired on"), "told");
    let shown = shown(port, "b.example", &[&second], BOTH).await;
    assert_eq!(shown.as_ref(), Some(&second.der));
    let metrics = gateway.metrics_text().await;
    let line = "tooldock_certificate_not_after_seconds{listener=\"secure\"} 1609459200";
    assert!(metrics.contains(line), "the first one to end");
}
