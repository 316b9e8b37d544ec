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
    let mut places = BTreeSet::new();
    let mut left: Option<&Directive> = None;
    for site in &view.sites.sites {
        let directives = site.level.all("server_name").iter();
        let names = directives.flat_map(|at| at.args().map(move |name| (name, *at)));
        let mut names = names
            .filter(|(name, _)| !matches!(*name, "_" | "" | "*"))
            .peekable();
        if names.peek().is_none() {
            return;
        }
        for (name, at) in names {
            let patterns = match name.strip_prefix('.') {
                Some(parent) => vec![parent.to_owned(), format!("*.{parent}")],
                None => vec![name.to_owned()],
            };
            let is_host = |it: &String| it.parse::<HostPattern>().is_ok();
            if !is_literal(name) || !patterns.iter().all(is_host) {
                report.plain(at, "names are listed one by one, or as *.example.com: requests for others are refused");
                left = left.or(Some(at));
                continue;
            }
            places.insert(at.place.to_string());
            hosts.extend(patterns);
        }
    }
    if let (true, Some(left)) = (hosts.is_empty(), left) {
        report.security(left, "no name of this configuration can be listed, so that any Host is accepted: list names in admission.hosts");
    }
    let mut known = BTreeSet::new();
    hosts.retain(|it| known.insert(it.clone()));
    if !hosts.is_empty() {
        let places: Vec<_> = places.into_iter().collect();
        admission.add_with("hosts", Node::list(hosts), places.join(", "));
    }
}
