//! Client certificates: which are taken, their principals, and the effect of a token beside one.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, HandshakeKind, RootCertStore};

use crate::support::ports::free_address;
use crate::support::{DEADLINE, Gateway, TOKEN, eventually};
use crate::tls::write_certificate;

/// An authority that signs the certificates of clients.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

/// A client's certificate and key.
pub struct Identity {
    pub certificate: CertificateDer<'static>,
    pub key: PrivateKeyDer<'static>,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// A certificate for a host name, with a common name, that ends in a year.
    pub fn signs(&self, host: &str, common_name: &str, until: i32) -> Identity {
        self.signs_for(
            host,
            common_name,
            until,
            ExtendedKeyUsagePurpose::ClientAuth,
        )
    }

    /// Writes a certificate for both sides of a connection as `cert.pem` and `key.pem`, and this authority as `ca.pem`.
    pub fn write_for_both_sides(&self, folder: &Path, host: &str) {
        let sides = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let (certificate, key) = self.pair(host, "replica", 4000, sides);
        fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
        fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
        fs::write(folder.join("ca.pem"), &self.pem).unwrap();
    }

    fn signs_for(
        &self,
        host: &str,
        common_name: &str,
        until: i32,
        usage: ExtendedKeyUsagePurpose,
    ) -> Identity {
        let (certificate, key) = self.pair(host, common_name, until, vec![usage]);
        Identity {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        }
    }

    fn pair(
        &self,
        host: &str,
        common_name: &str,
        until: i32,
        usages: Vec<ExtendedKeyUsagePurpose>,
    ) -> (Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, "Example");
        name.push(DnType::CommonName, common_name);
        params.extended_key_usages = usages;
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate, key)
    }
}

/// A gateway that asks for certificates on one listener.
struct Asking {
    gateway: Gateway,
    folder: tempfile::TempDir,
    server: CertificateDer<'static>,
    port: u16,
}

