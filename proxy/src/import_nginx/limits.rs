//! `admission.flood`, `admission.rate_limits` and `admission.limits.concurrency`: what `limit_req` and `limit_conn` count.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use tooldock_workers::names::NamespaceName;

use super::report::Report;
use super::tree::Directive;
use super::values::{Piece, Rate, number, only_variable, pieces, rate};
use super::variables::Variables;
use super::view::View;
use super::yaml_text::{Item, Map, Node};

/// Above these, a limit is none that a machine could reach, and the gateway takes no higher ones.
const RATE_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(999_999);
const BURST_MAX: NonZeroU32 = NonZeroU32::MIN.saturating_add(9_999_999);

/// What a zone counts by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Address,
    Principal,
    /// One count for a server or a path, which is a namespace here.
    Namespace,
}

impl Key {
    fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Principal => "principal",
            Self::Namespace => "namespace",
        }
    }

    fn of_variable(name: &str) -> Option<Self> {
        match name {
            "binary_remote_addr" | "remote_addr" | "realip_remote_addr" | "proxy_protocol_addr" => {
                Some(Self::Address)
            }
            "http_authorization"
            | "http_x_api_key"
            | "http_api_key"
            | "ssl_client_s_dn"
            | "ssl_client_fingerprint"
            | "remote_user" => Some(Self::Principal),
            "server_name" | "host" | "http_host" | "uri" | "document_uri" | "request_uri"
            | "server_port" | "server_addr" => Some(Self::Namespace),
            _ => None,
        }
    }

    /// What the keys of a zone are: each once. None where one of them is nothing that the gateway counts by.
    fn all_of(text: &str, variables: &Variables<'_>) -> Option<BTreeSet<Self>> {
        let mut keys = BTreeSet::new();
        for piece in pieces(text) {
            let Piece::Variable(name) = piece else {
                continue;
            };
            match Self::of_variable(name) {
                Some(key) => drop(keys.insert(key)),
                None => keys.extend(Self::of_map(name, variables)?),
            }
        }
        // A text without variables counts everything together.
        if keys.is_empty() {
            keys.insert(Self::Namespace);
        }
        Some(keys)
    }

    /// A map of tokens counts by whose the token is. One that gives an address or nothing exempts somebody.
    fn of_map(name: &str, variables: &Variables<'_>) -> Option<BTreeSet<Self>> {
        let map = variables.map(name)?;
        if let Some(key @ Self::Principal) = only_variable(map.source).and_then(Self::of_variable) {
            return Some([key].into());
        }
        let values = map.entries.iter().map(|it| it.value).chain([map.default]);
        let mut keys = BTreeSet::new();
        for value in values.filter(|value| !value.is_empty()) {
            keys.insert(Self::of_variable(only_variable(value)?)?);
        }
        (keys.len() == 1).then_some(keys)
    }
}

/// A zone that is in use, with the strictest burst of its uses.
struct Limit<'a> {
    zone: &'a Directive,
    at: &'a Directive,
    keys: BTreeSet<Key>,
    rate: NonZeroU32,
    burst: NonZeroU32,
    reach: Reach,
}

/// Where a limit counts.
enum Reach {
    Everywhere,
    In(NamespaceName),
}

/// Adds limits by rate.
pub(super) fn write_rates(view: &View<'_>, admission: &mut Map, report: &mut Report) {
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
        .exposures
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

fn zone_name(zone: &Directive) -> Option<&str> {
    zone.option("zone")?.split(':').next()
}

fn limits_of<'a>(zone: &'a Directive, view: &View<'a>, report: &mut Report) -> Vec<Limit<'a>> {
    let mut uses: Vec<(usize, &'a Directive)> = Vec::new();
    for (index, exposure) in view.sites.exposures.iter().enumerate() {
        let dry = exposure
            .scope
            .last("limit_req_dry_run")
            .is_some_and(|it| it.first() == "on");
        for limit in exposure.scope.all("limit_req") {
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
    let Some(keys) = Key::all_of(zone.first(), &view.variables) else {
        report.security(zone, "what this zone counts by is none of principal, address and namespace: choose one of them in admission.rate_limits");
        return Vec::new();
    };
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
    if limited.len() == view.sites.exposures.len() {
        if keys.contains(&Key::Namespace) && view.namespaces().len() > 1 {
            report.security(zone, "counts all requests together in nginx; here each namespace has a budget of its own");
        }
        return vec![limit(Reach::Everywhere)];
    }
    let names: BTreeSet<_> = limited
        .iter()
        .filter_map(|index| view.names[*index].clone())
        .collect();
    let others = view.sites.exposures.iter().enumerate().find(|(index, _)| {
        let name = &view.names[*index];
        !limited.contains(index) && name.as_ref().is_none_or(|name| !names.contains(name))
    });
    match (names.len(), others) {
        (_, None) => vec![limit(Reach::Everywhere)],
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

/// Adds limits of requests at once.
pub(super) fn write_concurrency(view: &View<'_>, limits: &mut Map, report: &mut Report) {
    let mut concurrency = Map::default();
    let mut connections: Option<(u64, &Directive)> = None;
    let mut of_principal = None;
    for (key, name) in [
        (Key::Address, "per_address"),
        (Key::Principal, "per_principal"),
        (Key::Namespace, ""),
    ] {
        let Some((most, at)) = strictest(key, view, report) else {
            continue;
        };
        match key {
            Key::Namespace => connections = Some((most, at)),
            Key::Address | Key::Principal => {
                concurrency.add_with(name, most, at.place.to_string());
                of_principal = of_principal.or((key == Key::Principal).then_some((most, at)));
            }
        }
    }
    if let Some((most, at)) = connections {
        limits.add_with(
            "connections",
            most,
            format!(
                "{}: connections that wait for a request count, too",
                at.place
            ),
        );
    }
    limits.add("concurrency", concurrency);
    if let Some((most, at)) = of_principal {
        limits.add_with("streams_per_principal", most, at.place.to_string());
    }
}

/// The smallest `limit_conn` by a key.
fn strictest<'a>(key: Key, view: &View<'a>, report: &mut Report) -> Option<(u64, &'a Directive)> {
    let mut least: Option<(u64, &'a Directive)> = None;
    let mut without = None;
    for exposure in &view.sites.exposures {
        if exposure
            .scope
            .last("limit_conn_dry_run")
            .is_some_and(|it| it.first() == "on")
        {
            continue;
        }
        let mut limited = false;
        for limit in exposure.scope.all("limit_conn") {
            let zones = view.sites.http.all("limit_conn_zone");
            let zone = zones.iter().find(|zone| zone_name(zone) == limit.arg(0));
            let keys = zone.and_then(|zone| Key::all_of(zone.first(), &view.variables));
            let most = limit
                .arg(1)
                .and_then(number)
                .filter(|most| (1..=1_000_000).contains(most));
            let (Some(keys), Some(most)) = (keys, most) else {
                report.security(limit, "what this zone counts by is none of principal, address and all connections: see admission.limits");
                continue;
            };
            // A count by one of several keys is never smaller than that by all of them.
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
            without = without.or(Some(exposure.at));
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
