//! How large and how small the numbers and durations may be.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytesize::ByteSize;
use tooldock_upstream::session::config::{BYTES_MIN, PollAfter};
use tooldock_workers::config::{LimitsPatch, PROCESSES_MAX};

use super::{Config, ConfigError};

/// Longer waits than this are a slip, and clocks overflow somewhere above.
const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Bodies and results are held in memory as a whole.
const MESSAGE_BYTES: RangeInclusive<u64> = 1..=1 << 30;

/// Events of all streams, kept in memory.
const EVENT_LOG_BYTES: RangeInclusive<u64> = 1..=1 << 40;

/// Sessions, kept in memory.
const SESSION_BYTES: RangeInclusive<u64> = BYTES_MIN as u64..=1 << 40;

/// Streams are looked after in sixteenths of it; a shorter one keeps the machine busy and no connection open.
const KEEPALIVE_MIN: Duration = Duration::from_millis(10);

/// Things there are many of: more would not fit in memory.
const MANY: RangeInclusive<u64> = 1..=100_000_000;

/// Calls at once: more would not fit in one worker.
const CALLS: RangeInclusive<u64> = 1..=100_000;

/// Calls that wait; none may.
const WAITING_CALLS: RangeInclusive<u64> = 0..=100_000;

/// Threads for sync tools in one worker.
const TOOL_THREADS: RangeInclusive<u64> = 1..=1_000;

/// Worker processes of one namespace.
const PROCESSES: RangeInclusive<u64> = 1..=PROCESSES_MAX as u64;

/// A key, and its value out of a configuration.
type Value<T> = (&'static str, fn(&Config) -> T);

/// Keys by their path in the struct, which is how the file spells them.
macro_rules! value {
    ($head:ident $(. $tail:ident)*) => {
        (
            concat!(stringify!($head) $(, ".", stringify!($tail))*),
            |config: &Config| Plain::plain(config.$head$(.$tail)*),
        )
    };
}

/// All above 0.
const DURATIONS: &[Value<Duration>] = &[
    value!(admission.timeouts.header),
    value!(admission.timeouts.body),
    value!(admission.timeouts.keepalive),
    value!(admission.timeouts.write),
    value!(namespaces.defaults.timeout),
    value!(namespaces.defaults.ask_timeout),
    value!(namespaces.ceilings.timeout),
    value!(sessions.ttl),
    value!(sessions.unused_ttl),
    value!(sessions.keepalive),
    value!(sessions.event_log.age),
    value!(workers.ready_timeout),
    value!(workers.sync_timeout),
    value!(workers.backoff.initial),
    value!(workers.backoff.max),
    value!(workers.crash_loop.window),
    value!(replicas.grace),
];

const NUMBERS: &[(Value<u64>, RangeInclusive<u64>)] = &[
    (value!(admission.limits.body), MESSAGE_BYTES),
    (value!(admission.limits.bodies_total), EVENT_LOG_BYTES),
    (value!(admission.limits.connections), MANY),
    (value!(admission.limits.sessions_per_principal), MANY),
    (
        value!(admission.limits.session_bytes_per_principal),
        SESSION_BYTES,
    ),
    (value!(admission.limits.streams_per_principal), MANY),
    (value!(namespaces.defaults.max_concurrency), CALLS),
    (value!(namespaces.defaults.queue), WAITING_CALLS),
    (value!(namespaces.defaults.max_parked), WAITING_CALLS),
    (value!(namespaces.defaults.max_result), MESSAGE_BYTES),
    (value!(namespaces.defaults.sync_concurrency), TOOL_THREADS),
    (value!(namespaces.defaults.processes), PROCESSES),
    (value!(namespaces.ceilings.max_concurrency), CALLS),
    (value!(namespaces.ceilings.max_result), MESSAGE_BYTES),
    (value!(namespaces.ceilings.sync_concurrency), TOOL_THREADS),
    (value!(namespaces.ceilings.processes), PROCESSES),
    (value!(sessions.max), MANY),
    (value!(sessions.bytes), SESSION_BYTES),
    (value!(sessions.event_log.events), 1..=1_000_000),
    (value!(sessions.event_log.bytes), MESSAGE_BYTES),
    (value!(sessions.event_log.total), EVENT_LOG_BYTES),
    (value!(workers.crash_loop.failures), 1..=1_000),
    (value!(observability.audit.retention_days), 0..=36_500),
];

/// Checks every number and duration.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    for (key, value) in DURATIONS {
        duration(key, value(config))?;
    }
    for ((key, value), range) in NUMBERS {
        number(key, value(config), range)?;
    }
    if config.workers.backoff.initial > config.workers.backoff.max {
        let reason = "is above workers.backoff.max";
        return Err(ConfigError::key("workers.backoff.initial", reason));
    }
    if config.sessions.keepalive < KEEPALIVE_MIN {
        return Err(ConfigError::key("sessions.keepalive", "is below 10ms"));
    }
    if let PollAfter::After(after) = config.sessions.poll_after {
        duration("sessions.poll_after", after)?;
    }
    if config.sessions.event_log.bytes > config.sessions.event_log.total {
        let reason = "is above sessions.event_log.total";
        return Err(ConfigError::key("sessions.event_log.bytes", reason));
    }
    if let Some((index, reason)) = config.namespaces.env_not_allowable() {
        return Err(ConfigError::key(
            format!("namespaces.env_allowed[{index}]"),
            reason,
        ));
    }
    for (name, patch) in &config.namespaces.overrides {
        override_of(&format!("namespaces.overrides.{name}"), patch)?;
    }
    Ok(())
}