/// `keys` are merged into the listener, `admission` into the configuration.
async fn asking(authority: &Authority, auth: &str, keys: Value, admission: Value) -> Asking {
    let folder = tempfile::TempDir::new().unwrap();
    let server = write_certificate(folder.path());
    let file = |name: &str| folder.path().join(name);
    fs::write(file("ca.pem"), &authority.pem).unwrap();
    let [plain, secure, metrics] = [(); 3].map(|()| free_address());
    let mut listener = json!({"name": "secure", "address": secure.to_string(), "profile": "core",
        "tls": {"cert": file("cert.pem"), "key": file("key.pem"),
            "client_ca": file("ca.pem"), "client_auth": auth}});
    for (key, value) in keys.as_object().unwrap() {
        listener[key] = value.clone();
    }
    let gateway = Gateway::empty()
        .listening(plain, metrics)
        .env("LOG_LEVEL", "debug")
        .config(json!({"admission": admission, "listeners": [
            {"name": "core", "address": plain.to_string(), "profile": "core"},
            listener,
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"}]}))
        .start()
        .await;
    Asking {
        gateway,
        folder,
        server,
        port: secure.port(),
    }
}

/// `build` by host name for one namespace, `desk` by subject for all.
fn mapping() -> Value {
    json!({"certificates": [
        {"name": "build", "san": "build.example", "namespaces": ["other-*"]},
        {"name": "desk", "subject": "CN=desk, O=Example", "namespaces": ["*"]}]})
}

impl Asking {
    async fn connect(&self, identity: Option<&Identity>) -> Option<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.server.clone()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match identity {
            Some(Identity { certificate, key }) => config
                .with_client_auth_cert(vec![certificate.clone()], key.clone_key())
                .unwrap(),
            None => config.with_no_client_auth(),
        };
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(ServerName::try_from("localhost").unwrap(), stream)
            .await
            .ok()
    }

    /// The status of `GET /tools` in a namespace, by whom; None where the handshake fails.
    async fn status(
        &self,
        identity: Option<&Identity>,
        namespace: &str,
        headers: &str,
    ) -> Option<u16> {
        let mut stream = self.connect(identity).await?;
        let request = format!(
            "GET /tools HTTP/1.1\r\nHost: localhost\r\nX-Namespace: {namespace}\r\nConnection: close\r\n{headers}\r\n"
        );
        // With TLS 1.3 a client learns only now that it is refused.
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer));
        read.await.expect("an answer, or an end").ok();
        let answer = String::from_utf8_lossy(&answer);
        answer.split(' ').nth(1)?.parse().ok()
    }

    async fn refused_handshakes(&self) -> u64 {
        let metrics = self.gateway.metrics_text().await;
        let name = "tooldock_refusals_total{reason=\"tls_handshake\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |count| count.parse().unwrap())
    }
}

#[tokio::test]
async fn a_certificate_stands_for_its_principal_and_opens_its_namespaces() {
    let authority = Authority::new("clients");
    let asking = asking(&authority, "required", json!({}), mapping()).await;
    let desk = authority.signs("desk.example", "desk", 4000);
    let build = authority.signs("build.example", "anything", 4000);
    let stranger = authority.signs("stranger.example", "desk, O=Else", 4000);

    assert_eq!(asking.status(Some(&desk), "shared", "").await, Some(200));
    assert_eq!(asking.status(Some(&build), "shared", "").await, Some(403));
    assert_eq!(
        asking.status(Some(&stranger), "shared", "").await,
        Some(401)
    );

    // A token decides where one is sent, right or wrong.
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    for identity in [&build, &stranger] {
        let status = asking.status(Some(identity), "shared", &token).await;
        assert_eq!(status, Some(200));
    }
    let wrong = "Authorization: Bearer wrong\r\n";
    assert_eq!(asking.status(Some(&desk), "shared", wrong).await, Some(401));

    // A browser shows its certificate for any page: only listed pages may use it.
    let page = "Origin: https://evil.example\r\n";
    assert_eq!(asking.status(Some(&desk), "shared", page).await, Some(403));
    let log = asking.gateway.log();
    assert!(
        log.contains("admission.certificates has no such certificate"),
        "{log}"
    );
    assert!(
        !log.contains("BEGIN"),
        "no key and no certificate in the log"
    );
}

#[tokio::test]
async fn http_2_knows_the_certificate_of_its_connection_too() {
    let authority = Authority::new("clients");
    let asking = asking(&authority, "required", json!({}), mapping()).await;
    let desk = authority.signs("desk.example", "desk", 4000);
    let mut roots = RootCertStore::empty();
    roots.add(asking.server.clone()).unwrap();
    let mut tls = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![desk.certificate.clone()], desk.key.clone_key())
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .build()
        .unwrap();
    for _ in 0..2 {
        let answer = client
            .get(format!("https://localhost:{}/tools", asking.port))
            .header("X-Namespace", "shared")
            .send()
            .await
            .unwrap();
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
        assert_eq!(answer.status(), 200);
    }
}

