//! `namespaces.overrides.NAME.aliases`: the paths that endpoints have in nginx, so that clients can keep their URLs.

use std::collections::BTreeMap;

use tooldock_base::names::NamespaceName;

use crate::gateway_rules::GatewayRules;
use crate::report::Report;
use crate::targets::Target;
use crate::tree::Directive;
use crate::yaml_text::{Map, Node};

/// The paths that endpoints have in nginx. Each path has the locations that serve it, and the namespace that each location
/// becomes.
#[derive(Default)]
pub(crate) struct NginxPaths<'a>(BTreeMap<String, Vec<(&'a Directive, NamespaceName)>>);

impl<'a> NginxPaths<'a> {
    /// Records the path of an endpoint, unless the gateway serves the endpoint at that path by default. Paths to which clients of
    /// HTTP+SSE send messages become no aliases, since the gateway's stream announces the gateway's own path for messages.
    pub(crate) fn note(&mut self, target: &Target<'_>, at: &'a Directive, name: &NamespaceName) {
        for path in std::iter::once(&target.endpoint).chain(&target.also) {
            let is_own = matches!(path.as_str(), "" | "/mcp" | "/sse")
                || path.strip_prefix("/mcp/") == Some(name.as_str());
            if !is_own && !target.is_of_messages() {
                let places = self.0.entry(path.to_owned()).or_default();
                places.push((at, name.clone()));
            }
        }
    }

    /// Creates the overrides of namespaces that have aliases. A path that leads to several servers, depending on the host name,
    /// becomes no alias, since clients would reach another server than with nginx.
    pub(crate) fn overrides(self, gateway: &GatewayRules, report: &mut Report) -> Map {
        let mut aliases: BTreeMap<NamespaceName, Vec<(String, &Directive)>> = BTreeMap::new();
        for (path, places) in self.0 {
            let (first, name) = &places[0];
            let other = places.iter().find(|(_, other)| other != name);
            if let Some((at, _)) = other {
                let place = &first.place;
                report.plain(at, format!("this path leads to another server than at {place}, by the host's name: it is no alias, clients use /mcp/NAME"));
            } else if !(gateway.allows_alias)(&path) {
                let why = "this path cannot be an alias here, clients use /mcp/NAME: it is a path of the gateway's own, or has signs that aliases do not have";
                report.plain(first, why);
            } else {
                aliases.entry(name.clone()).or_default().push((path, first));
            }
        }
        let mut overrides = Map::default();
        for (name, paths) in aliases {
            let places: Vec<_> = paths.iter().map(|(_, at)| at.place.to_string()).collect();
            let mut entry = Map::default();
            entry.add_with(
                "aliases",
                Node::list(paths.into_iter().map(|(path, _)| path)),
                format!(
                    "{}: the paths that clients have, which go on",
                    places.join(", ")
                ),
            );
            overrides.add(name.as_str(), entry);
        }
        overrides
    }
}
