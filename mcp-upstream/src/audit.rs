//! The audit log: one JSON line per call of a tool, resource, prompt or completion, in one file per UTC day.
//!
//! Requests hand their record to a bounded queue and go on; a thread of its own formats, writes and flushes. A full
//! queue drops the record and counts it. A failing disk is logged now and then and never reaches a request.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use prometheus::IntCounter;
use serde::{Deserialize, Serialize};
use tooldock_workers::names::NamespaceName;

mod clock;
mod days;
mod line;
mod mask;
mod queue;

use clock::Clock;
use days::DailyFiles;
use queue::{Full, Queue, Records};

/// How long the writer collects before it writes: senders do not wake it meanwhile.
const LINGER: Duration = Duration::from_millis(10);
/// How long a shutdown waits for the writer.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// `observability.audit:` — what is kept and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// Days a file is kept, today's included; 0 keeps all.
    pub retention_days: u32,
    /// What is written of a call's arguments.
    pub arguments: AuditArguments,
}

/// What is written of a call's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditArguments {
    /// Nothing.
    None,
    /// Their size and SHA-256.
    #[default]
    Digest,
    /// The arguments, values of secret-looking keys masked; large ones as a digest.
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

/// How a call came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `POST /mcp`.
    Mcp,
    /// `POST /tools/{name}`.
    Rest,
}

/// What is worth remembering of one call. Cheap to make: the writer does the work.
#[derive(Debug, Clone)]
pub struct AuditRecord {
    /// When the call ended.
    pub at: SystemTime,
    /// The request's id.
    pub request_id: Arc<str>,
    /// How it came in.
    pub transport: Transport,
    /// The namespace.
    pub namespace: NamespaceName,
    /// The MCP method that makes such a call.
    pub method: &'static str,
    /// The tool, URI or prompt, as the client spelled it; empty for completions.
    pub subject: Arc<str>,
    /// `ok` or the error's code.
    pub status: &'static str,
    /// The status of the HTTP answer.
    pub http_status: u16,
    /// How long the call took, waiting in the queue included.
    pub latency: Duration,
    /// The MCP version; `None` in REST.
    pub protocol_version: Option<&'static str>,
    /// The digest that stands for the session.
    pub session: Option<Arc<str>>,
    /// The client's address.
    pub client: IpAddr,
    /// The token's name.
    pub principal: Option<Arc<str>>,
    /// The arguments; not written as they are.
    pub arguments: Bytes,
}

/// The requests' end. Cheap to clone.
#[derive(Clone)]
pub struct AuditSender {
    queue: Option<Arc<Queue>>,
    arguments: AuditArguments,
    dropped: IntCounter,
}

/// The writer's owner: dropping it writes what is queued and ends the thread, within five seconds.
#[must_use = "dropping the guard ends the audit log"]
pub struct AuditGuard {
    queue: Arc<Queue>,
    finished: Receiver<()>,
}

/// Namespace of the functions that make an audit log.
#[derive(Debug, Clone, Copy)]
pub struct Audit;

impl Audit {
    /// Starts the writer on a folder, which is made if it is missing, and deletes files past their retention.
    /// `dropped` counts the records that found the queue full.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started. A folder that cannot be written is logged, not an error.
    pub fn start(
        config: AuditConfig,
        dir: PathBuf,
        dropped: IntCounter,
    ) -> std::io::Result<(AuditSender, AuditGuard)> {
        let queue = Arc::new(Queue::default());
        let (done, finished) = sync_channel(1);
        let written = Arc::clone(&queue);
        std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || {
                let mut files = DailyFiles::new(dir, config.retention_days);
                files.clean(Clock::default().day(SystemTime::now()));
                write_until_stopped(&written, &mut files, config.arguments);
                let _ = done.send(());
            })?;
        Ok((
            AuditSender {
                queue: Some(Arc::clone(&queue)),
                arguments: config.arguments,
                dropped,
            },
            AuditGuard { queue, finished },
        ))
    }

    /// A sender that forgets everything.
    pub fn off() -> AuditSender {
        AuditSender {
            queue: None,
            arguments: AuditArguments::None,
            dropped: IntCounter::new("audit_off", "never shown").expect("a valid metric name"),
        }
    }
}

