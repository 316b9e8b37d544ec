//! What a call leaves behind: counts, a latency, an audit line. Written once, however the call ends.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tooldock_workers::error::CallErrorCode;

use super::{CallFacts, Engine, UNKNOWN_NAME_MAX, shortened};
use crate::audit::{AuditRecord, AuditSender, Transport};
use crate::call_error::rest_status;
use crate::caller::{CallNote, CallSummary, Caller};
use crate::metrics::NamespaceMetrics;
use crate::protocol::method::TOOLS_CALL;

/// The status of a request whose client left before its answer, as nginx counts it.
const STATUS_CLIENT_GONE: u16 = 499;

/// A call in progress. Dropped unfinished, its caller went away or it was cancelled.
///
/// `A` is where the audit line goes: borrowed by a call that its own future runs, owned by one whose answer is passed on.
pub(super) struct CallRecord<A: Borrow<AuditSender>> {
    started: Instant,
    metrics: Arc<NamespaceMetrics>,
    audit: A,
    line: Option<AuditRecord>,
    note: Option<Arc<CallNote>>,
}

impl<A: Borrow<AuditSender>> CallRecord<A> {
    /// `via`: the namespace at the other end, where the call goes through an aggregate.
    pub(super) fn begin(
        engine: &Engine,
        audit: A,
        caller: &Caller,
        facts: &CallFacts,
        via: Option<Arc<str>>,
    ) -> Self {
        let namespace = &facts.namespace.name;
        let metrics = engine.metrics.namespace(namespace);
        metrics.in_flight.inc();
        let started = Instant::now();
        let arguments = audit.borrow().keep(&facts.arguments);
        Self {
            started,
            metrics,
            audit,
            note: caller.note.clone(),
            line: Some(AuditRecord {
                at: SystemTime::UNIX_EPOCH,
                request_id: Arc::clone(&caller.request_id),
                transport: facts.transport,
                namespace: namespace.clone(),
                via,
                method: facts.method.label(),
                subject: kept_short(&facts.subject),
                status: "ok",
                http_status: 200,
                latency: std::time::Duration::ZERO,
                protocol_version: facts.version,
                session: facts.session.clone(),
                client: caller.client,
                principal: caller.principal.clone(),
                token_id: caller.token_id(),
                relay: caller.relay.clone(),
                arguments,
                coerced: false,
            }),
        }
    }

    /// Notes that arguments were converted to the types of the tool's schema.
    pub(super) fn note_coercion(&mut self) {
        if let Some(line) = &mut self.line {
            line.coerced = true;
        }
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
            self.metrics.breakdown.count(
                &line.namespace,
                &line.subject,
                line.principal.as_ref(),
                line.via.is_some(),
                line.status == "ok",
            );
            self.metrics.latency.observe(latency.as_secs_f64());
        } else {
            self.metrics.count_other(line.method, line.status);
        }
        if let Some(note) = &self.note {
            note.write(CallSummary {
                outcome: line.status,
                time: latency,
            });
        }
        line.latency = latency;
        line.at = SystemTime::now();
        self.audit.borrow().send(line);
    }
}

/// A client's own spelling is kept short: the queue of records must not be fillable with names.
fn kept_short(name: &Arc<str>) -> Arc<str> {
    if name.len() <= UNKNOWN_NAME_MAX {
        return Arc::clone(name);
    }
    shortened(name).into()
}

impl<A: Borrow<AuditSender>> Drop for CallRecord<A> {
    fn drop(&mut self) {
        self.abandoned();
    }
}
