//! Changes that nginx makes to responses: `add_header` and `proxy_hide_header` become `headers` of a listener.

use std::collections::BTreeMap;

use crate::guards::may_be_secret;
use crate::headers::HEADERS_MAX;
use crate::report::Report;
use crate::sites::ProxiedLocation;
use crate::tree::{Directive, DirectivePosition};
use crate::values::is_literal;
use crate::view::View;
use crate::yaml_text::{Item, Map};

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
    let mut remove: BTreeMap<String, &str> = BTreeMap::new();
    let here = view
        .sites
        .locations
        .iter()
        .filter(|it| sites.contains(&it.site));
    let here: Vec<_> = here.collect();
    let all = |name| here.iter().flat_map(move |it| it.scope.all(name)).copied();
    for at in all("add_header") {
        let (name, value) = (at.first(), at.arg(1).unwrap_or_default());
        if is_the_gateways(name, view)
            || name.eq_ignore_ascii_case("x-accel-buffering")
            || value.is_empty()
        {
            continue;
        }
        let secret = may_be_secret(name) || has_scheme(value);
        if !is_literal(value)
            || secret
            || !(view.gateway.allows_response_header)(name, value)
            || set.len() == HEADERS_MAX
        {
            report.plain(at, format!("a listener sets at most {HEADERS_MAX} headers, each to one value: write this one into headers.response.set of the listener, if clients need it"));
            continue;
        }
        let before = set.entry(name.to_ascii_lowercase()).or_insert((value, at));
        if before.0 != value {
            let place = &before.1.place;
            let why =
                format!("headers are set for a whole listener: the value of {place} is taken");
            report.plain(at, why);
        } else if let Some(place) = without(&here, at) {
            let why =
                format!("headers are set for a whole listener: answers of {place} have it, too");
            report.plain(at, why);
        }
    }
    for at in all("proxy_hide_header") {
        let name = at.first();
        let lower = name.to_ascii_lowercase();
        if remove.len() == HEADERS_MAX || is_the_gateways(name, view) || set.contains_key(&lower) {
            continue;
        }
        if remove.insert(lower, name).is_none()
            && let Some(place) = without(&here, at)
        {
            let why = format!(
                "headers are removed for a whole listener: answers of {place} lose it, too"
            );
            report.plain(at, why);
        }
    }
    let mut values = Map::default();
    for (value, at) in set.into_values() {
        values.add_at(at.first(), value, at);
    }
    let mut response = Map::default();
    response.add("set", values);
    let remove = remove.into_values().map(|it| Item::new("", it));
    response.add_list("remove", remove.collect());
    let mut headers = Map::default();
    headers.add("response", response);
    headers
}

/// The first proxied location that lacks the response header set by `header`: none of its directives of that name sets it.
fn without<'a>(
    locations: &[&ProxiedLocation<'a>],
    header: &Directive,
) -> Option<&'a DirectivePosition> {
    let is_same = |it: &&Directive| it.first().eq_ignore_ascii_case(header.first());
    let mut locations = locations.iter();
    let lacking = locations.find(|it| !it.scope.all(header.name()).iter().any(is_same));
    lacking.map(|it| &it.at.place)
}

/// Returns true if the gateway itself sets this response header, so that the configuration cannot.
fn is_the_gateways(name: &str, view: &View<'_>) -> bool {
    name.to_ascii_lowercase().starts_with("access-control-")
        || !(view.gateway.allows_response_header)(name, "x")
}
