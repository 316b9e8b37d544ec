//! The access log: one line per answered request, including refused ones. It is off unless `observability.access_log` names its
//! target; while it is off, requests collect no entries.
//!
//! A request collects an [`AccessEntry`] while it is handled and sends it to the log at its end. The log's thread formats and
//! writes the line. Queries are never written, since they may contain a session id or a token. The only headers written are
//! `User-Agent` and `Referer`. Values sent by clients are cut and escaped, so that a client cannot insert lines.
//!
//! The line of a streamed response is written when the stream ends.

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

/// Handle by which requests send their entries to the access log's thread.
#[derive(Clone)]
pub(crate) struct AccessLog {
    log: LogSender<AccessEntry>,
    reads_bodies: bool,
    notes_calls: bool,
}

/// Owner of the access log's writer thread. Dropping it writes the queued lines.
pub(crate) type AccessLogGuard = LogGuard<AccessEntry>;

impl AccessLog {
    /// Opens the access log; returns `None` if it is off.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or the thread cannot be started.
    pub(crate) fn start(
        config: &AccessLogConfig,
        data_dir: &Path,
        registry: &Registry,
    ) -> anyhow::Result<Option<(Self, AccessLogGuard)>> {
        let AccessLogConfig::On(settings) = config else {
            return Ok(None);
        };
        let target = settings.target(data_dir);
        // The file is opened here, and not at the first request, so that the gateway does not start with an unwritable path.
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

    /// Creates the entry of a request whose head has been read.
    pub(crate) fn entry(&self, head: &Parts, request_id: &Arc<str>, address: IpAddr) -> Pending {
        Pending {
            entry: AccessEntry::new(head, request_id, address),
            log: self.clone(),
        }
    }
}

/// The entry of a request that is still being answered, with the log to which it will be sent.
pub(crate) struct Pending {
    /// The fields recorded so far.
    pub(crate) entry: Box<AccessEntry>,
    log: AccessLog,
}

impl Pending {
    /// Records the body of an MCP request, if log lines contain the MCP method or the tool.
    pub(crate) fn message(&mut self, body: &Bytes) {
        if self.log.reads_bodies {
            self.entry.message(body);
        }
    }

    /// Returns the note in which the service records the outcome of the request's call; `None` if log lines do not contain it.
    pub(crate) fn call_note(&mut self) -> Option<Arc<CallNote>> {
        self.log.notes_calls.then(|| self.entry.call_note())
    }

    /// Completes the entry of a request that has ended and queues it for the writer; never waits.
    pub(crate) fn answered(mut self, status: u16, bytes: u64, duration: Duration) {
        self.entry.answered(status, bytes, duration);
        self.log.log.send(*self.entry);
    }
}

/// Checks the configuration of the access log without opening the file.
///
/// # Errors
///
/// If the file's folder is missing, or the path is a folder.
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

/// Returns the pattern of the format `combined`: the combined log format of web servers, with the reason of a refusal added.
pub(crate) fn combined() -> Arc<LogPattern> {
    let pattern = "{address} - {principal} [{time}] \"{request}\" {status} {bytes} \"{referer}\" \"{user_agent}\" \"{reason}\"";
    Arc::new(pattern.parse().expect("a pattern of known fields"))
}
