//! The process's own log: `tracing` to standard error, as text or JSON, with Pingora's `log` records bridged in.
//!
//! Audit lines are not written here.

use std::io::IsTerminal;
use std::sync::OnceLock;

use anyhow::Context;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::config::{LogConfig, LogFormat, LogLevel};

/// The filter of this process's log, so that its level can change while it runs. Logging is global, and so is this.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Starts logging, once per process.
///
/// # Errors
///
/// When something else has taken the process's log already.
pub(crate) fn start(config: LogConfig) -> anyhow::Result<()> {
    let (filter, handle) = reload::Layer::new(filter(config.level));
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = match config.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init()
        .context("cannot start logging")?;
    FILTER.get_or_init(|| handle);
    Ok(())
}

/// Changes the level of the log that was started.
pub(crate) fn set_level(level: LogLevel) {
    if let Some(handle) = FILTER.get() {
        // The only failure is a log that is gone, and then nobody could be told.
        let _ = handle.reload(filter(level));
    }
}

/// Our crates at the level asked for; libraries at `warn` at most, since Pingora tells much at `info`.
fn filter(level: LogLevel) -> Targets {
    let ours = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // Targets match by prefix: this covers the crates below, too.
    Targets::new()
        .with_default(ours.min(LevelFilter::WARN))
        .with_target("tooldock", ours)
        // What tools print; see `tooldock_workers::process::output`.
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
            "tooldock_upstream::engine",
            "tooldock_workers::worker",
        ] {
            assert!(filter.would_enable(target, &Level::DEBUG), "{target}");
        }
    }

    #[test]
    fn libraries_stay_at_warn_or_below() {
        assert!(!filter(LogLevel::Trace).would_enable("pingora_core::server", &Level::INFO));
        assert!(filter(LogLevel::Info).would_enable("pingora_core::server", &Level::WARN));
        assert!(!filter(LogLevel::Error).would_enable("pingora_core::server", &Level::WARN));
    }
}
