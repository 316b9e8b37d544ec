//! Checks that numbers and durations of the configuration are within their bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytesize::ByteSize;
use tooldock_base::bounds::{BoundedValue, TIMES, within};
use tooldock_base::config::{LimitsPatch, OutOfBounds};
use tooldock_sessions::session::config::{BYTES_MIN, PollAfter};

use super::replicas::GRACE_MAX;
use super::{Config, ConfigError};

/// Allowed size of a request's head, in bytes: from less than any real client sends to the limit of the HTTP parser.
const HEADER_BYTES: RangeInclusive<ByteSize> = ByteSize::kib(1)..=ByteSize::kib(1023);

/// Allowed number of header fields of a request, up to the limit of the HTTP parser.
const HEADER_FIELDS: RangeInclusive<usize> = 1..=256;

/// Allowed size of a body or an event, in bytes; each is in memory as a whole.
const MESSAGE_BYTES: RangeInclusive<ByteSize> = ByteSize::b(1)..=ByteSize::gib(1);

/// Allowed size of all bodies in memory, or of the events of all streams, in bytes.
const TOTAL_BYTES: RangeInclusive<ByteSize> = ByteSize::b(1)..=ByteSize::tib(1);

/// Allowed size of all sessions in memory, in bytes.
const SESSION_BYTES: RangeInclusive<ByteSize> = ByteSize::b(BYTES_MIN as u64)..=ByteSize::tib(1);

/// Allowed number of sessions, connections and other objects; more would not fit in memory.
const MANY: RangeInclusive<usize> = 1..=100_000_000;

/// Checks that each value of the configuration is within its bounds. The path of the field is the key in an error message.
macro_rules! check {
    ($config:ident { $($head:ident $(. $tail:ident)* in $bounds:expr;)* }) => {$(
        within($config.$head$(.$tail)*, &$bounds).map_err(|reason| {
            ConfigError::key(concat!(stringify!($head) $(, ".", stringify!($tail))*), reason)
        })?;
    )*};
}

