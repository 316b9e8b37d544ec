//! The record of a call: counts, a latency, an audit line. Written once, however the call ends.

use std::borrow::Borrow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use tooldock_base::error::CallErrorCode;
use tooldock_base::trace::{Attribute, CallEnd as TracedCall, RequestTrace};
use tooldock_protocol::version::method::TOOLS_CALL;
use tooldock_sessions::audit::{AuditRecord, AuditSender, Transport};
use tooldock_sessions::call_error::{CallCause, rest_status};
use tooldock_sessions::caller::{CallNote, CallSummary, Caller};
use tooldock_workers::registry::Namespace;

use super::{CallFacts, Engine, UNKNOWN_NAME_MAX, UpstreamCall, shortened};
use crate::hooks::HookNote;
use crate::metrics::{CallEnd, NamespaceMetrics};
use crate::trace::{PIPES, error_of};

/// HTTP status that is recorded if the client disconnected before the response; nginx uses the same number.
const STATUS_CLIENT_GONE: u16 = 499;

/// Record of a call in progress. If it is dropped unfinished, it records that the client disconnected or the call was cancelled.
///
/// `A` is the sender of audit lines: borrowed by a call that its own future runs, owned by a call whose response is passed on.
pub(super) struct CallRecord<A: Borrow<AuditSender>> {
    started: Instant,
    metrics: Arc<NamespaceMetrics>,
    audit: A,
    line: Option<AuditRecord>,
    note: Option<Arc<CallNote>>,
    trace: Option<Arc<RequestTrace>>,
    namespace: Arc<Namespace>,
    progress: CallProgress,
    /// True for a call that is delegated to another namespace. The record of the delegated call counts it for its principal
    /// instead of this one.
    is_delegated: bool,
}

/// Facts that are found out while a call runs.
#[derive(Debug, Default)]
pub(super) struct CallProgress {
    reached: AtomicBool,
    hooks: OnceLock<Box<HookNote>>,
}

impl CallProgress {
    /// Notes that the call is admitted to its upstream. Before that, the tool's name may be arbitrary client input.
    pub(super) fn reach(&self) {
        self.reached.store(true, Ordering::Relaxed);
    }

    /// Facts about the hooks of the call. Only a call with hooks allocates them.
    pub(super) fn hooks(&self) -> &HookNote {
        self.hooks.get_or_init(Box::default)
    }
}

