//! Imports limits and times of nginx as `admission.limits`, `admission.timeouts`, `threads` and `replicas`.

use std::cmp::Reverse;
use std::time::Duration;

use tooldock_filters::config::{LimitsConfig, TimeoutsConfig};

use crate::report::Report;
use crate::tree::Directive;
use crate::values::{number, size, time};
use crate::view::View;
use crate::yaml_text::Map;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const BODY_MAX: u64 = 1024 * MIB;

/// Adds `admission.limits`: sizes and numbers of requests and headers.
pub(crate) fn write_limits(view: &View<'_>, limits: &mut Map, report: &mut Report) {
    write_body(view, limits, report);
    let head = view.strictest(report, "admission.limits.header_bytes", |location| {
        let at = location.scope.last("large_client_header_buffers")?;
        let bytes = number(at.first())?.checked_mul(size(at.arg(1)?)?)?;
        Some((bytes.clamp(KIB, 1023 * KIB), at))
    });
    let default = LimitsConfig::default().header_bytes.as_u64();
    if let Some((bytes, at)) = head.filter(|(bytes, _)| *bytes != default) {
        limits.add_at("header_bytes", spelled(bytes), at);
    }
    if !limits.has("connections") {
        write_connections(view, limits, report);
    }
}

/// Adds the limit on request bodies: the largest of all locations, since a smaller one would refuse requests that nginx
/// accepts.
fn write_body(view: &View<'_>, limits: &mut Map, report: &mut Report) {
    const BODY: &str = "client_max_body_size";
    let locations = || view.sites.locations.iter();
    if locations().all(|it| it.scope.last(BODY).is_none()) {
        return;
    }
    // Without the directive, nginx's default limit on bodies applies: 1 MiB. Without a limit, bodies have the size `u64::MAX`.
    let bodies = locations().map(|it| match it.scope.last(BODY) {
        None => (MIB, it.at),
        Some(at) => (
            size(at.first()).filter(|it| *it > 0).unwrap_or(u64::MAX),
            at,
        ),
    });
    let (bounded, unbounded): (Vec<_>, Vec<_>) = bodies.partition(|(bytes, _)| *bytes <= BODY_MAX);
    for (_, at) in &unbounded {
        report.plain(at, "bodies are held in memory: admission.limits.body is at most 1 GiB, and stays 4 MiB unless another location names more");
    }
    let defaults = LimitsConfig::default();
    let default = defaults.body.as_u64();
    let largest = bounded
        .iter()
        .max_by_key(|(bytes, at)| (*bytes, Reverse(&at.place)));
    let written = largest.filter(|(bytes, _)| unbounded.is_empty() || *bytes > default);
    let (taken, of) = match written {
        Some((bytes, at)) => (*bytes, format!("{} of {}", spelled(*bytes), at.place)),
        None => (default, format!("its default, {},", spelled(default))),
    };
    for (bytes, at) in bounded.iter().filter(|(bytes, _)| *bytes < taken) {
        let before = match at.is(BODY) {
            true => spelled(*bytes),
            false => "1MiB, the default of nginx,".to_owned(),
        };
        report.plain(at, format!("bodies may be larger than before: admission.limits.body is one for all, and {of} is taken in place of {before} here"));
    }
    if let Some((bytes, at)) = written.filter(|(bytes, _)| *bytes != default) {
        limits.add_at("body", spelled(*bytes), at);
        if *bytes > defaults.bodies_total.as_u64() {
            limits.add("bodies_total", spelled(*bytes));
        }
    }
}

/// Adds the limit on connections: `worker_connections` times the number of processes.
fn write_connections(view: &View<'_>, limits: &mut Map, report: &mut Report) {
    let main = &view.sites.main;
    let events = main.last("events").map_or(&[][..], Directive::block);
    let Some(at) = events.iter().find(|it| it.is("worker_connections")) else {
        return;
    };
    let processes = main.last("worker_processes").map_or("1", |it| it.first());
    if processes == "auto" {
        report.plain(at, "is for each process in nginx, and for all in admission.limits.connections: left at its default");
        return;
    }
    let all = number(at.first()).map(|it| it.saturating_mul(number(processes).unwrap_or(1)));
    let default = LimitsConfig::default().connections as u64;
    if let Some(all) = all.filter(|it| (1..=100_000_000).contains(it) && *it != default) {
        limits.add_at("connections", all, at);
    }
}

/// Adds `admission.timeouts`: time limits of connections.
pub(crate) fn write_timeouts(view: &View<'_>, admission: &mut Map, report: &mut Report) {
    let defaults = TimeoutsConfig::default();
    let mut timeouts = Map::default();
    for (name, key, default) in [
        ("client_header_timeout", "header", defaults.header),
        ("client_body_timeout", "body", defaults.body),
        ("keepalive_timeout", "keepalive", defaults.keepalive),
        ("send_timeout", "write", defaults.write),
    ] {
        let what = format!("admission.timeouts.{key}");
        let found = view.strictest(report, &what, |location| {
            let directive = location.scope.last(name)?;
            Some((time(directive.first())?, directive))
        });
        let Some((value, at)) = found else { continue };
        if value.is_zero() {
            report.plain(at, format!("0 is no time: {what} is left at its default"));
        } else if value != default {
            timeouts.add_at(key, duration(value), at);
        }
    }
    admission.add("timeouts", timeouts);
}

/// Adds the number of threads, and the time that requests in flight have to finish when the gateway stops.
pub(crate) fn write_process(view: &View<'_>, top: &mut Map, report: &mut Report) {
    let main = &view.sites.main;
    let number_of = |at: &Directive| number(at.first()).filter(|it| *it > 0);
    let threads = main.last("worker_processes");
    match threads.and_then(|at| Some((number_of(at)?, at))) {
        Some((257.., at)) => report.plain(at, "threads are at most 256: left at its default"),
        Some((threads, at)) => top.add_at("threads", threads, at),
        None => {}
    }
    let grace = main.last("worker_shutdown_timeout");
    let grace = grace.and_then(|at| Some((time(at.first())?, at)));
    let written = |it: &Duration| !it.is_zero() && *it != Duration::from_secs(30);
    if let Some((grace, at)) = grace.filter(|(grace, _)| written(grace)) {
        let most = view.gateway.grace_max;
        if grace > most {
            let most = duration(most);
            let why = format!("replicas.grace is at most {most}, which is written");
            report.plain(at, why);
        }
        let mut replicas = Map::default();
        replicas.add_at("grace", duration(grace.min(most)), at);
        top.add("replicas", replicas);
    }
}

/// Formats a duration for the gateway's configuration. Durations above 365 days become 365 days.
pub(crate) fn duration(value: Duration) -> String {
    let milliseconds = value.min(Duration::from_secs(365 * 24 * 3600)).as_millis();
    let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let mut whole = units
        .into_iter()
        .filter(|(unit, _)| milliseconds.is_multiple_of(*unit));
    let (unit, name) = whole.next().unwrap_or((1, "ms"));
    format!("{}{name}", milliseconds / unit)
}

/// Formats a number of bytes for the gateway's configuration.
fn spelled(bytes: u64) -> String {
    match bytes {
        bytes if bytes % MIB == 0 => format!("{}MiB", bytes / MIB),
        bytes if bytes % KIB == 0 => format!("{}KiB", bytes / KIB),
        bytes => format!("{bytes}B"),
    }
}
