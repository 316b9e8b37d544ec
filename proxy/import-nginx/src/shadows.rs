//! Locations whose likely endpoint nginx serves from another location of the same server. If the other location proxies
//! requests, such as `/mcp` in addition to `/`, the remainder of the first location counts as no MCP. If the other location
//! answers itself, the endpoint may be closed in nginx.

use std::collections::HashMap;
use std::rc::Rc;

use crate::known::{Treatment, treatment};
use crate::refusals::{Location, REGEXES_MAX, chosen, exactly};
use crate::report::Report;
use crate::rules::Rules;
use crate::scope::{Level, Paths, Scope};
use crate::sites::{Exposure, Sites};
use crate::targets::{Target, target};
use crate::tree::Directive;
use crate::variables::Variables;

/// Maximum number of report lines about one endpoint; further lines are redundant.
const ANSWERING_MAX: usize = 5;

/// Removes locations whose endpoint another location passes on, and reports locations that match an endpoint and answer
/// it themselves.
pub(crate) fn drop_shadowed<'a>(
    sites: &mut Sites<'a>,
    variables: &Variables<'a>,
    report: &mut Report,
) {
    let targets: Vec<_> = sites
        .exposures
        .iter()
        .map(|it| target(it, it.pass?, sites, variables).ok())
        .collect();
    let exposed: HashMap<*const Directive, Option<&Target<'_>>> = sites
        .exposures
        .iter()
        .zip(&targets)
        .map(|(it, target)| (std::ptr::from_ref(it.at), target.as_ref()))
        .collect();
    let mut left = REGEXES_MAX;
    let mut of_servers = HashMap::new();
    let mut shadowed = Vec::new();
    for (exposure, target) in sites.exposures.iter().zip(&targets) {
        let (Some(target), Some(server)) = (target, &exposure.scope.server) else {
            shadowed.push(false);
            continue;
        };
        let locations = of_servers
            .entry(Rc::as_ptr(server))
            .or_insert_with(|| Location::all(server, &mut left));
        let is_exposed = |at: &Directive| exposed.contains_key(&std::ptr::from_ref(at));
        let answering = answering(exposure, target, locations, is_exposed);
        for at in answering.into_iter().take(ANSWERING_MAX) {
            let place = &exposure.at.place;
            report.security(at, format!("takes the path of MCP from {place} in nginx, which is passed on here: leave that server out of upstreams.remote, if the path is closed"));
        }
        let nearer = nearer(exposure, target, locations, is_exposed);
        shadowed.push(!nearer.is_empty());
        let Some(place) = nearer.first().map(|it| &it.place) else {
            continue;
        };
        if is_restricted(exposure, variables) {
            report.security(exposure.at, format!("{place} is nearer to the path of MCP, and what this one asks of clients is left out with it: see that {place} asks for enough"));
            continue;
        }
        let same = nearer.iter().all(|it| {
            let of_nearer = exposed.get(&std::ptr::from_ref(*it)).copied().flatten();
            of_nearer.is_some_and(|it| it.is_at_same_servers(target))
        });
        if !same {
            report.plain(exposure.at, format!("{place} is nearer to the path of MCP: no endpoint is known here, add the server to upstreams.remote if it has one"));
        }
    }
    let mut shadowed = shadowed.into_iter();
    sites
        .exposures
        .retain(|_| !shadowed.next().unwrap_or_default());
}

/// The locations that pass no requests on and that nginx may choose for the endpoint of an exposure.
fn answering<'a>(
    exposure: &Exposure<'a>,
    target: &Target<'a>,
    locations: &[Location<'a>],
    is_exposed: impl Fn(&Directive) -> bool,
) -> Vec<&'a Directive> {
    let mut found = chosen(locations, &target.asked, exposure.at);
    // An operator that closes the path with a trailing slash, or without one, probably means both. A redirect from one to the
    // other closes neither.
    let redirects = |at: &Directive| {
        let level = Level::of(at.block());
        level
            .answers()
            .is_some_and(|it| it.is("rewrite") || it.first().starts_with('3'))
    };
    let endpoint = target.endpoint.as_str();
    let other: Vec<_> = if target.asked != endpoint {
        exactly(locations, endpoint).into_iter().collect()
    } else if exposure.paths.is_none_or(|it| it.path() != endpoint) {
        let mut below = chosen(locations, &format!("{endpoint}/"), exposure.at);
        below.retain(|it| Paths::of(it).path() == endpoint);
        below
    } else {
        Vec::new()
    };
    found.extend(other.into_iter().filter(|it| !redirects(it)));
    found.retain(|it| !is_exposed(it));
    found
}

/// The exposures to which nginx passes the complete endpoint of another exposure.
fn nearer<'a>(
    exposure: &Exposure<'a>,
    target: &Target<'a>,
    locations: &[Location<'a>],
    is_exposed: impl Fn(&Directive) -> bool,
) -> Vec<&'a Directive> {
    // The paths that a regular expression matches are not known well enough.
    if !matches!(exposure.paths, Some(Paths::Below(_))) {
        return Vec::new();
    }
    let others = |found: &[&Directive]| {
        let mut found = found.iter();
        found.all(|it| is_exposed(it) && !std::ptr::eq(*it, exposure.at))
    };
    // A location `/mcp/` in addition to `= /mcp` is for the same clients.
    let without_slash: Vec<_> = exactly(locations, &target.endpoint).into_iter().collect();
    if !without_slash.is_empty() && others(&without_slash) {
        return without_slash;
    }
    let found = chosen(locations, &target.asked, exposure.at);
    match others(&found) {
        true => found,
        false => Vec::new(),
    }
}

/// Returns true if a location requires more of clients than its server does.
fn is_restricted(exposure: &Exposure<'_>, variables: &Variables<'_>) -> bool {
    let levels = &exposure.scope.levels;
    let is_server = |it: &Rc<Level<'_>>| {
        let server = exposure.scope.server.as_ref();
        server.is_some_and(|server| Rc::ptr_eq(server, it))
    };
    let first = levels.iter().position(is_server).map_or(0, |it| it + 1);
    let scope = Scope {
        levels: levels[first..].to_vec(),
        server: None,
    };
    let asks = |it: &Directive| {
        matches!(it.name(), "deny" | "limit_except")
            || matches!(treatment(it.name(), it.first()), Treatment::Security(_))
    };
    if scope.levels.iter().any(|it| it.block.iter().any(asks)) {
        return true;
    }
    let own = Exposure {
        at: exposure.at,
        scope,
        paths: exposure.paths,
        pass: exposure.pass,
        site: exposure.site,
    };
    // The rules are only examined: lost rules are reported with the location.
    let rules = Rules::of(&own, variables, &mut Report::default());
    let others = rules.origins.is_some() || rules.host.is_some() || rules.encrypted.is_some();
    others || !rules.is_open()
}