impl<A: Borrow<AuditSender>> CallRecord<A> {
    /// Begins a record. `via` is the other namespace of a call through an aggregate: the member for the aggregate's call, the
    /// aggregate for the member's call.
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
            trace: caller.trace.clone(),
            namespace: Arc::clone(&facts.namespace),
            progress: CallProgress::default(),
            is_delegated: false,
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
                cause: None,
                latency: Duration::ZERO,
                protocol_version: facts.version,
                session: facts.session.clone(),
                client: caller.client,
                principal: caller.principal.clone(),
                token_id: caller.token_id(),
                relay: caller.relay.clone(),
                arguments,
                coerced: false,
                hook: None,
            }),
        }
    }

    /// Facts that the engine notes while the call runs.
    pub(super) fn progress(&self) -> &CallProgress {
        &self.progress
    }

    /// Returns true if the name is that of a tool, and not an arbitrary text of a client: the namespace declares the tool, or the
    /// call was admitted to its upstream.
    fn is_of_a_tool(&self, name: &str) -> bool {
        let mut declared = self.namespace.tools.iter();
        self.progress.reached.load(Ordering::Relaxed) || declared.any(|tool| *tool.name == *name)
    }

    /// Notes whether the call is delegated to another namespace.
    pub(super) fn note_delegation(&mut self, call: &Arc<dyn UpstreamCall>) {
        self.is_delegated = call.delegate().is_some();
    }

    /// Records that arguments were converted to the types of the tool's schema.
    pub(super) fn note_coercion(&mut self) {
        if let Some(line) = &mut self.line {
            line.coerced = true;
        }
    }

    /// Sets the HTTP status of the response, if it differs from the usual status for the outcome.
    pub(super) fn sent(&mut self, status: StatusCode) {
        if let Some(line) = &mut self.line {
            line.http_status = status.as_u16();
        }
    }

    /// Records the end of the call: its status, or its error code. `cause`: the reason for a failure, if known.
    pub(super) fn finish(
        mut self,
        outcome: Result<&'static str, CallErrorCode>,
        cause: Option<CallCause>,
    ) {
        if let (Some(line), Some(mut cause)) = (&mut self.line, cause) {
            if cause.of_tool && !self.audit.borrow().keeps_words_of_tools() {
                cause.detail.clear();
            }
            log_failure(line, outcome, &cause);
            line.cause = Some(Box::new(cause));
        }
        self.write(outcome);
    }

    /// Records a call that was dropped unfinished. Without a session, the client disconnected and got no response. In a
    /// session, the client's POST was answered with the cancellation.
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
        if let Some(hooks) = self.progress.hooks.get() {
            line.hook = hooks.word();
            if let Some(arguments) = hooks.arguments() {
                line.arguments = self.audit.borrow().keep(arguments);
            }
        }
        match outcome {
            Ok(status) => {
                line.status = status;
                // REST reports the error result of a server or a tool by an HTTP status.
                if status != "ok" && line.transport == Transport::Rest && line.http_status == 200 {
                    line.http_status = rest_status(CallErrorCode::InternalError).as_u16();
                }
            }
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
            self.metrics.breakdown.count(CallEnd {
                namespace: &line.namespace,
                tool: self.is_of_a_tool(&line.subject).then_some(&line.subject),
                principal: line.principal.as_ref(),
                is_delegated: self.is_delegated,
                is_ok: line.status == "ok",
            });
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
        if let Some(trace) = self.trace.take() {
            let is_known = self.is_of_a_tool(&line.subject);
            end_trace(&trace, &line, is_known, error_of(outcome));
        }
        line.latency = latency;
        line.at = SystemTime::now();
        self.audit.borrow().send(line);
    }
}

/// Writes the end of a call to the trace of its request, without arguments and results.
#[cold]
fn end_trace(
    trace: &RequestTrace,
    line: &AuditRecord,
    is_known: bool,
    error: Option<&'static str>,
) {
    let key = match line.method {
        TOOLS_CALL => Some("gen_ai.tool.name"),
        "prompts/get" => Some("gen_ai.prompt.name"),
        _ => None,
    };
    let transport = match line.transport {
        Transport::Mcp if trace.route() == PIPES => "pipe",
        Transport::Mcp | Transport::Rest => "tcp",
        Transport::Relay => "unix",
    };
    let mut attributes: Vec<Attribute> = vec![
        ("network.transport", transport.into()),
        ("tooldock.request_id", Arc::clone(&line.request_id).into()),
    ];
    if transport == "tcp" {
        let client: Arc<str> = line.client.to_string().into();
        attributes.push(("client.address", client.into()));
    }
    if line.method == TOOLS_CALL {
        attributes.push(("gen_ai.operation.name", "execute_tool".into()));
    }
    if let Some(version) = line.protocol_version {
        attributes.push(("mcp.protocol.version", version.into()));
    }
    if let Some(session) = &line.session {
        attributes.push(("mcp.session.id", Arc::clone(session).into()));
    }
    if let Some(principal) = &line.principal {
        attributes.push(("tooldock.principal", Arc::clone(principal).into()));
    }
    let namespace: Arc<str> = line.namespace.as_str().into();
    let end = TracedCall {
        method: line.method,
        // An unknown name may be arbitrary client input, so the trace contains only known names.
        target: key.filter(|_| is_known).map(|key| (key, &line.subject)),
        error,
        attributes,
    };
    trace.call(&namespace, end);
}

