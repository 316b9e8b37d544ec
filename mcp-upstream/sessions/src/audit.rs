//! The audit log: one JSON line per call of a tool, resource, prompt or completion, in one file per UTC day.
//!
//! The module `log_file` writes the lines to files and counts the lost ones.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use prometheus::IntCounter;
use serde::{Deserialize, Serialize};
use tooldock_base::names::NamespaceName;

mod arguments;
mod days;
mod line;
mod mask;

use crate::call_error::CallCause;
use crate::caller::RelayPeer;
use crate::log_file::{self, Clock, LogGuard, LogSender, Losses, Record, Sink};
pub use arguments::KeptArguments;
use days::DailyFiles;

/// `observability.audit:` — the fields that the audit log contains, and the time for which its files are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// Number of days for which audit files are kept, including today; 0 keeps all files.
    pub retention_days: u32,
    /// The form in which the audit log contains the arguments of calls.
    pub arguments: AuditArguments,
}

/// The form in which the audit log contains the arguments of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditArguments {
    /// The audit log does not contain arguments.
    None,
    /// The audit log contains the size and the BLAKE3 digest of the arguments.
    #[default]
    Digest,
    /// The audit log contains the arguments themselves. Values whose key looks like that of a secret are masked, and large
    /// arguments are replaced by their digest.
    Full,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self {
            retention_days: 30,
            arguments: AuditArguments::Digest,
        }
    }
}

/// Transport by which a call arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// The call arrived by an MCP endpoint, such as `POST /mcp`.
    Mcp,
    /// The call arrived by REST: `POST /tools/{name}`.
    Rest,
    /// The call arrived as a frame on the relay's Unix socket.
    Relay,
}

/// The audit record of one call. It is not formatted yet, so that creating it costs little; the writer's thread formats it.
#[derive(Debug, Clone)]
pub struct AuditRecord {
    /// Time at which the call ended.
    pub at: SystemTime,
    /// Id of the request, as in the response and in other logs.
    pub request_id: Arc<str>,
    /// Transport by which the call arrived.
    pub transport: Transport,
    /// The namespace of the call.
    pub namespace: NamespaceName,
    /// For a call through an aggregate, the other namespace: the record of the aggregate contains the member, and the record of
    /// the member contains the aggregate.
    pub via: Option<Arc<str>>,
    /// The MCP method of the call, also for calls over REST.
    pub method: &'static str,
    /// Name of the tool or prompt, or URI of the resource, as the client wrote it; empty for completions.
    pub subject: Arc<str>,
    /// Outcome of the call: `ok`, or the stable code of the error.
    pub status: &'static str,
    /// HTTP status of the response.
    pub http_status: u16,
    /// Cause of the failure; `None` if the call succeeded, or if its status describes the failure completely.
    pub cause: Option<Box<CallCause>>,
    /// Duration of the call, including its wait in the queue.
    pub latency: Duration,
    /// Protocol version of the MCP request; `None` for calls by REST.
    pub protocol_version: Option<&'static str>,
    /// Digest of the session's id. The id itself is not recorded, since it is a credential.
    pub session: Option<Arc<str>>,
    /// The client's address; the unspecified address for a client of a Unix socket.
    pub client: IpAddr,
    /// The name of the caller's principal; `None` for callers without one.
    pub principal: Option<Arc<str>>,
    /// Id of the caller's API key; `None` for other credentials.
    pub token_id: Option<Arc<str>>,
    /// The process at the other end of the relay's socket; `None` for calls by other transports.
    pub relay: Option<Arc<RelayPeer>>,
    /// The call's arguments in the configured form, as [`AuditSender::keep`] returns them.
    pub arguments: KeptArguments,
    /// True if arguments that the client sent as strings of JSON were converted to the types of the tool's schema. `arguments`
    /// contains them as they were sent.
    pub coerced: bool,
    /// Outcome of the hooks of the call: `passed`, `changed`, `skipped`, `failed` or `refused`; `None` if no hook saw the call.
    /// `arguments` contains them as hooks have changed them.
    pub hook: Option<&'static str>,
}

impl Record for AuditRecord {
    fn bytes(&self) -> usize {
        let cause = self.cause.as_ref();
        self.arguments.held_bytes() + cause.map_or(0, |it| it.detail.len())
    }
}

/// Queue for audit records, which a separate thread writes. Cheap to clone.
#[derive(Clone)]
pub struct AuditSender {
    log: Option<LogSender<AuditRecord>>,
    arguments: AuditArguments,
}

/// Owner of the audit log's writer thread. Dropping it writes the queued records and ends the thread, within five seconds.
pub type AuditGuard = LogGuard<AuditRecord>;

/// Functions that start an audit log.
#[derive(Debug, Clone, Copy)]
pub struct Audit;

