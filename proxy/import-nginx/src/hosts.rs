//! `admission.hosts`: the host names of the nginx servers.

use std::collections::BTreeSet;

use tooldock_filters::host::HostPattern;

use crate::report::Report;
use crate::tree::Directive;
use crate::values::is_literal;
use crate::view::View;
use crate::yaml_text::{Map, Node};

/// Adds the host names of the nginx servers to the configuration, unless one of the servers accepts any name.
pub(crate) fn write(view: &View<'_>, admission: &mut Map, report: &mut Report) {
    let mut hosts: Vec<String> = Vec::new();
    let mut known = BTreeSet::new();
    let mut places = BTreeSet::new();
    let mut left: Option<&Directive> = None;
    let mut any = false;
    for (index, site) in view.sites.sites.iter().enumerate() {
        let mut names: Vec<(&str, &Directive)> = Vec::new();
        let required: Vec<_> = view
            .proxied_locations()
            .filter(|(it, _)| it.site == index)
            .map(|(_, rules)| rules.host)
            .collect();
        match required.first().copied().flatten() {
            Some((host, at))
                if required
                    .iter()
                    .all(|it| it.is_some_and(|(other, _)| other == host)) =>
            {
                names.push((host, at))
            }
            _ => {
                if let Some((_, at)) = required.iter().flatten().next() {
                    report.security(
                        at,
                        "names are for all namespaces: list them in admission.hosts",
                    );
                }
                for directive in site.level.all("server_name") {
                    names.extend(directive.args().map(|name| (name, *directive)));
                }
            }
        }
        names.retain(|(name, _)| !matches!(*name, "_" | "" | "*"));
        if names.is_empty() {
            any = true;
            continue;
        }
        for (name, at) in names {
            let patterns = match name.strip_prefix('.') {
                Some(parent) => vec![parent.to_owned(), format!("*.{parent}")],
                None => vec![name.to_owned()],
            };
            for pattern in patterns {
                if !is_literal(name) || pattern.parse::<HostPattern>().is_err() {
                    report.plain(at, "names are listed one by one, or as *.example.com: requests for others are refused");
                    left = left.or(Some(at));
                    continue;
                }
                places.insert(at.place.clone());
                if known.insert(pattern.clone()) {
                    hosts.push(pattern);
                }
            }
        }
    }
    if any {
        // At least one nginx server accepts any name, and `admission.hosts` applies to all of them. So conditions about hosts
        // cannot be imported.
        for (_, rules) in view.proxied_locations() {
            if let Some((_, at)) = rules.host {
                report.security(
                    at,
                    "names are for all namespaces: list them in admission.hosts",
                );
            }
        }
        return;
    }
    if let (true, Some(left)) = (hosts.is_empty(), left) {
        report.security(left, "no name of this configuration can be listed, so that any Host is accepted: list names in admission.hosts");
    }
    if !hosts.is_empty() {
        let places: Vec<_> = places.iter().map(ToString::to_string).collect();
        admission.add_with("hosts", Node::list(hosts), places.join(", "));
    }
}
