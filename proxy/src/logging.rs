//! The process's own log: events of `tracing` are written to standard error, as text or JSON, including log records of Pingora.
//!
//! The audit log and the access log are written elsewhere.

mod indented;
mod limit;
mod recent;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use log::Log;
use tooldock_otlp::{LogLayer, LogQueue};
use tooldock_process::child::output::RecentLines;
use tracing::level_filters::LevelFilter;
use tracing_log::LogTracer;
use tracing_subscriber::filter::{FilterExt, Targets, dynamic_filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use self::indented::IndentingWriter;
pub(crate) use self::limit::LogLimit;
use self::recent::RecentWriter;
use crate::config::{LogConfig, LogFormat, LogLevel};

/// Maximum number of log lines per second from Pingora; further lines are discarded, see [`calm`].
const PINGORA_LINES_PER_SECOND: u64 = 10;

/// Handle of the log's filter, by which its level is changed while the process runs. It is static because logging is global.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();
/// Handle of the filter of exported events, which has the same level as the log.
static EXPORT_FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// The last lines of the log, for display in the web UI. Static because logging is global.
static RECENT: LazyLock<Arc<RecentLines>> = LazyLock::new(Arc::default);

/// Returns the last lines of the log.
pub(crate) fn recent() -> Arc<RecentLines> {
    Arc::clone(&RECENT)
}

/// Starts logging, once per process. If `export` is given, events are also put into that queue, for the OTLP export.
///
/// # Errors
///
/// If the process already has a global logger.
pub(crate) fn start(config: LogConfig, export: Option<&Arc<LogQueue>>) -> anyhow::Result<()> {
    let (filter, handle) = reload::Layer::new(filter(config.level));
    let lines = fmt::layer()
        // If standard error cannot be written, such as to a full disk, reporting that error would panic the logging thread.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = match config.format {
        LogFormat::Text => lines
            .with_writer(|| IndentingWriter(std::io::stderr()))
            .boxed(),
        LogFormat::Json => lines
            .with_writer(std::io::stderr)
            .json()
            .flatten_event(true)
            .boxed(),
    };
    // This filter's level hint allows all levels, so that only the other filter limits the level. Without a hint, libraries would
    // create all their debug records, for every request.
    let calm =
        dynamic_filter_fn(|event, _| calm(event.target())).with_max_level_hint(LevelFilter::TRACE);
    // The stored lines are text, even if the log is JSON. They contain no time, as it is stored separately.
    let kept = fmt::layer()
        .log_internal_errors(false)
        .with_ansi(false)
        .without_time()
        .with_writer(|| RecentWriter(&RECENT));
    let lines = lines.and_then(kept).with_filter(filter.and(calm));
    let started = match export {
        None => {
            let subscriber = tracing_subscriber::registry().with(lines);
            tracing::subscriber::set_global_default(subscriber)
        }
        Some(queue) => {
            let exported = exported(queue, config.level);
            let subscriber = tracing_subscriber::registry().with(vec![lines.boxed(), exported]);
            tracing::subscriber::set_global_default(subscriber)
        }
    };
    started.context("cannot start logging")?;
    log::set_boxed_logger(Box::new(Libraries(LogTracer::new()))).context("cannot start logging")?;
    // Records of libraries that use the `log` crate are only accepted at `warn` and above, whatever the log's level.
    log::set_max_level(log::LevelFilter::Warn);
    FILTER.get_or_init(|| handle);
    Ok(())
}

/// Creates the layer that puts events into the queue of the OTLP export, at the same level as the log.
fn exported(queue: &Arc<LogQueue>, level: LogLevel) -> Box<dyn Layer<Registry> + Send + Sync> {
    let (filter, handle) = reload::Layer::new(filter(level));
    EXPORT_FILTER.get_or_init(|| handle);
    // Records of Pingora are not exported. In the log they are limited, since any client can cause many of them.
    let ours = dynamic_filter_fn(|event, _| !event.target().starts_with("pingora"))
        .with_max_level_hint(LevelFilter::TRACE);
    LogLayer::new(queue).with_filter(filter.and(ours)).boxed()
}