#[tokio::test]
async fn certificates_of_others_end_the_handshake_and_are_counted() {
    let authority = Authority::new("clients");
    let asking = asking(&authority, "required", json!({}), mapping()).await;
    let forged = Authority::new("clients").signs("desk.example", "desk", 4000);
    let expired = authority.signs("desk.example", "desk", 2021);
    let before = asking.refused_handshakes().await;
    let usage = ExtendedKeyUsagePurpose::ServerAuth;
    let of_a_server = authority.signs_for("desk.example", "desk", 4000, usage);
    for identity in [Some(&forged), Some(&expired), Some(&of_a_server), None] {
        assert_eq!(asking.status(identity, "shared", "").await, None);
    }
    eventually("four handshakes are counted", || async {
        (asking.refused_handshakes().await == before + 4).then_some(())
    })
    .await;
    let log = asking.gateway.log();
    assert!(log.contains("a TLS handshake failed"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn an_optional_certificate_may_be_missing_and_not_wrong() {
    let authority = Authority::new("clients");
    let open = json!({"auth": ["bearer", "none"]});
    let mut admission = mapping();
    admission["origins"] = json!([]);
    let asking = asking(&authority, "optional", open, admission).await;
    let build = authority.signs("build.example", "build", 4000);
    let stranger = authority.signs("stranger.example", "stranger", 4000);
    let forged = Authority::new("clients").signs("desk.example", "desk", 4000);
    // A client without a certificate, or with an unlisted one, is the anonymous principal.
    assert_eq!(asking.status(None, "shared", "").await, Some(200));
    assert_eq!(
        asking.status(Some(&stranger), "shared", "").await,
        Some(200)
    );
    assert_eq!(asking.status(Some(&build), "shared", "").await, Some(403));
    assert_eq!(asking.status(Some(&forged), "shared", "").await, None);
}

#[tokio::test]
async fn a_reload_takes_another_authority_and_another_mapping() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let asking = asking(&old, "required", json!({}), mapping()).await;
    let before = old.signs("desk.example", "desk", 4000);
    let after = new.signs("desk.example", "desk", 4000);
    assert_eq!(asking.status(Some(&before), "shared", "").await, Some(200));
    let mut kept = asking.connect(Some(&before)).await.unwrap();
    let request = b"GET /tools HTTP/1.1\r\nHost: localhost\r\nX-Namespace: shared\r\n\r\n";
    kept.write_all(request).await.unwrap();
    let mut first = [0; 15];
    kept.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    fs::write(asking.folder.path().join("ca.pem"), &new.pem).unwrap();
    asking.gateway.signal(Signal::HUP);
    eventually("the new authority counts", || async {
        let status = asking.status(Some(&after), "shared", "").await;
        (status == Some(200)).then_some(())
    })
    .await;
    assert_eq!(asking.status(Some(&before), "shared", "").await, None);

    // A connection that the old authority's certificate has opened proves nothing any more, and ends.
    kept.write_all(request).await.unwrap();
    let mut rest = Vec::new();
    let read = tokio::time::timeout(DEADLINE, kept.read_to_end(&mut rest));
    read.await.expect("an end").ok();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.contains("HTTP/1.1 401 "), "{rest}");

    // Other authorities beside a configuration that cannot be used: they may belong to its entries.
    let ca = asking.folder.path().join("ca.pem");
    fs::write(&ca, &old.pem).unwrap();
    let wrong = json!({"admission": {"certificates": [{"name": "x", "namespaces": ["*"]}]}});
    asking.gateway.reconfigure(wrong);
    asking.gateway.signal(Signal::HUP);
    eventually("the authorities are not taken", || async {
        let log = asking.gateway.log();
        log.contains("may belong to that").then_some(())
    })
    .await;
    assert_eq!(asking.status(Some(&before), "shared", "").await, None);

    // Another mapping together with authorities that cannot be read: neither is put in force.
    let none = json!({"admission": {"certificates": []}});
    fs::write(&ca, "none").unwrap();
    asking.gateway.reconfigure(none);
    asking.gateway.signal(Signal::HUP);
    eventually("the reload is refused", || async {
        let log = asking.gateway.log();
        log.contains("what client certificates stand for has changed")
            .then_some(())
    })
    .await;
    assert_eq!(asking.status(Some(&after), "shared", "").await, Some(200));

    fs::write(&ca, &new.pem).unwrap();
    asking.gateway.signal(Signal::HUP);
    eventually("nobody is named any more", || async {
        let status = asking.status(Some(&after), "shared", "").await;
        (status == Some(401)).then_some(())
    })
    .await;
}

/// Begins `GET /sse` on a connection of that certificate, and reads the head of the answer.
async fn streaming(asking: &Asking, identity: &Identity) -> TlsStream<TcpStream> {
    let mut stream = asking.connect(Some(identity)).await.expect("connected");
    let request = b"GET /sse HTTP/1.1\r\nHost: localhost\r\nX-Namespace: shared\r\nAccept: text/event-stream\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut first = [0; 15];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    stream
}

/// Reads a stream to its end.
async fn ends(mut stream: TlsStream<TcpStream>) {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest));
    read.await.expect("the stream ends").ok();
}

