//! Requests to the OTLP receiver, over HTTP or gRPC.

use std::error::Error;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use crate::{Protocol, Settings, TransportSettings};

/// Time limit for connecting to the OTLP receiver.
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit of a request to the OTLP receiver, with its response.
const REQUEST: Duration = Duration::from_secs(10);
/// Maximum number of bytes of a response's body that are read; the rest is ignored.
const ANSWER_MAX: usize = 64 * 1024;

/// Connection to the OTLP receiver, over HTTP or gRPC.
pub(crate) enum Transport {
    Http {
        client: reqwest::Client,
        base: String,
    },
    Grpc {
        channel: Channel,
        metadata: MetadataMap,
    },
}

/// Failure of a request to the receiver. It contains no text from the receiver, since that may repeat a secret header.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Reason of the failure, for the log.
    pub(crate) reason: String,
    /// True if the failure may be temporary, so that the request is retried; false if a retry cannot succeed.
    pub(crate) is_passing: bool,
    /// Time that the receiver wants the sender to wait before a retry (`Retry-After`).
    pub(crate) wait: Option<Duration>,
}

/// An export request of one signal: traces, metrics or logs.
pub(crate) trait Signal: Message + Clone + Sized + 'static {
    /// Name of the signal, which is also in the URL's path for HTTP.
    const NAME: &'static str;
    /// Type of the receiver's response.
    type Answer: Message + Default;

    /// Sends the request over gRPC.
    async fn call(self, channel: Channel, metadata: MetadataMap) -> Result<Self::Answer, Status>;

    /// Returns the number of entries that the receiver rejected, by its response.
    fn refused(answer: &Self::Answer) -> i64;
}

macro_rules! signal {
    ($request:ty, $answer:ty, $client:ident, $name:literal, $refused:ident) => {
        impl Signal for $request {
            const NAME: &'static str = $name;
            type Answer = $answer;

            async fn call(
                self,
                channel: Channel,
                metadata: MetadataMap,
            ) -> Result<$answer, Status> {
                let mut request = tonic::Request::new(self);
                *request.metadata_mut() = metadata;
                let mut client = $client::new(channel);
                Ok(client.export(request).await?.into_inner())
            }

            fn refused(answer: &$answer) -> i64 {
                answer.partial_success.as_ref().map_or(0, |it| it.$refused)
            }
        }
    };
}

signal!(
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
    TraceServiceClient,
    "traces",
    rejected_spans
);
signal!(
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
    MetricsServiceClient,
    "metrics",
    rejected_data_points
);
signal!(
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
    LogsServiceClient,
    "logs",
    rejected_log_records
);

impl Transport {
    /// Prepares the connection, which the first request opens.
    ///
    /// # Errors
    ///
    /// The reason why no request can be sent.
    pub(crate) fn new(settings: &Settings, tls: TransportSettings) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            headers.insert(name.clone(), value.clone());
        }
        let endpoint = settings.endpoint.trim_end_matches('/');
        match settings.protocol {
            Protocol::Http => {
                let client = reqwest::Client::builder()
                    .no_proxy()
                    .redirect(reqwest::redirect::Policy::none())
                    .http1_only()
                    .connect_timeout(CONNECT)
                    .timeout(REQUEST)
                    .default_headers(headers)
                    .user_agent(user_agent())
                    .tls_backend_preconfigured(tls.tls)
                    .build();
                Ok(Self::Http {
                    client: client.map_err(|error| causes(&error))?,
                    base: endpoint.to_owned(),
                })
            }
            Protocol::Grpc => {
                let built = Endpoint::from_shared(endpoint.to_owned())
                    .and_then(|it| it.user_agent(user_agent()))
                    .map(|it| it.connect_timeout(CONNECT).timeout(REQUEST))
                    .and_then(|it| match endpoint.starts_with("https:") {
                        true => it.tls_config(grpc_tls(settings)),
                        false => Ok(it),
                    });
                let built = built.map_err(|error| causes(&error))?;
                Ok(Self::Grpc {
                    channel: built.connect_lazy(),
                    metadata: MetadataMap::from_headers(headers),
                })
            }
        }
    }

    /// Sends a request. Returns the number of entries that the receiver rejected.
    pub(crate) async fn send<S: Signal>(&self, request: &S) -> Result<i64, Failure> {
        match self {
            Self::Http { client, base } => {
                let url = format!("{base}/v1/{}", S::NAME);
                let sent = client
                    .post(url)
                    .header(CONTENT_TYPE, "application/x-protobuf")
                    .body(request.encode_to_vec())
                    .send()
                    .await;
                let response = sent.map_err(|error| Failure {
                    reason: causes(&error.without_url()),
                    is_passing: true,
                    wait: None,
                })?;
                answer_of::<S>(response).await
            }
            Self::Grpc { channel, metadata } => {
                let call = request.clone().call(channel.clone(), metadata.clone());
                let answer = call.await.map_err(|status| Failure {
                    reason: of_status(&status),
                    is_passing: is_passing(status.code()),
                    wait: None,
                })?;
                Ok(S::refused(&answer))
            }
        }
    }
}

/// Reads the receiver's response over HTTP. Returns the number of rejected entries.
async fn answer_of<S: Signal>(mut response: reqwest::Response) -> Result<i64, Failure> {
    let status = response.status();
    if !status.is_success() {
        let is_passing = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        return Err(Failure {
            reason: format!("the receiver answers {status}"),
            is_passing,
            wait: retry_after(response.headers()),
        });
    }
    let mut body = Vec::new();
    // After a success status the entries are accepted, even if the body cannot be read.
    while let Ok(Some(chunk)) = response.chunk().await {
        if body.len() + chunk.len() > ANSWER_MAX {
            return Ok(0);
        }
        body.extend_from_slice(&chunk);
    }
    let answer = S::Answer::decode(&*body).unwrap_or_default();
    Ok(S::refused(&answer))
}

fn retry_after(headers: &HeaderMap<HeaderValue>) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?;
    seconds.parse().ok().map(Duration::from_secs)
}

fn grpc_tls(settings: &Settings) -> ClientTlsConfig {
    let mut tls = ClientTlsConfig::new();
    tls = match &settings.tls.ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(ca)),
        None => tls.with_native_roots(),
    };
    match &settings.tls.identity {
        Some((cert, key)) => tls.identity(Identity::from_pem(cert, key.expose())),
        None => tls,
    }
}

fn user_agent() -> &'static str {
    concat!("tooldock/", env!("CARGO_PKG_VERSION"))
}

/// Returns true for gRPC failures after which OTLP's specification wants a retry.
fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            // The gRPC client reports a broken connection with the code `Unknown`.
            | Code::Unknown
    )
}

/// Describes a gRPC status by its code, and by the error inside this process that caused it. The receiver's text is omitted.
fn of_status(status: &Status) -> String {
    let code = status.code();
    match status.source() {
        Some(source) => format!("{code}: {}", causes(source)),
        None => format!("the receiver answers: {code}"),
    }
}

/// Formats an error with its causes, separated by colons.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