/// Logger for records of libraries that use the `log` crate, mainly Pingora.
struct Libraries(LogTracer);

impl Log for Libraries {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.target().starts_with("pingora") {
            let text = record.args().to_string();
            if is_a_clients_doing(&text) {
                tracing::debug!(target: "tooldock::connection", "{text}");
                return;
            }
        }
        self.0.log(record);
    }

    fn flush(&self) {
        self.0.flush();
    }
}

/// Returns true if an error that Pingora logs only reports that a client disconnected or violated the protocol. A load balancer
/// that tests whether the port is open causes such a record every few seconds.
fn is_a_clients_doing(text: &str) -> bool {
    [
        "H2 handshake error",
        // Pingora's error about an incomplete head. Errors in later phases are logged by the gateway.
        "Fail to proxy:",
        "failed to send error response to downstream",
    ]
    .iter()
    .any(|beginning| text.starts_with(beginning))
}

/// Returns true if a record may be written now. Records of Pingora are limited to [`PINGORA_LINES_PER_SECOND`], since any client
/// can cause as many as it likes.
fn calm(target: &str) -> bool {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    if !target.starts_with("pingora") {
        return true;
    }
    // The upper half is the current second, the lower half the number of lines in it. One atomic number needs no lock.
    let second = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs() & u64::from(u32::MAX));
    let counted = |state: u64| {
        if state >> 32 == second {
            state + 1
        } else {
            second << 32 | 1
        }
    };
    let before = WRITTEN
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| {
            Some(counted(state))
        })
        .unwrap_or_default();
    counted(before) & u64::from(u32::MAX) <= PINGORA_LINES_PER_SECOND
}

/// Changes the level of the log and of the export.
pub(crate) fn set_level(level: LogLevel) {
    for handle in [FILTER.get(), EXPORT_FILTER.get()].into_iter().flatten() {
        // An error would mean that the logger was dropped, so that it could not be logged.
        let _ = handle.reload(filter(level));
    }
}

/// Creates a filter with the given level for the gateway's crates. Libraries are only logged at `warn` and above, since Pingora
/// logs much at `info`.
fn filter(level: LogLevel) -> Targets {
    let ours = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // Targets match by prefix, so that `tooldock` includes all the gateway's crates.
    Targets::new()
        .with_default(ours.min(LevelFilter::WARN))
        .with_target("tooldock", ours)
        // Target of the output of tools; see `tooldock_process::child::output`.
        .with_target("worker_output", ours)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn all_our_crates_log_at_the_level_asked_for() {
        let filter = filter(LogLevel::Debug);
        for target in [
            "tooldock::serve",
            "tooldock_filters",
            "tooldock_engine::engine",
            "tooldock_servers::pool",
            "tooldock_upstream::mcp",
            "tooldock_process::worker",
            "tooldock_base::data_dir",
        ] {
            assert!(filter.would_enable(target, &Level::DEBUG), "{target}");
        }
    }

    #[test]
    fn a_flood_of_library_lines_is_cut_and_ours_are_not() {
        let written = (0..1000).filter(|_| calm("pingora_core::apps")).count();
        // The second may turn over once while this runs.
        assert!((1..=20).contains(&written), "{written}");
        assert!((0..1000).all(|_| calm("tooldock::serve")));
    }

    #[test]
    fn what_clients_do_is_told_from_what_fails_here() {
        assert!(is_a_clients_doing(
            "H2 handshake error while h2 handshaking with client"
        ));
        assert!(is_a_clients_doing("Fail to proxy: Downstream ReadError"));
        assert!(!is_a_clients_doing("Accept() failed Too many open files"));
    }

    #[test]
    fn libraries_stay_at_warn_or_below() {
        assert!(!filter(LogLevel::Trace).would_enable("pingora_core::server", &Level::INFO));
        assert!(filter(LogLevel::Info).would_enable("pingora_core::server", &Level::WARN));
        assert!(!filter(LogLevel::Error).would_enable("pingora_core::server", &Level::WARN));
    }
}