impl Audit {
    /// Starts an audit log in a folder. Creates the folder if it is missing, and deletes files that are older than the retention.
    /// `dropped` counts the lost records.
    ///
    /// # Errors
    ///
    /// The writer's thread cannot be started. If the folder cannot be written, that is only logged.
    pub fn start(
        config: AuditConfig,
        dir: PathBuf,
        dropped: IntCounter,
    ) -> std::io::Result<(AuditSender, AuditGuard)> {
        let losses = Losses::new("audit log", dropped);
        let mut files = DailyFiles::new(dir, config.retention_days, losses.clone());
        let mut clock = Clock::default();
        files.clean(clock.day(SystemTime::now()));
        let lines = AuditLines {
            files,
            clock,
            line: Vec::with_capacity(1024),
        };
        let (log, guard) = log_file::start("audit", lines, losses)?;
        let sender = AuditSender {
            log: Some(log),
            arguments: config.arguments,
        };
        Ok((sender, guard))
    }

    /// Returns a sender that drops all records, for gateways without a folder for audit files.
    pub fn off() -> AuditSender {
        AuditSender {
            log: None,
            arguments: AuditArguments::None,
        }
    }
}

impl AuditSender {
    /// Copies a call's arguments in the form that `observability.audit.arguments` selects. Returns [`KeptArguments::None`] if
    /// there is no audit log.
    pub fn keep(&self, arguments: &Bytes) -> KeptArguments {
        match self.log {
            Some(_) => KeptArguments::of(arguments, self.arguments),
            None => KeptArguments::None,
        }
    }

    /// Returns true if records may contain the error messages of tools. False if the configuration excludes arguments from the
    /// log, since an error message may repeat them.
    pub fn keeps_words_of_tools(&self) -> bool {
        self.arguments != AuditArguments::None
    }

    /// Adds a record to the writer's queue, without waiting.
    pub fn send(&self, record: AuditRecord) {
        if let Some(log) = &self.log {
            log.send(record);
        }
    }
}

/// Formats records as lines, and appends each line to the file of its day.
struct AuditLines {
    files: DailyFiles,
    clock: Clock,
    line: Vec<u8>,
}

impl Sink for AuditLines {
    type Record = AuditRecord;

    fn put(&mut self, record: AuditRecord) {
        self.line.clear();
        line::format(&record, &mut self.clock, &mut self.line);
        self.files.append(self.clock.day(record.at), &self.line);
    }

    fn flush(&mut self) {
        self.files.flush();
    }

    fn reopen(&mut self) {
        self.files.reopen(self.clock.day(SystemTime::now()));
    }

    fn idle(&mut self) {
        self.files.idle(self.clock.day(SystemTime::now()));
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;
    use crate::cost::allocations;
    use crate::log_file::{RecordQueue, Records};

    pub(super) fn record() -> AuditRecord {
        AuditRecord {
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_770_976_800_123),
            request_id: "r-1".into(),
            transport: Transport::Mcp,
            namespace: "github".parse().expect("a name"),
            via: None,
            method: "tools/call",
            subject: "list_issues".into(),
            status: "ok",
            http_status: 200,
            cause: None,
            latency: Duration::from_micros(23_900),
            protocol_version: Some("2025-11-25"),
            session: Some("0123456789abcdef".into()),
            client: "127.0.0.1".parse().expect("an address"),
            principal: Some("ci".into()),
            token_id: None,
            relay: None,
            arguments: KeptArguments::None,
            coerced: false,
            hook: None,
        }
    }

    fn counter() -> IntCounter {
        IntCounter::new("dropped", "records dropped").expect("a valid name")
    }

    #[test]
    fn the_end_of_the_guard_writes_what_was_queued() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = AuditConfig {
            retention_days: 0,
            ..AuditConfig::default()
        };
        let logs = dir.path().join("logs");
        let dropped = counter();
        let (sender, guard) =
            Audit::start(config, logs.clone(), dropped.clone()).expect("a thread");
        for _ in 0..100 {
            sender.send(record());
        }
        drop(guard);
        let text = std::fs::read_to_string(logs.join("2026-02-13.jsonl")).expect("a file");
        assert_eq!(text.lines().count(), 100);
        sender.send(record());
        assert_eq!(dropped.get(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_written_fails_no_request_and_hides_no_loss() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let below = file.path().join("logs");
        let dropped = counter();
        let (sender, guard) =
            Audit::start(AuditConfig::default(), below, dropped.clone()).expect("a thread");
        sender.send(record());
        sender.send(record());
        drop(guard);
        assert_eq!(dropped.get(), 2);
    }

    #[test]
    fn an_audit_line_allocates_nothing() {
        let queue = Arc::new(RecordQueue::new(Losses::for_tests()));
        let sender = AuditSender {
            log: Some(LogSender::of(&queue)),
            arguments: AuditArguments::Digest,
        };
        let records = Records::of(&queue);
        let (mut batch, mut line, mut clock) = (Vec::new(), Vec::new(), Clock::default());
        let made = allocations(record, |mut record| {
            record.arguments = sender.keep(&Bytes::from_static(br#"{"owner":"x"}"#));
            sender.send(record);
            records.take(&mut batch, Duration::ZERO, Duration::ZERO);
            assert_eq!(batch.len(), 1);
            for record in batch.drain(..) {
                line.clear();
                line::format(&record, &mut clock, &mut line);
                black_box(clock.day(record.at));
                records.written(1, record.bytes());
            }
            black_box(&line);
        });
        assert_eq!(made, 0);
    }
}
