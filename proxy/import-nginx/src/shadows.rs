//! Locations whose MCP endpoint nginx serves from another location of the same server. If the other location proxies requests
//! (such as `/mcp` beside `/`), the first location has no endpoint and is not imported. If the other location answers requests
//! itself, the endpoint may be closed in nginx, and is reported.

use std::collections::HashMap;
use std::rc::Rc;

use crate::known::{Treatment, treatment};
use crate::refusals::{Location, REGEXES_MAX, chosen, exactly};
use crate::report::Report;
use crate::rules::Rules;
use crate::scope::{Level, Paths, Scope};
use crate::sites::{ProxiedLocation, Sites};
use crate::targets::{Target, target};
use crate::tree::Directive;
use crate::variables::Variables;

/// Maximum number of report lines about one endpoint.
const ANSWERING_MAX: usize = 5;

/// Removes each location whose endpoint nginx serves from another proxied location, and reports locations that match the path
/// of an endpoint but answer requests themselves.
pub(crate) fn drop_shadowed<'a>(
    sites: &mut Sites<'a>,
    variables: &Variables<'a>,
    report: &mut Report,
) {
    let targets: Vec<_> = sites
        .proxied_locations
        .iter()
        .map(|it| target(it, it.pass?, sites, variables).ok())
        .collect();
    let exposed: HashMap<*const Directive, Option<&Target<'_>>> = sites
        .proxied_locations
        .iter()
        .zip(&targets)
        .map(|(it, target)| (std::ptr::from_ref(it.at), target.as_ref()))
        .collect();
    let mut left = REGEXES_MAX;
    let mut of_servers = HashMap::new();
    let mut shadowed = Vec::new();
    for (proxied_location, target) in sites.proxied_locations.iter().zip(&targets) {
        let (Some(target), Some(server)) = (target, &proxied_location.scope.server) else {
            shadowed.push(false);
            continue;
        };
        let locations = of_servers
            .entry(Rc::as_ptr(server))
            .or_insert_with(|| Location::all(server, &mut left));
        let is_exposed = |at: &Directive| exposed.contains_key(&std::ptr::from_ref(at));
        let answering = answering(proxied_location, target, locations, is_exposed);
        for at in answering.into_iter().take(ANSWERING_MAX) {
            let place = &proxied_location.at.place;
            report.security(at, format!("takes the path of MCP from {place} in nginx, which is passed on here: leave that server out of upstreams.remote, if the path is closed"));
        }
        let nearer = nearer(proxied_location, target, locations, is_exposed);
        shadowed.push(!nearer.is_empty());
        let Some(place) = nearer.first().map(|it| &it.place) else {
            continue;
        };
        if is_restricted(proxied_location, variables) {
            report.security(proxied_location.at, format!("{place} is nearer to the path of MCP, and what this one asks of clients is left out with it: see that {place} asks for enough"));
            continue;
        }
        let same = nearer.iter().all(|it| {
            let of_nearer = exposed.get(&std::ptr::from_ref(*it)).copied().flatten();
            of_nearer.is_some_and(|it| it.is_at_same_servers(target))
        });
        if !same {
            report.plain(proxied_location.at, format!("{place} is nearer to the path of MCP: no endpoint is known here, add the server to upstreams.remote if it has one"));
        }
    }
    let mut shadowed = shadowed.into_iter();
    sites
        .proxied_locations
        .retain(|_| !shadowed.next().unwrap_or_default());
}

/// Returns the locations that nginx may choose for the endpoint of a proxied location, and that answer requests themselves.
fn answering<'a>(
    proxied_location: &ProxiedLocation<'a>,
    target: &Target<'a>,
    locations: &[Location<'a>],
    is_exposed: impl Fn(&Directive) -> bool,
) -> Vec<&'a Directive> {
    let mut found = chosen(locations, &target.asked, proxied_location.at);
    // An operator who closes a path with or without a slash at its end probably means both spellings. A redirect between the two
    // spellings closes neither.
    let redirects = |at: &Directive| {
        let level = Level::of(at.block());
        level
            .answers()
            .is_some_and(|it| it.is("rewrite") || it.first().starts_with('3'))
    };
    let endpoint = target.endpoint.as_str();
    let other: Vec<_> = if target.asked != endpoint {
        exactly(locations, endpoint).into_iter().collect()
    } else if proxied_location
        .paths
        .is_none_or(|it| it.path() != endpoint)
    {
        let mut below = chosen(locations, &format!("{endpoint}/"), proxied_location.at);
        below.retain(|it| Paths::of(it).path() == endpoint);
        below
    } else {
        Vec::new()
    };
    found.extend(other.into_iter().filter(|it| !redirects(it)));
    found.retain(|it| !is_exposed(it));
    found
}

/// Returns the locations that nginx chooses for the endpoint in place of `proxied_location`.
fn nearer<'a>(
    proxied_location: &ProxiedLocation<'a>,
    target: &Target<'a>,
    locations: &[Location<'a>],
    is_exposed: impl Fn(&Directive) -> bool,
) -> Vec<&'a Directive> {
    // Only a location with a path prefix can lose its endpoint to another location here: the paths of a regular expression are
    // not known well enough, and an exact path has no more specific location.
    if !matches!(proxied_location.paths, Some(Paths::Below(_))) {
        return Vec::new();
    }
    let others = |found: &[&Directive]| {
        let mut found = found.iter();
        found.all(|it| is_exposed(it) && !std::ptr::eq(*it, proxied_location.at))
    };
    // With both `location = /mcp` and `location /mcp/`, clients use the first.
    let without_slash: Vec<_> = exactly(locations, &target.endpoint).into_iter().collect();
    if !without_slash.is_empty() && others(&without_slash) {
        return without_slash;
    }
    let found = chosen(locations, &target.asked, proxied_location.at);
    match others(&found) {
        true => found,
        false => Vec::new(),
    }
}

/// Returns true if a location has conditions or access rules in addition to those of its server.
fn is_restricted(proxied_location: &ProxiedLocation<'_>, variables: &Variables<'_>) -> bool {
    let levels = &proxied_location.scope.levels;
    let is_server = |it: &Rc<Level<'_>>| {
        let server = proxied_location.scope.server.as_ref();
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
    let own = ProxiedLocation {
        at: proxied_location.at,
        scope,
        paths: proxied_location.paths,
        pass: proxied_location.pass,
        site: proxied_location.site,
    };
    // Report lines are discarded here, since the same rules are reported where the location is imported.
    let rules = Rules::of(&own, variables, &mut Report::default());
    let others = rules.origins.is_some() || rules.host.is_some() || rules.encrypted.is_some();
    others || !rules.is_open()
}