/// Logs a failed call, with the same cause as in the audit log.
fn log_failure(
    line: &AuditRecord,
    outcome: Result<&'static str, CallErrorCode>,
    cause: &CallCause,
) {
    let code = match outcome {
        Ok(status) => status,
        Err(code) => code.as_str(),
    };
    let (request_id, namespace) = (&*line.request_id, line.namespace.as_str());
    let (method, subject) = (line.method, &*line.subject);
    let detail = (!cause.detail.is_empty()).then_some(&*cause.detail);
    let is_fault = outcome.is_err_and(is_fault) && !cause.of_tool;
    match is_fault.then(|| FAULTS.take()).flatten() {
        Some(left_out) => tracing::warn!(
            request_id,
            namespace,
            method,
            subject,
            code,
            cause = &*cause.code,
            detail,
            left_out = (left_out > 0).then_some(left_out),
            "call failed"
        ),
        None => tracing::debug!(
            request_id,
            namespace,
            method,
            subject,
            code,
            cause = &*cause.code,
            detail,
            "call failed"
        ),
    }
}

/// Returns true if an operator may have to act on a failure with this code; false if it concerns only the client or the tool.
fn is_fault(code: CallErrorCode) -> bool {
    match code {
        CallErrorCode::DependencyError
        | CallErrorCode::ExecutionTimeout
        | CallErrorCode::InternalError
        | CallErrorCode::WorkerUnavailable
        | CallErrorCode::Overloaded
        | CallErrorCode::ResultTooLarge
        | CallErrorCode::HookFailed
        | CallErrorCode::UpstreamError => true,
        CallErrorCode::ToolNotFound
        | CallErrorCode::Starting
        | CallErrorCode::InsufficientScope
        | CallErrorCode::ResourceNotFound
        | CallErrorCode::PromptNotFound
        | CallErrorCode::InvalidArguments
        | CallErrorCode::OutputType
        | CallErrorCode::ToolError
        | CallErrorCode::RateLimited
        | CallErrorCode::Cancelled
        | CallErrorCode::MissingCapability
        | CallErrorCode::MissingCredential
        | CallErrorCode::HookRefused
        | CallErrorCode::AskFailed => false,
    }
}

/// Limits the number of log entries about failed calls per second. The audit log contains all failures.
struct LineBudget(Mutex<LineCount>);

#[derive(Clone, Copy)]
struct LineCount {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

static FAULTS: LineBudget = LineBudget::new();

impl LineBudget {
    /// Maximum number of log entries in one second.
    const PER_SECOND: u32 = 100;

    const fn new() -> Self {
        Self(Mutex::new(LineCount {
            since: None,
            written: 0,
            left_out: 0,
        }))
    }

    fn take(&self) -> Option<u64> {
        self.take_at(Instant::now())
    }

    /// Takes a permit for a log entry if one remains in this second. Returns the number of entries that were suppressed since the
    /// last permitted one; `None` without a permit.
    fn take_at(&self, now: Instant) -> Option<u64> {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let second = Duration::from_secs(1);
        if count
            .since
            .is_none_or(|since| now.duration_since(since) >= second)
        {
            (count.since, count.written) = (Some(now), 0);
        }
        if count.written >= Self::PER_SECOND {
            count.left_out += 1;
            return None;
        }
        count.written += 1;
        Some(std::mem::take(&mut count.left_out))
    }
}

/// Shortens a long name that a client wrote, so that names cannot fill the queue of records.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_failed_calls_are_bounded_and_the_next_one_says_how_many_are_missing() {
        let (budget, begin) = (LineBudget::new(), Instant::now());
        for _ in 0..LineBudget::PER_SECOND {
            assert_eq!(budget.take_at(begin), Some(0));
        }
        assert_eq!(budget.take_at(begin), None);
        assert_eq!(budget.take_at(begin + Duration::from_millis(999)), None);
        let later = begin + Duration::from_secs(1);
        assert_eq!(budget.take_at(later), Some(2));
        assert_eq!(budget.take_at(later), Some(0));
    }
}
