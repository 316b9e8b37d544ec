//! Changes that nginx makes to responses: `add_header` and `proxy_hide_header` become `headers` of a listener. Changes of bodies
//! by `sub_filter` have no equivalent and are reported.

use std::collections::BTreeMap;

use crate::guards::may_be_secret;
use crate::headers::HEADERS_MAX;
use crate::report::Report;
use crate::sites::{ProxiedLocation, Sites};
use crate::tree::{Directive, DirectivePosition};
use crate::values::is_literal;
use crate::view::View;
use crate::yaml_text::{Map, Node};

/// Returns true if a value has the form of a credential with a scheme, such as `Bearer …`.
fn has_scheme(value: &str) -> bool {
    let scheme = value.split(' ').next().unwrap_or_default();
    ["bearer", "basic", "token"]
        .iter()
        .any(|it| scheme.eq_ignore_ascii_case(it))
}

/// Creates the key `headers` of a listener at which the nginx servers `sites` are served.
pub(crate) fn headers(view: &View<'_>, sites: &[usize], report: &mut Report) -> Map {
    let mut set: BTreeMap<String, (&str, &Directive)> = BTreeMap::new();
    let mut remove: Vec<&str> = Vec::new();
    let proxied_locations = || {
        view.sites
            .proxied_locations
            .iter()
            .filter(|it| sites.contains(&it.site))
    };
    for proxied_location in proxied_locations() {
        for directive in proxied_location.scope.all("add_header") {
            let (name, value) = (directive.first(), directive.arg(1).unwrap_or_default());
            if is_the_gateways(name, view)
                || name.eq_ignore_ascii_case("x-accel-buffering")
                || value.is_empty()
            {
                continue;
            }
            let secret = may_be_secret(name) || has_scheme(value);
            if !is_literal(value) || secret || !(view.gateway.allows_response_header)(name, value) {
                report.plain(directive, "headers of answers have one value: write this one into headers.response.set of the listener, if clients need it");
                continue;
            }
            if set.len() == HEADERS_MAX {
                report.plain(
                    directive,
                    format!("a listener sets at most {HEADERS_MAX} headers"),
                );
                continue;
            }
            let before = set
                .entry(name.to_ascii_lowercase())
                .or_insert((value, directive));
            if before.0 != value {
                report.plain(
                    directive,
                    format!(
                        "headers are set for a whole listener: the value of {} is taken",
                        before.1.place
                    ),
                );
            } else if let Some(place) = without(proxied_locations(), directive) {
                report.plain(
                    directive,
                    format!(
                        "headers are set for a whole listener: answers of {place} have it, too"
                    ),
                );
            }
        }
    }
    for proxied_location in proxied_locations() {
        for directive in proxied_location.scope.all("proxy_hide_header") {
            let name = directive.first();
            let is_set = set.contains_key(&name.to_ascii_lowercase());
            if remove.len() < HEADERS_MAX
                && !is_the_gateways(name, view)
                && !is_set
                && !remove.iter().any(|it| it.eq_ignore_ascii_case(name))
            {
                remove.push(name);
                if let Some(place) = without(proxied_locations(), directive) {
                    report.plain(directive, format!("headers are removed for a whole listener: answers of {place} lose it, too"));
                }
            }
        }
    }
    let mut values = Map::default();
    for (value, at) in set.into_values() {
        values.add_with(at.first(), value, at.place.to_string());
    }
    let mut response = Map::default();
    response.add("set", values);
    if !remove.is_empty() {
        response.add("remove", Node::list(remove));
    }
    let mut headers = Map::default();
    headers.add("response", response);
    headers
}

/// The first proxied location that lacks the response header set by `header`: none of its directives of that name sets it.
fn without<'e, 'a: 'e>(
    mut proxied_locations: impl Iterator<Item = &'e ProxiedLocation<'a>>,
    header: &Directive,
) -> Option<&'a DirectivePosition> {
    let is_same = |it: &&Directive| it.first().eq_ignore_ascii_case(header.first());
    let lacking = proxied_locations.find(|it| !it.scope.all(header.name()).iter().any(is_same));
    lacking.map(|it| &it.at.place)
}

/// Reports directives that replace texts in the bodies of responses. Paths and URLs are usually replaced so that clients can
/// follow them; other texts may be replaced to hide them from clients.
pub(crate) fn list_filters(sites: &Sites<'_>, report: &mut Report) {
    let proxied_locations = sites.proxied_locations.iter();
    for filter in proxied_locations.flat_map(|it| it.scope.all("sub_filter")) {
        let text = filter.first().trim_start_matches("data:");
        let text = text.trim_start_matches([' ', '"', '\'']);
        let is_path = ["/", "http://", "https://"]
            .iter()
            .any(|it| text.starts_with(it));
        match is_path {
            true => report.plain(filter, "bodies are not rewritten"),
            false => report.security(
                filter,
                "bodies are not rewritten: what this one takes out of answers reaches clients here",
            ),
        }
    }
}

/// Returns true if the gateway itself sets this response header, so that the configuration cannot.
fn is_the_gateways(name: &str, view: &View<'_>) -> bool {
    name.to_ascii_lowercase().starts_with("access-control-")
        || !(view.gateway.allows_response_header)(name, "x")
}