fn override_of(at: &str, patch: &LimitsPatch) -> Result<(), ConfigError> {
    if let Some(timeout) = patch.timeout {
        duration(&format!("{at}.timeout"), timeout)?;
    }
    if let Some(timeout) = patch.ask_timeout {
        duration(&format!("{at}.ask_timeout"), timeout)?;
    }
    let numbers = [
        (
            "max_concurrency",
            patch.max_concurrency.map(Plain::plain),
            CALLS,
        ),
        ("queue", patch.queue.map(Plain::plain), WAITING_CALLS),
        (
            "max_parked",
            patch.max_parked.map(Plain::plain),
            WAITING_CALLS,
        ),
        (
            "max_result",
            patch.max_result.map(Plain::plain),
            MESSAGE_BYTES,
        ),
        (
            "sync_concurrency",
            patch.sync_concurrency.map(Plain::plain),
            TOOL_THREADS,
        ),
        ("processes", patch.processes.map(Plain::plain), PROCESSES),
    ];
    for (key, value, range) in numbers {
        if let Some(value) = value {
            number(&format!("{at}.{key}"), value, &range)?;
        }
    }
    for (tool, limits) in &patch.tools {
        let at = format!("{at}.tools.{tool}");
        if let Some(timeout) = limits.timeout {
            duration(&format!("{at}.timeout"), timeout)?;
        }
        if let Some(size) = limits.max_result {
            number(&format!("{at}.max_result"), size.plain(), &MESSAGE_BYTES)?;
        }
    }
    Ok(())
}

fn duration(key: &str, value: Duration) -> Result<(), ConfigError> {
    match value {
        Duration::ZERO => Err(ConfigError::key(key, "must be above 0")),
        value if value > DURATION_MAX => Err(ConfigError::key(key, "is longer than a year")),
        _ => Ok(()),
    }
}

fn number(key: &str, value: u64, range: &RangeInclusive<u64>) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    let reason = format!(
        "{value} is not between {} and {}",
        range.start(),
        range.end()
    );
    Err(ConfigError::key(key, reason))
}

/// A value in the one type its bounds are given in.
trait Plain<T> {
    fn plain(self) -> T;
}

impl Plain<Duration> for Duration {
    fn plain(self) -> Duration {
        self
    }
}

