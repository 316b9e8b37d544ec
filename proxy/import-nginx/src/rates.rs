//! Imports the limits of nginx's `limit_req` as `admission.flood` and `admission.rate_limits`.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use tooldock_base::names::NamespaceName;

use crate::report::Report;
use crate::tree::Directive;
use crate::values::{Rate, number, rate};
use crate::view::View;
use crate::yaml_text::{Item, Map, Node};
use crate::zone_keys::{Key, zone_name};

/// Maximum rate and burst that the importer writes; higher values of nginx are beyond what one machine can serve.
const RATE_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999_999);
const BURST_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(9_999_999);

/// A `limit_req_zone` that some `limit_req` uses, with the smallest burst of all uses.
struct Limit<'a> {
    zone: &'a Directive,
    at: &'a Directive,
    keys: BTreeSet<Key>,
    rate: NonZeroU32,
    burst: NonZeroU32,
    reach: Reach,
}

/// The requests to which a rate limit applies: all, or those of one namespace.
enum Reach {
    Everywhere,
    In(NamespaceName),
}

/// Adds `admission.flood` and `admission.rate_limits`.
pub(crate) fn write(view: &View<'_>, admission: &mut Map, report: &mut Report) {
    let mut flood = Map::default();
    let mut flood_at = String::new();
    let mut items = Vec::new();
    let zones: BTreeSet<_> = view
        .sites
        .http
        .all("limit_req_zone")
        .iter()
        .map(|it| zone_name(it))
        .collect();
    for limit in view
        .sites
        .proxied_locations
        .iter()
        .flat_map(|it| it.scope.all("limit_req"))
    {
        if !zones.contains(&limit.option("zone")) {
            report.security(
                limit,
                "its limit_req_zone is not in this file: import the file that has both",
            );
        }
    }
    for zone in view.sites.http.all("limit_req_zone") {
        for limit in limits_of(zone, view, report) {
            let comment = format!("{}, {}", limit.zone.place, limit.at.place);
            let by_address = limit.keys == [Key::Address].into();
            let mut entry = Map::default();
            if by_address && flood.is_empty() && matches!(limit.reach, Reach::Everywhere) {
                flood.add("rate", limit.rate.get());
                flood.add("burst", limit.burst.get());
                flood_at = comment;
                continue;
            }
            let keys: Vec<_> = limit.keys.iter().map(|key| key.name()).collect();
            match keys[..] {
                [one] => entry.add("key", one),
                _ => entry.add("key", Node::list(keys)),
            }
            entry.add("rate", limit.rate.get());
            entry.add("burst", limit.burst.get());
            if let Reach::In(name) = &limit.reach {
                entry.add("namespace", name.as_str());
            }
            items.push(Item::new(comment, entry));
        }
    }
    admission.add_with("flood", flood, flood_at);
    if !items.is_empty() {
        admission.add("rate_limits", Node::List(items));
    }
}

fn limits_of<'a>(zone: &'a Directive, view: &View<'a>, report: &mut Report) -> Vec<Limit<'a>> {
    let mut uses: Vec<(usize, &'a Directive)> = Vec::new();
    for (index, proxied_location) in view.sites.proxied_locations.iter().enumerate() {
        let dry = proxied_location.scope.is_on("limit_req_dry_run");
        for limit in proxied_location.scope.all("limit_req") {
            if limit.option("zone") != zone_name(zone) {
                continue;
            }
            if dry {
                report.plain(
                    limit,
                    "refuses nothing in nginx (limit_req_dry_run), and is left out",
                );
                continue;
            }
            uses.push((index, limit));
        }
    }
    let Some((_, first)) = uses.first().copied() else {
        return Vec::new();
    };
    let Some(keys) = Key::all_of(zone.first(), view) else {
        report.security(zone, "what this zone counts by is none of principal, address and namespace: choose one of them in admission.rate_limits");
        return Vec::new();
    };
    if Key::exempts(zone.first(), view) {
        report.differs(zone, "nginx does not count requests whose value is empty; here they are counted, too, and get 429 beyond the rate: raise it for all, or take the limit out");
    }
    let second = match zone.option("rate").and_then(rate) {
        Some(Rate::PerSecond(second)) => second,
        Some(Rate::PerMinute(minute)) => match NonZeroU32::new(minute.get() / 60) {
            Some(second) => {
                if minute.get() % 60 != 0 {
                    report.plain(zone, "rates are per second, rounded down");
                }
                second
            }
            None => {
                report.security(
                    zone,
                    "1 per second is the smallest rate there is, and more than this one",
                );
                NonZeroU32::MIN
            }
        },
        None => {
            report.security(zone, "the rate is none as 10r/s");
            return Vec::new();
        }
    };
    let mut burst: Option<NonZeroU32> = None;
    for (_, limit) in &uses {
        let said = limit
            .option("burst")
            .and_then(number)
            .and_then(|it| u32::try_from(it).ok());
        let this = said.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        if burst.is_some_and(|before| before != this) {
            report.plain(
                limit,
                format!(
                    "the zone has one burst: the smaller one of {} is taken",
                    first.place
                ),
            );
        }
        burst = Some(burst.map_or(this, |before| before.min(this)));
        if this > NonZeroU32::MIN && !limit.has("nodelay") {
            report.plain(
                limit,
                "requests within the burst are served at once, as with nodelay: nothing is delayed",
            );
        }
    }
    let burst = burst.unwrap_or(NonZeroU32::MIN);
    let limit = |reach| Limit {
        zone,
        at: first,
        keys: keys.clone(),
        rate: second.min(RATE_MAX),
        burst: burst.min(BURST_MAX),
        reach,
    };
    let limited: BTreeSet<usize> = uses.iter().map(|(index, _)| *index).collect();
    let names: BTreeSet<_> = limited
        .iter()
        .filter_map(|index| view.names[*index].clone())
        .collect();
    let others = view
        .sites
        .proxied_locations
        .iter()
        .enumerate()
        .find(|(index, _)| {
            let name = &view.names[*index];
            !limited.contains(index) && name.as_ref().is_none_or(|name| !names.contains(name))
        });
    match (names.len(), others) {
        (_, None) => {
            if keys.contains(&Key::Namespace) && view.namespaces().len() > 1 {
                report.security(zone, "counts all requests together in nginx; here each namespace has a budget of its own");
            }
            vec![limit(Reach::Everywhere)]
        }
        (1, Some(_)) => names
            .into_iter()
            .map(|name| limit(Reach::In(name)))
            .collect(),
        (_, Some((_, other))) if keys.contains(&Key::Namespace) => {
            report.security(zone, format!("counts the requests of several locations together in nginx, and not those of {}; here each namespace has a budget of its own", other.at.place));
            names
                .into_iter()
                .map(|name| limit(Reach::In(name)))
                .collect()
        }
        (_, Some((_, other))) => {
            report.security(first, format!("is one limit for several namespaces, and none for {}; here it counts the requests to all", other.at.place));
            vec![limit(Reach::Everywhere)]
        }
    }
}
