//! Receivers of OTLP on sockets, over HTTP and gRPC, with and without TLS.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Identity, ServerTlsConfig};
use tonic::{Request, Response, Status};

use super::backend::{answered, header};
use super::eventually;

/// What a receiver has received.
#[derive(Default)]
struct Received {
    spans: Mutex<Vec<Span>>,
    metrics: Mutex<Vec<Metric>>,
    logs: Mutex<Vec<LogRecord>>,
    /// Attributes of the senders.
    resource: Mutex<BTreeMap<String, String>>,
    /// Values of the header `authorization`.
    authorizations: Mutex<Vec<String>>,
}

/// A running receiver.
pub struct Receiver {
    pub address: SocketAddr,
    received: Arc<Received>,
    task: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    /// A receiver of protobuf over HTTP.
    pub async fn http() -> Self {
        Self::start(None).await
    }

    /// A receiver over HTTPS, with `cert.pem` and `key.pem` of a folder.
    pub async fn https(folder: &Path) -> Self {
        // A second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let chain = CertificateDer::pem_file_iter(folder.join("cert.pem")).expect("a file");
        let chain = chain.map(|it| it.expect("a certificate")).collect();
        let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).expect("a key");
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key);
        let config = Arc::new(config.expect("a configuration"));
        Self::start(Some(TlsAcceptor::from(config))).await
    }

    async fn start(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let received = Arc::new(Received::default());
        let taken = Arc::clone(&received);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (taken, tls) = (Arc::clone(&taken), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, &taken).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, &taken).await;
                            }
                        }
                    }
                });
            }
        });
        Self {
            address,
            received,
            task,
        }
    }

    /// A receiver over gRPC.
    pub async fn grpc() -> Self {
        Self::start_grpc(tonic::transport::Server::builder()).await
    }

    /// A receiver over gRPC with TLS, with `cert.pem` and `key.pem` of a folder.
    pub async fn grpcs(folder: &Path) -> Self {
        let read = |name| std::fs::read(folder.join(name)).expect("a file");
        let identity = Identity::from_pem(read("cert.pem"), read("key.pem"));
        let tls = ServerTlsConfig::new().identity(identity);
        let server = tonic::transport::Server::builder().tls_config(tls);
        Self::start_grpc(server.expect("a configuration")).await
    }

    async fn start_grpc(mut server: tonic::transport::Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let received = Arc::new(Received::default());
        let taken = Grpc(Arc::clone(&received));
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let served = server
            .add_service(TraceServiceServer::new(taken.clone()))
            .add_service(MetricsServiceServer::new(taken.clone()))
            .add_service(LogsServiceServer::new(taken))
            .serve_with_incoming(incoming);
        let task = tokio::spawn(async move {
            let _ = served.await;
        });
        Self {
            address,
            received,
            task,
        }
    }

    /// The spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.received.spans.lock().expect("spans").clone()
    }

    /// The log records so far.
    pub fn logs(&self) -> Vec<LogRecord> {
        self.received.logs.lock().expect("logs").clone()
    }

    /// The metrics so far.
    pub fn metrics(&self) -> Vec<Metric> {
        self.received.metrics.lock().expect("metrics").clone()
    }

    /// An attribute of the sender.
    pub fn resource(&self, name: &str) -> Option<String> {
        let resource = self.received.resource.lock().expect("a resource");
        resource.get(name).cloned()
    }

    /// The values of `authorization` so far.
    pub fn authorizations(&self) -> Vec<String> {
        let all = self.received.authorizations.lock().expect("headers");
        all.clone()
    }

    /// Waits for the span of a request with this name, and returns it with its parts.
    pub async fn request(&self, name: &str) -> (Span, BTreeMap<String, Span>) {
        eventually(&format!("the span {name}"), || async {
            let spans = self.spans();
            let root = spans.iter().find(|it| it.name == name)?.clone();
            let parts = spans.into_iter();
            let parts = parts.filter(|it| it.parent_span_id == root.span_id);
            let parts: BTreeMap<_, _> = parts.map(|it| (it.name.clone(), it)).collect();
            Some((root, parts))
        })
        .await
    }
}

/// The attributes as texts.
pub fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |it: &KeyValue| {
        let value = it.value.as_ref().and_then(|it| it.value.clone());
        let value = match value {
            Some(any_value::Value::StringValue(text)) => text,
            other => format!("{other:?}"),
        };
        (it.key.clone(), value)
    };
    attributes.iter().map(text).collect()
}

impl Received {
    fn traces(&self, request: ExportTraceServiceRequest) {
        for resource in request.resource_spans {
            let of = resource.resource.unwrap_or_default();
            let mut known = self.resource.lock().expect("a resource");
            known.extend(texts(&of.attributes));
            let scopes = resource.scope_spans.into_iter();
            let mut spans = self.spans.lock().expect("spans");
            spans.extend(scopes.flat_map(|it| it.spans));
        }
    }

    fn metrics(&self, request: ExportMetricsServiceRequest) {
        let resources = request.resource_metrics.into_iter();
        let scopes = resources.flat_map(|it| it.scope_metrics);
        let mut metrics = self.metrics.lock().expect("metrics");
        metrics.extend(scopes.flat_map(|it| it.metrics));
    }

    fn logs(&self, request: ExportLogsServiceRequest) {
        let resources = request.resource_logs.into_iter();
        let scopes = resources.flat_map(|it| it.scope_logs);
        let mut logs = self.logs.lock().expect("logs");
        logs.extend(scopes.flat_map(|it| it.log_records));
    }

    fn authorization(&self, value: Option<String>) {
        let mut all = self.authorizations.lock().expect("headers");
        all.extend(value);
    }
}

/// Serves the requests of one connection.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, received: &Received) {
    while let Some((head, body)) = read(&mut stream).await {
        let path = head.split(' ').nth(1).unwrap_or_default();
        assert_eq!(
            header(&head, "content-type").as_deref(),
            Some("application/x-protobuf")
        );
        received.authorization(header(&head, "authorization"));
        match path {
            "/v1/traces" => received.traces(Message::decode(&*body).expect("spans")),
            "/v1/metrics" => received.metrics(Message::decode(&*body).expect("metrics")),
            "/v1/logs" => received.logs(Message::decode(&*body).expect("logs")),
            other => panic!("{other}"),
        }
        if stream
            .write_all(answered(200, "", "").as_bytes())
            .await
            .is_err()
        {
            return;
        }
    }
}

/// The next request: its head and its body, which is not text.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = header(&head, "content-length");
            let length: usize = length.map_or(0, |it| it.parse().expect("a length"));
            if bytes.len() >= end + 4 + length {
                return Some((head, bytes[end + 4..end + 4 + length].to_vec()));
            }
        }
        let mut chunk = [0; 16 * 1024];
        match stream.read(&mut chunk).await {
            Ok(read @ 1..) => bytes.extend_from_slice(&chunk[..read]),
            _ => return None,
        }
    }
}

#[derive(Clone)]
struct Grpc(Arc<Received>);

impl Grpc {
    fn note<T>(&self, request: Request<T>) -> T {
        let value = request.metadata().get("authorization");
        let value = value.and_then(|it| it.to_str().ok()).map(str::to_owned);
        self.0.authorization(value);
        request.into_inner()
    }
}

#[tonic::async_trait]
impl TraceService for Grpc {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let request = self.note(request);
        self.0.traces(request);
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Grpc {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let request = self.note(request);
        self.0.metrics(request);
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Grpc {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let request = self.note(request);
        self.0.logs(request);
        Ok(Response::new(Default::default()))
    }
}
