//! Imports the limits of nginx's `limit_req` as `admission.flood` and `admission.rate_limits`.

use std::collections::BTreeSet;

use tooldock_base::names::NamespaceName;

use crate::report::Report;
use crate::tree::Directive;
use crate::values::{Rate, number, rate};
use crate::view::View;
use crate::yaml_text::{Item, Map};
use crate::zone_keys::{Key, zone_name};

/// Maximum rate and burst that the importer writes; higher values of nginx are beyond what one machine can serve.
const RATE_MAX: u32 = 1_000_000;
const BURST_MAX: u64 = 10_000_000;

/// A `limit_req_zone` that some `limit_req` uses, with the smallest burst of all uses.
struct Limit<'a> {
    /// The first `limit_req` that uses the zone.
    at: &'a Directive,
    key: Key,
    rate: u32,
    burst: u64,
    /// The namespaces whose requests the limit counts, each by itself; empty if it counts all requests.
    namespaces: BTreeSet<NamespaceName>,
}

/// Adds `admission.flood` and `admission.rate_limits`.
pub(crate) fn write(view: &View<'_>, admission: &mut Map, report: &mut Report) {
    let mut flood = Map::default();
    let mut flood_at = String::new();
    let mut items = Vec::new();
    let zones = view.sites.http.all("limit_req_zone");
    for (location, _) in view.locations() {
        for limit in location.scope.all("limit_req") {
            if !zones.iter().any(|it| zone_name(it) == limit.option("zone")) {
                let why = "its limit_req_zone is not in this file: import the file that has both";
                report.security(limit, why);
            }
        }
    }
    for zone in zones {
        let Some(limit) = limit(zone, view, report) else {
            continue;
        };
        let comment = format!("{}, {}", zone.place, limit.at.place);
        let numbers = [("rate", limit.rate.into()), ("burst", limit.burst.into())];
        if limit.key == Key::Address && flood.is_empty() && limit.namespaces.is_empty() {
            flood = Map::from(numbers);
            flood_at = comment;
            continue;
        }
        let [rate, burst] = numbers;
        let entry = Map::from([("key", limit.key.name().into()), rate, burst]);
        if limit.namespaces.is_empty() {
            items.push(Item::new(comment, entry));
            continue;
        }
        for name in limit.namespaces {
            let mut entry = entry.clone();
            entry.add("namespace", name.as_str());
            items.push(Item::new(comment.as_str(), entry));
        }
    }
    admission.add_with("flood", flood, flood_at);
    admission.add_list("rate_limits", items);
}

fn limit<'a>(zone: &'a Directive, view: &View<'a>, report: &mut Report) -> Option<Limit<'a>> {
    let mut uses: Vec<(u64, &Directive)> = Vec::new();
    let mut names = BTreeSet::new();
    let mut others = Vec::new();
    for ((location, _), name) in view.locations().zip(&view.names) {
        let before = uses.len();
        for at in location.scope.all("limit_req") {
            if at.option("zone") != zone_name(zone) {
                continue;
            }
            let burst = at.option("burst").and_then(number).unwrap_or(1);
            uses.push((burst.clamp(1, BURST_MAX), at));
            if burst > 1 && !at.has("nodelay") {
                report.plain(at, "requests within the burst are served at once, as with nodelay: nothing is delayed");
            }
        }
        match uses.len() > before {
            true => names.extend(name.clone()),
            false => others.push((location.at, name)),
        }
    }
    let (burst, least) = *uses.iter().min_by_key(|(burst, _)| *burst)?;
    for (_, at) in uses.iter().filter(|(other, _)| *other > burst) {
        report.plain(
            at,
            format!(
                "the zone has one burst: the smaller one of {} is taken",
                least.place
            ),
        );
    }
    let at = uses[0].1;
    let Some(key) = Key::of(zone, &view.variables) else {
        report.security(zone, "what this zone counts by is none of principal, address and namespace: choose one of them in admission.rate_limits");
        return None;
    };
    let Some(rate) = per_second(zone, report) else {
        report.security(zone, "the rate is none as 10r/s");
        return None;
    };
    others.retain(|(_, name)| name.as_ref().is_none_or(|name| !names.contains(name)));
    let namespaces = match others.first() {
        None => {
            if key == Key::Namespace && view.namespaces().len() > 1 {
                report.security(zone, "counts all requests together in nginx; here each namespace has a budget of its own");
            }
            BTreeSet::new()
        }
        Some(_) if names.len() == 1 => names,
        Some((other, _)) if key == Key::Namespace => {
            report.security(zone, format!("counts the requests of several locations together in nginx, and not those of {}; here each namespace has a budget of its own", other.place));
            names
        }
        Some((other, _)) => {
            report.security(at, format!("is one limit for several namespaces, and none for {}; here it counts the requests to all", other.place));
            BTreeSet::new()
        }
    };
    Some(Limit {
        at,
        key,
        rate,
        burst,
        namespaces,
    })
}

/// Returns the rate of a zone in requests per second; `None` if it has none.
fn per_second(zone: &Directive, report: &mut Report) -> Option<u32> {
    let rate = match zone.option("rate").and_then(rate)? {
        Rate::PerSecond(second) => second.get(),
        Rate::PerMinute(minute) if minute.get() < 60 => {
            let why = "1 per second is the smallest rate there is, and more than this one";
            report.security(zone, why);
            1
        }
        Rate::PerMinute(minute) => {
            if minute.get() % 60 != 0 {
                report.plain(zone, "rates are per second, rounded down");
            }
            minute.get() / 60
        }
    };
    Some(rate.min(RATE_MAX))
}
