//! What a call leaves behind: counts, a latency, an audit line. Written once, however the call ends.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use tooldock_workers::error::CallErrorCode;
use tooldock_workers::names::NamespaceName;
use tooldock_workers::worker::Operation;

use super::{CallRequest, Engine, TOOLS_CALL, UNKNOWN_NAME_MAX, method_of};
use crate::audit::{AuditRecord, AuditSender, Transport};
use crate::call_error::rest_status;
use crate::caller::Caller;
use crate::metrics::NamespaceMetrics;

/// The status of a request whose client left before its answer, as nginx counts it.
const STATUS_CLIENT_GONE: u16 = 499;

/// A call in progress. Dropped unfinished, its caller went away or it was cancelled.
pub(super) struct Record<'a> {
    started: Instant,
    metrics: Arc<NamespaceMetrics>,
    audit: &'a AuditSender,
    line: Option<AuditRecord>,
}

/// What a call is remembered as.
pub(super) struct Noted<'a> {
    pub(super) namespace: &'a NamespaceName,
    pub(super) method: &'static str,
    pub(super) subject: Arc<str>,
    pub(super) arguments: Bytes,
    pub(super) transport: Transport,
    pub(super) version: Option<&'static str>,
    pub(super) session: Option<Arc<str>>,
}

impl<'a> Noted<'a> {
    /// A call of a worker.
    pub(super) fn of(request: &'a CallRequest) -> Self {
        let (subject, arguments) = match &request.operation {
            Operation::CallTool { tool, arguments } => (tool, arguments.clone()),
            Operation::ReadResource { uri } => (uri, Bytes::new()),
            Operation::GetPrompt { prompt, arguments } => (prompt, arguments.clone()),
            Operation::Complete { params } => (&Arc::default(), params.clone()),
        };
        Self {
            namespace: &request.namespace.name,
            method: method_of(&request.operation),
            subject: kept_short(subject),
            arguments,
            transport: request.transport,
            version: request.version,
            session: request.session.clone(),
        }
    }
}

impl<'a> Record<'a> {
    pub(super) fn begin(engine: &'a Engine, caller: &Caller, noted: Noted<'_>) -> Self {
        let metrics = engine.metrics.namespace(noted.namespace);
        metrics.in_flight.inc();
        Self {
            started: Instant::now(),
            metrics,
            audit: &engine.audit,
            line: Some(AuditRecord {
                at: SystemTime::UNIX_EPOCH,
                request_id: Arc::clone(&caller.request_id),
                transport: noted.transport,
                namespace: noted.namespace.clone(),
                method: noted.method,
                subject: noted.subject,
                status: "ok",
                http_status: 200,
                latency: std::time::Duration::ZERO,
                protocol_version: noted.version,
                session: noted.session,
                client: caller.client,
                principal: caller.principal.clone(),
                arguments: noted.arguments,
            }),
        }
    }

    /// What was called: the tool, the prompt or the URI.
    pub(super) fn subject(&self) -> &str {
        self.line.as_ref().map_or("", |line| &line.subject)
    }

    /// The call ended: with its status, or failed.
    pub(super) fn finish(mut self, outcome: Result<&'static str, CallErrorCode>) {
        if let (Err(code), Some(line)) = (outcome, &self.line) {
            // What the tool itself said may hold what only its caller should see: it is not for the log.
            tracing::debug!(
                request_id = &*line.request_id,
                namespace = %line.namespace,
                method = line.method,
                code = code.as_str(),
                "call failed"
            );
        }
        self.write(outcome);
    }

    /// Nobody finished the call. Without a session that means its client left and got no answer; in one, its POST was
    /// answered that the call is cancelled.
    fn abandoned(&mut self) {
        if let Some(line) = &mut self.line
            && line.session.is_none()
        {
            line.http_status = STATUS_CLIENT_GONE;
        }
        self.write(Err(CallErrorCode::Cancelled));
    }

    fn write(&mut self, outcome: Result<&'static str, CallErrorCode>) {
        let Some(mut line) = self.line.take() else {
            return;
        };
        let latency = self.started.elapsed();
        match outcome {
            Ok(status) => line.status = status,
            Err(code) => {
                line.status = code.as_str();
                if line.transport == Transport::Rest && line.http_status == 200 {
                    line.http_status = rest_status(code).as_u16();
                }
            }
        }
        self.metrics.in_flight.dec();
        if line.method == TOOLS_CALL {
            self.metrics.count(line.status);
            self.metrics.latency.observe(latency.as_secs_f64());
        } else {
            self.metrics.count_other(line.method, line.status);
        }
        line.latency = latency;
        line.at = SystemTime::now();
        self.audit.send(line);
    }
}

/// A client's own spelling is kept short: the queue of records must not be fillable with names.
pub(super) fn kept_short(name: &Arc<str>) -> Arc<str> {
    if name.len() <= UNKNOWN_NAME_MAX {
        return Arc::clone(name);
    }
    let short: String = name.chars().take(UNKNOWN_NAME_MAX).collect();
    short.into()
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        self.abandoned();
    }
}