impl Plain<u64> for usize {
    fn plain(self) -> u64 {
        self as u64
    }
}

impl Plain<u64> for u32 {
    fn plain(self) -> u64 {
        self.into()
    }
}

impl Plain<u64> for ByteSize {
    fn plain(self) -> u64 {
        self.as_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_within_bounds() {
        assert_eq!(check(&Config::default()), Ok(()));
    }

    #[test]
    fn a_value_out_of_bounds_names_its_key() {
        for (yaml, key) in [
            (
                "admission: { limits: { body: 1TiB } }",
                "admission.limits.body",
            ),
            (
                "admission: { timeouts: { write: 0s } }",
                "admission.timeouts.write",
            ),
            (
                "namespaces: { defaults: { timeout: 0s } }",
                "namespaces.defaults.timeout",
            ),
            (
                "namespaces: { defaults: { timeout: 100y } }",
                "namespaces.defaults.timeout",
            ),
            (
                "namespaces: { defaults: { max_concurrency: 0 } }",
                "namespaces.defaults.max_concurrency",
            ),
            (
                "namespaces: { ceilings: { max_result: 0 } }",
                "namespaces.ceilings.max_result",
            ),
            (
                "namespaces: { overrides: { dev: { queue: 1000000 } } }",
                "namespaces.overrides.dev.queue",
            ),
            (
                "namespaces: { overrides: { dev: { tools: { x: { timeout: 0s } } } } }",
                "namespaces.overrides.dev.tools.x.timeout",
            ),
            ("sessions: { ttl: 0s }", "sessions.ttl"),
            ("sessions: { max: 0 }", "sessions.max"),
            ("sessions: { keepalive: 1ms }", "sessions.keepalive"),
            ("sessions: { poll_after: 0s }", "sessions.poll_after"),
            (
                "sessions: { event_log: { events: 0 } }",
                "sessions.event_log.events",
            ),
            (
                "sessions: { event_log: { bytes: 2MiB, total: 1MiB } }",
                "sessions.event_log.bytes",
            ),
            (
                "sessions: { event_log: { age: 0s } }",
                "sessions.event_log.age",
            ),
            (
                "admission: { limits: { session_bytes_per_principal: 1000KiB } }",
                "admission.limits.session_bytes_per_principal",
            ),
            ("sessions: { bytes: 1B }", "sessions.bytes"),
            ("sessions: { unused_ttl: 0s }", "sessions.unused_ttl"),
            (
                "admission: { limits: { streams_per_principal: 0 } }",
                "admission.limits.streams_per_principal",
            ),
            (
                "namespaces: { defaults: { ask_timeout: 0s } }",
                "namespaces.defaults.ask_timeout",
            ),
            (
                "namespaces: { overrides: { dev: { max_parked: 1000000 } } }",
                "namespaces.overrides.dev.max_parked",
            ),
            (
                "namespaces: { overrides: { dev: { ask_timeout: 0s } } }",
                "namespaces.overrides.dev.ask_timeout",
            ),
            (
                "namespaces: { defaults: { processes: 0 } }",
                "namespaces.defaults.processes",
            ),
            (
                "namespaces: { ceilings: { processes: 65 } }",
                "namespaces.ceilings.processes",
            ),
            (
                "namespaces: { overrides: { dev: { processes: 65 } } }",
                "namespaces.overrides.dev.processes",
            ),
            (
                "workers: { backoff: { initial: 2m } }",
                "workers.backoff.initial",
            ),
            (
                "workers: { crash_loop: { failures: 0 } }",
                "workers.crash_loop.failures",
            ),
            (
                "observability: { audit: { retention_days: 40000 } }",
                "observability.audit.retention_days",
            ),
        ] {
            let config = serde_yaml::from_str(yaml).expect(yaml);
            let error = check(&config).expect_err(yaml).to_string();
            assert!(error.starts_with(&format!("{key}: ")), "{error}");
        }
    }
}
