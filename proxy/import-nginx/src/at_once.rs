//! `admission.limits.concurrency`, `streams_per_principal` and `connections`: the limits of `limit_conn`.
//!
//! nginx counts each request until it is answered, including long streams. The gateway counts long streams by principal, and
//! separately from other requests.

use crate::report::Report;
use crate::scope::Level;
use crate::tree::Directive;
use crate::values::number;
use crate::view::View;
use crate::yaml_text::Map;
use crate::zone_keys::{Key, zone_name};

/// Adds the limits on concurrent requests to the configuration.
pub(crate) fn write(view: &View<'_>, limits: &mut Map, report: &mut Report) {
    if let Some((most, at)) = strictest(Key::Namespace, view, report) {
        limits.add_with(
            "connections",
            most,
            format!(
                "{}: connections that wait for a request count, too",
                at.place
            ),
        );
        report.plain(at, "counts open connections here, those for /health too: while all of them are busy, a further one is closed without an answer, where nginx answers a request with 503. Raise admission.limits.connections, or limit each client by admission.limits.concurrency, which answers 429");
        if view.sites.sites.iter().any(|it| is_encrypted(&it.level)) {
            report.security(
                at,
                "a connection of HTTP/2 carries many requests, and counts once here",
            );
        }
    }
    let mut concurrency = Map::default();
    let mut streams: Option<(u64, &Directive)> = None;
    for (key, name) in [
        (Key::Address, "per_address"),
        (Key::Principal, "per_principal"),
    ] {
        let Some((most, at)) = strictest(key, view, report) else {
            continue;
        };
        concurrency.add_with(name, most, at.place.to_string());
        report.security(at, match key {
            Key::Address => "long streams are counted apart, and by principal: an address may have as many more of each principal. It is tighter for a token that is used from several machines: streams_per_principal counts the streams of all of them together; raise it to what one token may hold",
            _ => "long streams are counted apart: a principal may have as many more",
        });
        streams = streams
            .filter(|(before, _)| *before <= most)
            .or(Some((most, at)));
    }
    limits.add("concurrency", concurrency);
    if let Some((most, at)) = streams {
        limits.add_with("streams_per_principal", most, at.place.to_string());
    }
}

/// Returns true if an nginx server listens with TLS, so that clients may use HTTP/2.
fn is_encrypted(server: &Level<'_>) -> bool {
    server.is_on("ssl") || server.all("listen").iter().any(|it| it.has("ssl"))
}

/// The smallest `limit_conn` of all proxied locations that counts by this key, with its directive.
fn strictest<'a>(key: Key, view: &View<'a>, report: &mut Report) -> Option<(u64, &'a Directive)> {
    let mut least: Option<(u64, &'a Directive)> = None;
    let mut without = None;
    for proxied_location in &view.sites.proxied_locations {
        if proxied_location.scope.is_on("limit_conn_dry_run") {
            continue;
        }
        let mut limited = false;
        for limit in proxied_location.scope.all("limit_conn") {
            let zones = view.sites.http.all("limit_conn_zone");
            let zone = zones.iter().find(|zone| zone_name(zone) == limit.arg(0));
            let keys = zone.and_then(|zone| Key::all_of(zone.first(), view));
            let most = limit
                .arg(1)
                .and_then(number)
                .filter(|most| (1..=1_000_000).contains(most));
            let (Some(keys), Some(most)) = (keys, most) else {
                report.security(limit, "what this zone counts by is none of principal, address and all connections: see admission.limits");
                continue;
            };
            // If a zone counts by several keys, the gateway counts by the first one alone. That count is never smaller than
            // nginx's count by all keys together.
            if keys.first() != Some(&key) {
                continue;
            }
            limited = true;
            if least.is_some_and(|(before, _)| before != most) {
                report.plain(limit, "is one limit for all: the smallest value is taken");
            }
            least = least
                .filter(|(before, _)| *before <= most)
                .or(Some((most, limit)));
        }
        if !limited {
            without = without.or(Some(proxied_location.at));
        }
    }
    if let (Some((_, at)), Some(without)) = (least, without) {
        report.security(
            at,
            format!(
                "does not count the requests of {} in nginx; here it is one limit for all",
                without.place
            ),
        );
    }
    least
}