impl AuditSender {
    /// Queues a record; never waits.
    pub fn send(&self, mut record: AuditRecord) {
        let Some(queue) = &self.queue else {
            return;
        };
        if self.arguments == AuditArguments::None {
            record.arguments = Bytes::new();
        }
        if let Err(Full) = queue.put(record) {
            self.dropped.inc();
        }
    }
}

impl Drop for AuditGuard {
    fn drop(&mut self) {
        self.queue.end();
        if let Err(RecvTimeoutError::Timeout) = self.finished.recv_timeout(SHUTDOWN) {
            tracing::error!("the audit log did not finish in time; its last lines may be missing");
        }
    }
}

/// One turn: wait for a record, let others gather, write all there are, flush.
fn write_until_stopped(queue: &Queue, files: &mut DailyFiles, arguments: AuditArguments) {
    let records = Records::of(queue);
    let (mut batch, mut line) = (Vec::new(), Vec::with_capacity(1024));
    let mut clock = Clock::default();
    loop {
        let goes_on = records.take(&mut batch, LINGER);
        let (count, mut bytes) = (batch.len(), 0);
        for record in batch.drain(..) {
            bytes += record.arguments.len();
            line.clear();
            line::format(&record, arguments, &mut clock, &mut line);
            files.append(clock.day(record.at), &line);
        }
        files.flush();
        records.written(count, bytes);
        Records::trim(&mut batch);
        if !goes_on {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;
    use crate::cost::allocations;

    pub(super) fn record() -> AuditRecord {
        AuditRecord {
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_770_976_800_123),
            request_id: "r-1".into(),
            transport: Transport::Mcp,
            namespace: "github".parse().expect("a name"),
            method: "tools/call",
            subject: "list_issues".into(),
            status: "ok",
            http_status: 200,
            latency: Duration::from_micros(23_900),
            protocol_version: Some("2025-11-25"),
            session: Some("0123456789abcdef".into()),
            client: "127.0.0.1".parse().expect("an address"),
            principal: Some("ci".into()),
            arguments: Bytes::from_static(br#"{"owner":"x"}"#),
        }
    }

    fn sender(queue: &Arc<Queue>) -> AuditSender {
        AuditSender {
            queue: Some(Arc::clone(queue)),
            arguments: AuditArguments::Digest,
            dropped: counter(),
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
        let (sender, guard) = Audit::start(config, logs.clone(), counter()).expect("a thread");
        for _ in 0..100 {
            sender.send(record());
        }
        drop(guard);
        let text = std::fs::read_to_string(logs.join("2026-02-13.jsonl")).expect("a file");
        assert_eq!(text.lines().count(), 100);
        sender.send(record());
        assert_eq!(sender.dropped.get(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_written_fails_no_request() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let below = file.path().join("logs");
        let (sender, guard) =
            Audit::start(AuditConfig::default(), below, counter()).expect("a thread");
        sender.send(record());
        drop(guard);
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let queue = Arc::new(Queue::default());
        drop(Records::of(&queue));
        let sender = sender(&queue);
        sender.send(record());
        assert_eq!(sender.dropped.get(), 1);
    }

    #[test]
    fn cost_of_an_audit_line() {
        let queue = Arc::new(Queue::default());
        let (sender, records) = (sender(&queue), Records::of(&queue));
        let (mut batch, mut line, mut clock) = (Vec::new(), Vec::new(), Clock::default());
        let made = allocations(record, |record| {
            sender.send(record);
            assert!(records.take(&mut batch, Duration::ZERO));
            for record in batch.drain(..) {
                line.clear();
                line::format(&record, AuditArguments::Digest, &mut clock, &mut line);
                black_box(clock.day(record.at));
                records.written(1, record.arguments.len());
            }
            black_box(&line);
        });
        assert_eq!(made, 0);
    }
}
