//! Encrypted backends: who they are, and who the gateway is.

use std::io::Write as _;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tempfile::NamedTempFile;
use tokio_rustls::TlsAcceptor;
use tooldock_upstream::http_client::SendErrorKind;

use super::*;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

struct Pair {
    cert: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut params = CertificateParams::new([name.to_owned()]).expect("parameters");
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        Pair {
            cert: cert.pem(),
            key: key.serialize_pem(),
        }
    }
}

fn file(content: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file");
    file.write_all(content.as_bytes()).expect("written");
    file
}

/// A backend with a certificate; it asks clients for one of `clients`, where there is such an authority.
async fn encrypted(pair: &Pair, clients: Option<&Authority>) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = rustls::RootCertStore::empty();
            let root = CertificateDer::from_pem_slice(authority.pem.as_bytes()).expect("PEM");
            roots.add(root).expect("a root");
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.expect("a verifier"))
        }
    };
    let chain = vec![CertificateDer::from_pem_slice(pair.cert.as_bytes()).expect("PEM")];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("PEM");
    let config = builder.with_single_cert(chain, key).expect("a pair");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("an address");
    let script = Script::new(&[Answer::Say(OK)]);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let (acceptor, script) = (acceptor.clone(), script.clone());
            tokio::spawn(async move {
                if let Ok(connection) = acceptor.accept(connection).await {
                    script.serve(connection).await;
                }
            });
        }
    });
    address
}

async fn asked(address: SocketAddr, tls: &str) -> Result<BackendResponse, SendError> {
    let keys = format!("tls: {{ {tls} }}, health: {{ active: {{ every: 1h }} }}");
    let server = server(&[format!("https://{address}/mcp")], &keys);
    let (backend, _pool) = only(&server);
    send(&backend).await
}

#[tokio::test]
async fn a_backend_is_who_its_certificate_says() {
    let authority = Authority::new();
    let ca = file(&authority.pem);
    let trusted = format!("ca: {}", ca.path().display());
    let right = encrypted(&authority.issue("127.0.0.1", |_| {}), None).await;
    assert!(
        asked(right, &trusted).await.is_ok(),
        "an address in the certificate"
    );
    let named = encrypted(&authority.issue("tools.example", |_| {}), None).await;
    let by_name = format!("{trusted}, server_name: tools.example");
    let response = asked(named, &by_name).await.expect("a response");
    assert_eq!(read(response).await.as_deref(), Ok("{}"));
    let expired = authority.issue("127.0.0.1", |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    let expired = encrypted(&expired, None).await;
    for (address, tls, said) in [
        (named, trusted.as_str(), "certificate not valid for name"),
        (expired, &trusted, "xpired"),
        (right, "", "UnknownIssuer"),
    ] {
        let error = asked(address, tls).await.expect_err("refused");
        assert_eq!(
            (error.kind, error.unsent),
            (SendErrorKind::Tls, true),
            "{error}"
        );
        assert!(error.message.contains(said), "{error}");
    }
    assert!(
        asked(expired, "verify: false").await.is_ok(),
        "the operator asked for it"
    );
}

#[tokio::test]
async fn a_backend_that_asks_who_the_gateway_is_is_shown_its_certificate() {
    let authority = Authority::new();
    let address = encrypted(&authority.issue("127.0.0.1", |_| {}), Some(&authority)).await;
    let own = authority.issue("gateway", |_| {});
    let (ca, cert, key) = (file(&authority.pem), file(&own.cert), file(&own.key));
    let ca = format!("ca: {}", ca.path().display());
    let shown = format!(
        "{ca}, cert: {}, key: {}",
        cert.path().display(),
        key.path().display()
    );
    assert!(asked(address, &shown).await.is_ok());
    // TLS 1.3 tells a client without a certificate after the handshake.
    assert!(asked(address, &ca).await.is_err());
}