#[tokio::test]
async fn a_stream_ends_with_the_entry_and_with_the_authority_of_its_certificate() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let asking = asking(&old, "required", json!({}), mapping()).await;
    let desk = old.signs("desk.example", "desk", 4000);
    let stream = streaming(&asking, &desk).await;
    let mut kept = asking.connect(Some(&desk)).await.expect("connected");
    let request = b"GET /tools HTTP/1.1\r\nHost: localhost\r\nX-Namespace: shared\r\n\r\n";
    kept.write_all(request).await.unwrap();
    let mut first = [0; 15];
    kept.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");

    let without = json!({"admission": {"certificates": [mapping()["certificates"][0]]}});
    asking.gateway.reconfigure(without);
    asking.gateway.signal(Signal::HUP);
    ends(stream).await;
    kept.write_all(b"GET /tools HTTP/1.1\r\nHost: localhost\r\nX-Namespace: shared\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut rest = Vec::new();
    let read = tokio::time::timeout(DEADLINE, kept.read_to_end(&mut rest));
    read.await.expect("an end").ok();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.contains("HTTP/1.1 401 "), "{rest}");

    asking.gateway.reconfigure(json!({"admission": mapping()}));
    asking.gateway.signal(Signal::HUP);
    eventually("the entry is there again", || async {
        (asking.status(Some(&desk), "shared", "").await == Some(200)).then_some(())
    })
    .await;
    let stream = streaming(&asking, &desk).await;
    fs::write(asking.folder.path().join("ca.pem"), &new.pem).unwrap();
    asking.gateway.signal(Signal::HUP);
    ends(stream).await;
}

#[tokio::test]
async fn no_session_is_resumed_past_the_verifier() {
    let authority = Authority::new("clients");
    let asking = asking(&authority, "required", json!({}), mapping()).await;
    let desk = authority.signs("desk.example", "desk", 4000);
    let mut roots = RootCertStore::empty();
    roots.add(asking.server.clone()).unwrap();
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![desk.certificate.clone()], desk.key.clone_key())
        .unwrap();
    // Shared by both connections, and so are the sessions that it remembers.
    let connector = TlsConnector::from(Arc::new(config));
    for _ in 0..2 {
        let stream = TcpStream::connect(("127.0.0.1", asking.port)).await;
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = connector.connect(name, stream.unwrap()).await.unwrap();
        let request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        tls.write_all(request).await.unwrap();
        tls.read_to_end(&mut Vec::new()).await.ok();
        let kind = tls.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(HandshakeKind::Full));
    }
}

#[tokio::test]
async fn a_start_without_tokens_is_fine_where_certificates_stand_for_principals() {
    let folder = tempfile::TempDir::new().unwrap();
    write_certificate(folder.path());
    let file = |name: &str| folder.path().join(name);
    fs::write(file("ca.pem"), Authority::new("clients").pem).unwrap();
    let metrics = free_address();
    let gateway = Gateway::empty()
        .without_tokens()
        .listening(free_address(), metrics)
        .config(json!({"admission": mapping(), "listeners": [
            {"name": "secure", "address": free_address().to_string(), "profile": "core",
                "tls": {"cert": file("cert.pem"), "key": file("key.pem"),
                    "client_ca": file("ca.pem"), "client_auth": "required"}},
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"}]}))
        .spawn();
    eventually("the gateway runs", || async {
        let answer = gateway
            .client
            .get(format!("http://{metrics}/health"))
            .send()
            .await
            .ok()?;
        (answer.status() == 200).then_some(())
    })
    .await;
}
