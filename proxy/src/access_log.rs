//! The access log: a line per answered request, including refusals. Off unless `observability.access_log` names its target;
//! while it is off, requests collect no entries.
//!
//! A request collects an [`AccessEntry`] while it is handled and sends it to the log at its end; the log's own thread formats
//! and writes the line. Queries are never written, since they may contain a session id or a token. The only headers written are
//! `User-Agent` and `Referer`. Values sent by clients are cut and escaped, so that no client can write lines of its own.
//!
//! The line of a stream is written when the stream ends.

mod entry;
mod lines;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use prometheus::{IntCounter, Registry};
use tooldock_sessions::caller::CallNote;
use tooldock_sessions::log_file::{self, LogFile, LogGuard, LogSender, Losses};

pub(crate) use self::entry::AccessEntry;
use self::lines::AccessLogWriter;
use crate::config::{AccessLogConfig, AccessLogFormat, ConfigError, LogPattern};

/// The sending end of the access log, for requests.
#[derive(Clone)]
pub(crate) struct AccessLog {
    log: LogSender<AccessEntry>,
    reads_bodies: bool,
    notes_calls: bool,
}

/// Owner of the access log's writer thread. Dropping it writes the queued lines.
pub(crate) type AccessLogGuard = LogGuard<AccessEntry>;

impl AccessLog {
    /// Opens the access log; `None` if it is off.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened or the thread cannot be started.
    pub(crate) fn start(
        config: &AccessLogConfig,
        data_dir: &Path,
        registry: &Registry,
    ) -> anyhow::Result<Option<(Self, AccessLogGuard)>> {
        let AccessLogConfig::On(settings) = config else {
            return Ok(None);
        };
        let target = settings.target(data_dir);
        // The file is opened now and not with the first request: a path that cannot be written ends the start.
        if let Some(path) = target.path() {
            target.open().map_err(|error| {
                anyhow::anyhow!("observability.access_log.path: {}: {error}", path.display())
            })?;
        }
        let dropped = IntCounter::new(
            "tooldock_access_log_dropped_total",
            "Lines of the access log that were lost: there was no room in the queue, or the file could not be written",
        )?;
        registry.register(Box::new(dropped.clone()))?;
        let losses = Losses::new("access log", dropped);
        let lines = AccessLogWriter::new(
            LogFile::new(target, losses.clone()),
            settings.format.clone(),
        );
        let (log, guard) = log_file::start("access-log", lines, losses)?;
        let log = Self {
            log,
            reads_bodies: match &settings.format {
                AccessLogFormat::Json => true,
                AccessLogFormat::Combined => false,
                AccessLogFormat::Pattern(pattern) => pattern.reads_bodies(),
            },
            notes_calls: match &settings.format {
                AccessLogFormat::Json => true,
                AccessLogFormat::Combined => false,
                AccessLogFormat::Pattern(pattern) => pattern.notes_calls(),
            },
        };
        Ok(Some((log, guard)))
    }

    /// Begins the entry of a request whose head has been read.
    pub(crate) fn entry(&self, head: &Parts, request_id: &Arc<str>, address: IpAddr) -> Pending {
        Pending {
            entry: AccessEntry::new(head, request_id, address),
            log: self.clone(),
        }
    }
}

/// The entry of a request that is being answered, and the log that gets the entry at the end.
pub(crate) struct Pending {
    /// The fields known so far.
    pub(crate) entry: Box<AccessEntry>,
    log: AccessLog,
}

impl Pending {
    /// Records the message of an MCP request, if lines contain its method or tool.
    pub(crate) fn message(&mut self, body: &Bytes) {
        if self.log.reads_bodies {
            self.entry.message(body);
        }
    }

    /// The note into which the service writes the outcome of the request's call, if lines contain that.
    pub(crate) fn call_note(&mut self) -> Option<Arc<CallNote>> {
        self.log.notes_calls.then(|| self.entry.call_note())
    }

    /// Completes the entry of a request that has ended and queues it for the writer; never waits.
    pub(crate) fn answered(mut self, status: u16, bytes: u64, duration: Duration) {
        self.entry.answered(status, bytes, duration);
        self.log.log.send(*self.entry);
    }
}

/// Checks the configuration of the access log without opening it.
///
/// # Errors
///
/// When the file's folder is missing, or the path is that of a folder.
pub(crate) fn check(config: &AccessLogConfig, data_dir: &Path) -> Result<(), ConfigError> {
    let AccessLogConfig::On(settings) = config else {
        return Ok(());
    };
    let target = settings.target(data_dir);
    let Some(path) = target.path() else {
        return Ok(());
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let reason = if path.is_dir() {
        format!("{} is a folder: name a file in it", path.display())
    } else if !folder.is_dir() {
        format!("there is no folder {}: make it first", folder.display())
    } else {
        return Ok(());
    };
    Err(ConfigError::key("observability.access_log.path", reason))
}

/// The pattern of the format `combined`: as web servers write it, with the reason of a refusal.
pub(crate) fn combined() -> Arc<LogPattern> {
    let pattern = "{address} - {principal} [{time}] \"{request}\" {status} {bytes} \"{referer}\" \"{user_agent}\" \"{reason}\"";
    Arc::new(pattern.parse().expect("a pattern of known fields"))
}
