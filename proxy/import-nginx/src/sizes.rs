//! Imports limits and times of nginx as `admission.limits`, `admission.timeouts`, `threads` and `replicas`.

use std::time::Duration;

use tooldock_filters::config::{LimitsConfig, TimeoutsConfig};

use crate::report::Report;
use crate::sites::ProxiedLocation;
use crate::tree::Directive;
use crate::values::{number, size, time};
use crate::view::View;
use crate::yaml_text::Map;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const BODY_MAX: u64 = 1024 * MIB;

/// Adds `admission.limits`: sizes and numbers of requests and headers.
pub(crate) fn write_limits<'a>(view: &View<'a>, limits: &mut Map, report: &mut Report) {
    let defaults = LimitsConfig::default();
    const BODY: &str = "client_max_body_size";
    let of_body =
        |proxied_location: &ProxiedLocation<'_>| proxied_location.scope.last(BODY).is_some();
    let is_said = view.sites.proxied_locations.iter().any(of_body);
    let of_exposure =
        |proxied_location: &ProxiedLocation<'a>| match proxied_location.scope.last(BODY) {
            // Without the directive, nginx's default limit on bodies applies: 1 MiB.
            None => (MIB, proxied_location.at),
            Some(directive) => {
                let bytes = size(directive.first()).filter(|bytes| *bytes > 0);
                (bytes.unwrap_or(u64::MAX), directive)
            }
        };
    let bodies = view.sites.proxied_locations.iter().filter(|_| is_said);
    write_body(bodies.map(of_exposure).collect(), limits, report);
    let head = view.strictest(
        report,
        "admission.limits.header_bytes",
        |proxied_location| {
            let directive = proxied_location.scope.last("large_client_header_buffers")?;
            let bytes = number(directive.first())?.checked_mul(size(directive.arg(1)?)?)?;
            Some((bytes.clamp(KIB, 1023 * KIB), directive))
        },
    );
    if let Some((bytes, at)) = head
        && bytes != defaults.header_bytes.as_u64()
    {
        limits.add_with("header_bytes", spelled(bytes), at.place.to_string());
    }
    write_connections(view, limits, report);
}

/// Adds the limit on request bodies: the largest of all locations, since a smaller one would refuse requests that nginx
/// accepts. `bodies` contains the limit of each location in bytes, with its directive.
fn write_body(bodies: Vec<(u64, &Directive)>, limits: &mut Map, report: &mut Report) {
    let defaults = LimitsConfig::default();
    let default = defaults.body.as_u64();
    for (_, at) in bodies.iter().filter(|(bytes, _)| *bytes > BODY_MAX) {
        report.plain(
            at,
            "bodies are held in memory: admission.limits.body is at most 1 GiB, and stays 4 MiB unless another location names more",
        );
    }
    let is_unbounded = bodies.iter().any(|(bytes, _)| *bytes > BODY_MAX);
    let bounded = bodies.iter().filter(|(bytes, _)| *bytes <= BODY_MAX);
    let largest = bounded.max_by_key(|(bytes, at)| (*bytes, std::cmp::Reverse(&at.place)));
    let written = largest.filter(|(bytes, _)| !is_unbounded || *bytes > default);
    let (taken, of) = match written {
        Some((bytes, at)) => (*bytes, format!("{} of {}", spelled(*bytes), at.place)),
        None => (default, format!("its default, {},", spelled(default))),
    };
    for (bytes, at) in bodies.iter().filter(|(bytes, _)| *bytes < taken) {
        let before = match at.is("client_max_body_size") {
            true => spelled(*bytes),
            false => "1MiB, the default of nginx,".to_owned(),
        };
        report.plain(at, format!("bodies may be larger than before: admission.limits.body is one for all, and {of} is taken in place of {before} here"));
    }
    if let Some((bytes, at)) = written.filter(|(bytes, _)| *bytes != default) {
        limits.add_with("body", spelled(*bytes), at.place.to_string());
        if *bytes > defaults.bodies_total.as_u64() {
            limits.add("bodies_total", spelled(*bytes));
        }
    }
}

/// Adds the limit on connections: `worker_connections` times the number of processes, unless `limit_conn` has set it.
fn write_connections(view: &View<'_>, limits: &mut Map, report: &mut Report) {
    if limits.has("connections") {
        return;
    }
    let events = view
        .sites
        .main
        .last("events")
        .map(Directive::block)
        .unwrap_or_default();
    let Some(at) = events.iter().find(|it| it.is("worker_connections")) else {
        return;
    };
    let processes = view
        .sites
        .main
        .last("worker_processes")
        .map_or("1", |it| it.first());
    let Some(connections) = number(at.first()) else {
        return;
    };
    if processes == "auto" {
        report.plain(at, "is for each process in nginx, and for all in admission.limits.connections: left at its default");
        return;
    }
    let all = connections.saturating_mul(number(processes).unwrap_or(1));
    if (1..=100_000_000).contains(&all) && all != LimitsConfig::default().connections as u64 {
        limits.add_with("connections", all, at.place.to_string());
    }
}

/// Adds `admission.timeouts`: time limits of connections.
pub(crate) fn write_timeouts(view: &View<'_>, timeouts: &mut Map, report: &mut Report) {
    let defaults = TimeoutsConfig::default();
    for (name, key, default) in [
        ("client_header_timeout", "header", defaults.header),
        ("client_body_timeout", "body", defaults.body),
        ("keepalive_timeout", "keepalive", defaults.keepalive),
        ("send_timeout", "write", defaults.write),
    ] {
        let what = format!("admission.timeouts.{key}");
        let found = view.strictest(report, &what, |proxied_location| {
            let directive = proxied_location.scope.last(name)?;
            Some((time(directive.first())?, directive))
        });
        let Some((value, at)) = found else { continue };
        if value.is_zero() {
            report.plain(at, format!("0 is no time: {what} is left at its default"));
        } else if value != default {
            timeouts.add_with(key, duration(value), at.place.to_string());
        }
    }
}

/// Adds the number of threads, and the time that requests in flight have to finish when the gateway stops.
pub(crate) fn write_process(view: &View<'_>, top: &mut Map, report: &mut Report) {
    let main = &view.sites.main;
    if let Some(at) = main.last("worker_processes")
        && let Some(threads) = number(at.first()).filter(|threads| *threads > 0)
    {
        if threads > 256 {
            report.plain(at, "threads are at most 256: left at its default");
        } else {
            top.add_with("threads", threads, at.place.to_string());
        }
    }
    if let Some(at) = main.last("worker_shutdown_timeout")
        && let Some(value) =
            time(at.first()).filter(|value| !value.is_zero() && *value != Duration::from_secs(30))
    {
        let grace_max = view.gateway.grace_max;
        if value > grace_max {
            let most = duration(grace_max);
            report.plain(
                at,
                format!("replicas.grace is at most {most}, which is written"),
            );
        }
        let mut replicas = Map::default();
        let grace = duration(value.min(grace_max));
        replicas.add_with("grace", grace, at.place.to_string());
        top.add("replicas", replicas);
    }
}

/// Formats a duration for the gateway's configuration. Durations above 365 days become 365 days.
pub(crate) fn duration(value: Duration) -> String {
    let milliseconds = value.min(Duration::from_secs(365 * 24 * 3600)).as_millis();
    let units = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let whole = units
        .into_iter()
        .find(|(unit, _)| milliseconds.is_multiple_of(*unit));
    let (unit, name) = whole.unwrap_or((1, "ms"));
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
