//! Locations whose MCP endpoint nginx serves from another location of the same server. If the other location proxies requests
//! (such as `/mcp` beside `/`), the first location has no endpoint and is not imported. If the other location answers requests
//! itself, the endpoint may be closed in nginx, and is reported.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::guards::{Rule, rule};
use crate::known::{Treatment, treatment};
use crate::refusals::{Location, REGEXES_MAX, chosen};
use crate::report::Report;
use crate::scope::{Level, Paths};
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
    let locations = || sites.locations.iter();
    let targets = locations().map(|it| target(it, it.pass?, sites, &mut Report::default()).ok());
    let targets: Vec<_> = targets.collect();
    let exposed = locations().zip(&targets);
    let exposed = exposed.map(|(it, target)| (std::ptr::from_ref(it.at), target.as_ref()));
    let exposed: HashMap<_, Option<&Target<'_>>> = exposed.collect();
    let is_exposed = |at: &Directive| exposed.contains_key(&std::ptr::from_ref(at));
    let mut left = REGEXES_MAX;
    let mut of_servers = HashMap::new();
    let mut shadowed = HashSet::new();
    for (location, target) in locations().zip(&targets) {
        let (Some(target), Some(server)) = (target, &location.scope.server) else {
            continue;
        };
        let locations = of_servers
            .entry(Rc::as_ptr(server))
            .or_insert_with(|| Location::all(server, &mut left));
        let found = chosen(locations, &target.asked, location.at);
        let redirects = |at: &Directive| {
            let answer = Level::of(at.block()).answers();
            answer.is_some_and(|it| it.is("rewrite") || it.first().starts_with('3'))
        };
        // An operator who closes the endpoint with or without a slash at its end means both. A redirect closes neither.
        let endpoint = &target.endpoint;
        let is_spelled = |it: &&Location<'a>| !endpoint.is_empty() && it.paths.path() == *endpoint;
        let spelled = locations.iter().filter(is_spelled).map(|it| it.at);
        let closed = spelled.filter(|it| !redirects(it));
        let others = target.also.iter();
        let others = others.flat_map(|path| chosen(locations, path, location.at));
        let answering = found.iter().copied().chain(closed).chain(others);
        for at in answering.filter(|it| !is_exposed(it)).take(ANSWERING_MAX) {
            let place = &location.at.place;
            report.security(at, format!("takes the path of MCP from {place} in nginx, which is passed on here: leave that server out of upstreams.remote, if the path is closed"));
        }
        // Only a location with a path prefix can lose its endpoint to another location here: the paths of a regular expression
        // are not known well enough, and an exact path has no more specific location.
        let others = |found: &[&Directive]| {
            let mut all = found.iter();
            all.all(|it| is_exposed(it) && !std::ptr::eq(*it, location.at)) && !found.is_empty()
        };
        // With both `location = /mcp` and `location /mcp/`, clients use the first.
        let is_exact = |it: &&Location<'a>| it.paths == Paths::Exactly(endpoint);
        let exact = locations.iter().filter(is_exact).map(|it| it.at);
        let exact: Vec<_> = exact.collect();
        let nearer = if others(&exact) { exact } else { found };
        if !matches!(location.paths, Some(Paths::Below(_))) || !others(&nearer) {
            continue;
        }
        shadowed.insert(std::ptr::from_ref(location.at));
        let place = &nearer[0].place;
        let is_same = |it: &&Directive| {
            let of_nearer = exposed.get(&std::ptr::from_ref(*it)).copied().flatten();
            of_nearer.is_some_and(|it| it.is_at_same_servers(target))
        };
        if is_restricted(location, variables) {
            report.security(location.at, format!("{place} is nearer to the path of MCP, and what this one asks of clients is left out with it: see that {place} asks for enough"));
        } else if !nearer.iter().all(is_same) {
            report.plain(location.at, format!("{place} is nearer to the path of MCP: no endpoint is known here, add the server to upstreams.remote if it has one"));
        }
    }
    sites
        .locations
        .retain(|it| !shadowed.contains(&std::ptr::from_ref(it.at)));
}

/// Returns true if a location has conditions or access rules in addition to those of its server.
fn is_restricted(location: &ProxiedLocation<'_>, variables: &Variables<'_>) -> bool {
    let asks = |it: &Directive| match it.name() {
        "deny" => true,
        "if" => !matches!(rule(it, variables, &mut Report::default()), Rule::Nothing),
        name => matches!(treatment(name, it.first()), Treatment::Security(_)),
    };
    location.scope.own().any(asks)
}
