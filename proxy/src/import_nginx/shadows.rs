//! Locations whose likely endpoint belongs to a more exact location of the same server, as `/` beside `/mcp`: what else
//! they serve is no MCP that the importer knows of.

use super::refusals::matching;
use super::report::Report;
use super::scope::Paths;
use super::sites::{Exposure, Sites};
use super::targets::{Target, target};
use super::variables::Variables;

/// Leaves such locations out.
pub(super) fn drop_shadowed(sites: &mut Sites<'_>, variables: &Variables<'_>, report: &mut Report) {
    let targets: Vec<_> = sites
        .exposures
        .iter()
        .map(|it| target(it, it.pass?, sites, variables).ok())
        .collect();
    let shadowed: Vec<bool> = sites
        .exposures
        .iter()
        .zip(&targets)
        .map(|(exposure, target)| {
            let Some(target) = target else { return false };
            let exposures = sites.exposures.iter().zip(&targets);
            let mut nearer = exposures.filter(|(other, _)| is_nearer(other, exposure, target));
            let Some((nearer, of_nearer)) = nearer.next() else {
                return false;
            };
            let same = of_nearer.as_ref().is_some_and(|it| it.is_at_same_servers(target));
            if !same {
                let place = &nearer.at.place;
                report.plain(exposure.at, format!("{place} is nearer to the path of MCP: no endpoint is known here, add the server to upstreams.remote if it has one"));
            }
            true
        })
        .collect();
    let mut shadowed = shadowed.into_iter();
    sites
        .exposures
        .retain(|_| !shadowed.next().unwrap_or_default());
}

/// Whether nginx gives the endpoint of a location to another location of the same server.
fn is_nearer(other: &Exposure<'_>, exposure: &Exposure<'_>, target: &Target<'_>) -> bool {
    let (Some(paths), Some(of_other)) = (exposure.paths, other.paths) else {
        return false;
    };
    let Paths::Below(own) = paths else {
        return false;
    };
    let endpoint = target.endpoint.as_str();
    let takes = match of_other {
        Paths::Exactly(path) => path == endpoint,
        Paths::Below(path) => path.len() > own.len() && endpoint.starts_with(path),
        Paths::Matching(pattern) => matching(pattern).is_some_and(|it| it.is_match(endpoint)),
        Paths::Named => false,
    };
    takes && other.site == exposure.site && !std::ptr::eq(other.at, exposure.at)
}