/// Checks every number and duration of the configuration.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    check!(config {
        admission.limits.header_bytes in HEADER_BYTES;
        admission.limits.header_fields in HEADER_FIELDS;
        admission.limits.body in MESSAGE_BYTES;
        admission.limits.bodies_total in TOTAL_BYTES;
        admission.limits.answers_total in TOTAL_BYTES;
        admission.limits.connections in MANY;
        admission.limits.sessions_per_principal in MANY;
        admission.limits.session_bytes_per_principal in SESSION_BYTES;
        admission.limits.streams_per_principal in MANY;
        admission.timeouts.header in TIMES;
        admission.timeouts.body in TIMES;
        admission.timeouts.keepalive in TIMES;
        admission.timeouts.write in TIMES;
        sessions.ttl in TIMES;
        sessions.unused_ttl in TIMES;
        // If a client never sends `notifications/initialized`, each of its requests waits for `initialized_wait` before it is
        // refused.
        sessions.initialized_wait in Duration::ZERO..=Duration::from_secs(60);
        // Streams are checked at intervals of a sixteenth of `keepalive`; a shorter time would only keep the CPU busy.
        sessions.keepalive in Duration::from_millis(10)..=*TIMES.end();
        sessions.max in MANY;
        sessions.bytes in SESSION_BYTES;
        sessions.event_log.events in 1..=1_000_000;
        sessions.event_log.bytes in MESSAGE_BYTES;
        sessions.event_log.total in TOTAL_BYTES;
        sessions.event_log.age in TIMES;
        workers.ready_timeout in TIMES;
        workers.sync_timeout in TIMES;
        workers.backoff.initial in TIMES;
        workers.backoff.max in TIMES;
        workers.crash_loop.failures in 1..=1_000;
        workers.crash_loop.window in TIMES;
        // While files keep changing, a reload is delayed for at most ten times `debounce`.
        watcher.debounce in Duration::from_millis(10)..=Duration::from_secs(60);
        builder.timeout in TIMES;
        builder.max_size in ByteSize::mib(1)..=ByteSize::gib(16);
        replicas.grace in *TIMES.start()..=GRACE_MAX;
        observability.audit.retention_days in 0..=36_500;
    });
    if let PollAfter::After(after) = config.sessions.poll_after {
        within(after, &TIMES).map_err(|it| ConfigError::key("sessions.poll_after", it))?;
    }
    if let Some(idle) = config.workers.idle_stop {
        within(idle, &TIMES).map_err(|it| ConfigError::key("workers.idle_stop", it))?;
    }
    if let Some(every) = config.watcher.poll_every() {
        let bounds = Duration::from_millis(100)..=Duration::from_secs(3600);
        within(every, &bounds).map_err(|it| ConfigError::key("watcher.poll", it))?;
    }
    let (limits, log) = (&config.admission.limits, &config.sessions.event_log);
    let backoff = &config.workers.backoff;
    let most = ("workers.backoff.max", backoff.max);
    at_most("workers.backoff.initial", backoff.initial, most)?;
    let most = ("sessions.event_log.total", log.total);
    at_most("sessions.event_log.bytes", log.bytes, most)?;
    let most = ("admission.limits.bodies_total", limits.bodies_total);
    at_most("admission.limits.body", limits.body, most)?;
    let namespaces = &config.namespaces;
    if let Some((index, reason)) = namespaces.env_not_allowable() {
        return Err(ConfigError::key(
            format!("namespaces.env_allowed[{index}]"),
            reason,
        ));
    }
    limits_of("namespaces.defaults", &namespaces.defaults.patch())?;
    limits_of("namespaces.ceilings", &namespaces.ceilings.patch())?;
    for (name, patch) in &namespaces.overrides {
        let refused = refused_at(format!("namespaces.overrides.{name}"));
        patch.check_numbers().map_err(refused)?;
    }
    Ok(())
}

fn at_most<T: BoundedValue>(
    key: &str,
    value: T,
    (other, most): (&str, T),
) -> Result<(), ConfigError> {
    if value <= most {
        return Ok(());
    }
    let (value, most) = (value.spelled(), most.spelled());
    let reason = format!("{value} is above {other}, which is {most}");
    Err(ConfigError::key(key, reason))
}

fn limits_of(at: &str, limits: &LimitsPatch) -> Result<(), ConfigError> {
    limits.check().map_err(refused_at(at.to_owned()))
}

fn refused_at(at: String) -> impl Fn(OutOfBounds) -> ConfigError {
    move |it| ConfigError::key(format!("{at}.{}", it.key), it.message)
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    #[test]
    fn the_defaults_are_within_bounds() {
        assert_eq!(check(&Config::default()), Ok(()));
    }

    #[test]
    fn a_value_out_of_bounds_names_its_key() {
        for (yaml, key) in [
            (
                "admission: { limits: { header_bytes: 10 } }",
                "admission.limits.header_bytes",
            ),
            (
                "admission: { limits: { header_fields: 257 } }",
                "admission.limits.header_fields",
            ),
            (
                "admission: { limits: { connections: 0 } }",
                "admission.limits.connections",
            ),
            (
                "admission: { limits: { bodies_total: 1MiB } }",
                "admission.limits.body",
            ),
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
                "sessions: { initialized_wait: 2m }",
                "sessions.initialized_wait",
            ),
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
            ("workers: { idle_stop: 0s }", "workers.idle_stop"),
            ("replicas: { grace: 100h }", "replicas.grace"),
            (
                "observability: { audit: { retention_days: 40000 } }",
                "observability.audit.retention_days",
            ),
        ] {
            let config = yaml::from_str(yaml).expect(yaml);
            let error = check(&config).expect_err(yaml).to_string();
            assert!(error.starts_with(&format!("{key}: ")), "{error}");
        }
    }
}
