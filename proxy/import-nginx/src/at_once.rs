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

/// Report lines about long streams, which the gateway counts by principal.
const BY_ADDRESS: &str = "long streams are counted apart, and by principal: an address may have as many more of each principal. It is tighter for a token that is used from several machines: streams_per_principal counts the streams of all of them together; raise it to what one token may hold";
const BY_PRINCIPAL: &str = "long streams are counted apart: a principal may have as many more";

/// Adds the limits on concurrent requests to the configuration.
pub(crate) fn write(view: &View<'_>, limits: &mut Map, report: &mut Report) {
    if let Some((most, at)) = strictest(Key::Namespace, view, report) {
        let place = &at.place;
        let comment = format!("{place}: connections that wait for a request count, too");
        limits.add_with("connections", most, comment);
        report.plain(at, "counts open connections here, those for /health too: while all of them are busy, a further one is closed without an answer, where nginx answers a request with 503. Raise admission.limits.connections, or limit each client by admission.limits.concurrency, which answers 429");
        if view.sites.sites.iter().any(|it| is_encrypted(&it.level)) {
            let why = "a connection of HTTP/2 carries many requests, and counts once here";
            report.security(at, why);
        }
    }
    let mut concurrency = Map::default();
    let mut streams: Option<(u64, &Directive)> = None;
    for (key, name, why) in [
        (Key::Address, "per_address", BY_ADDRESS),
        (Key::Principal, "per_principal", BY_PRINCIPAL),
    ] {
        let Some((most, at)) = strictest(key, view, report) else {
            continue;
        };
        concurrency.add_at(name, most, at);
        report.security(at, why);
        streams = streams
            .filter(|(before, _)| *before <= most)
            .or(Some((most, at)));
    }
    limits.add("concurrency", concurrency);
    if let Some((most, at)) = streams {
        limits.add_at("streams_per_principal", most, at);
    }
}

/// Returns true if an nginx server listens with TLS, so that clients may use HTTP/2.
fn is_encrypted(server: &Level<'_>) -> bool {
    server.is_on("ssl") || server.all("listen").iter().any(|it| it.has("ssl"))
}

/// The smallest `limit_conn` of all proxied locations that counts by this key, with its directive. Reports those that count by
/// no key of the gateway, and a location without a limit.
fn strictest<'a>(key: Key, view: &View<'a>, report: &mut Report) -> Option<(u64, &'a Directive)> {
    let zones = view.sites.http.all("limit_conn_zone");
    let mut found = Vec::new();
    let mut without = None;
    for (location, _) in view.locations() {
        let before = found.len();
        for at in location.scope.all("limit_conn") {
            let zone = zones.iter().find(|zone| zone_name(zone) == at.arg(0));
            let counted = zone.and_then(|zone| Key::of(zone, &view.variables));
            let most = at.arg(1).and_then(number);
            match (counted, most.filter(|most| (1..=1_000_000).contains(most))) {
                (Some(counted), Some(most)) if counted == key => found.push((most, *at)),
                (Some(_), Some(_)) => {}
                _ => report.security(at, "what this zone counts by is none of principal, address and all connections: see admission.limits"),
            }
        }
        if found.len() == before {
            without = without.or(Some(location.at));
        }
    }
    let least = found.iter().min_by_key(|(most, _)| *most).copied()?;
    for (_, at) in found.iter().filter(|(most, _)| *most != least.0) {
        report.plain(at, "is one limit for all: the smallest value is taken");
    }
    if let Some(without) = without {
        let place = &without.place;
        let why = format!(
            "does not count the requests of {place} in nginx; here it is one limit for all"
        );
        report.security(least.1, why);
    }
    Some(least)
}
