//! Imports the origins of web pages that may send requests, as `admission.origins`.

use std::collections::BTreeSet;

use tooldock_filters::host::HostPattern;
use tooldock_filters::origin::OriginPattern;

use crate::listeners::ServedPort;
use crate::report::Report;
use crate::sites::ProxiedLocation;
use crate::tree::Directive;
use crate::values::is_literal;
use crate::view::View;
use crate::yaml_text::{Map, Node};

/// The origins of web pages; `None` for the origins of all pages.
type Pages = Option<BTreeSet<String>>;

/// The web pages whose requests a location admits.
struct LocationPages<'a> {
    pages: Pages,
    /// The directive that lists the pages. Without one, the location, which admits only pages of the nginx servers themselves.
    at: &'a Directive,
    is_named: bool,
}

/// Adds `admission.origins`. Each location admits the origins that its conditions name; without such conditions, the origins
/// that its CORS response headers name and the origins of the nginx servers. The list contains the origins that all admit.
pub(crate) fn write(
    view: &View<'_>,
    ports: &[ServedPort],
    admission: &mut Map,
    report: &mut Report,
) {
    let own = own_origins(view, ports);
    let mut places = Vec::new();
    let (mut is_guarded, mut is_free) = (false, false);
    for (location, rules) in view.locations() {
        let (pages, at) = match &rules.origins {
            Some((origins, at)) => (Some(origins_of(origins, at, report)), *at),
            None => {
                let (pages, at) = answered_pages(location, report);
                (pages.map(|pages| &pages | &own), at)
            }
        };
        is_guarded |= rules.origins.is_some();
        is_free |= rules.origins.is_none();
        let is_named = !std::ptr::eq(at, location.at);
        places.push(LocationPages {
            pages,
            at,
            is_named,
        });
    }
    let lists = places.iter().filter_map(|it| it.pages.clone());
    let Some(origins) = lists.reduce(|one, other| &one & &other) else {
        return;
    };
    report_refused(&places, &origins, is_guarded, report);
    if is_free {
        report.differs_in("admission", "requests of web pages of other origins get 403 origin_not_allowed, where nginx passes them on: add the pages that may call (origins)");
    }
    let names = |place: &&LocationPages<'_>| {
        let pages = || place.pages.iter().flatten();
        place.is_named && pages().any(|it| origins.contains(it) && !own.contains(it))
    };
    let comment = match places.iter().find(names) {
        Some(place) => place.at.place.to_string(),
        None => "pages of the servers themselves: list the pages that may call, as https://chat.example.com".to_owned(),
    };
    admission.add_with("origins", Node::list(origins), comment);
}

/// Reports the pages that some locations admit and others do not. The gateway has one list for all locations and refuses these
/// pages.
fn report_refused(
    places: &[LocationPages<'_>],
    origins: &BTreeSet<String>,
    is_guarded: bool,
    report: &mut Report,
) {
    for place in places {
        let refused: Pages = place.pages.as_ref().map(|pages| pages - origins);
        if refused.as_ref().is_some_and(BTreeSet::is_empty) {
            continue;
        }
        let refuses = |it: &&LocationPages<'_>| match (&it.pages, &refused) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(pages), Some(refused)) => !refused.is_subset(pages),
        };
        let Some(other) = places.iter().find(refuses) else {
            continue;
        };
        let words = match &refused {
            None => "all pages but those in admission.origins".to_owned(),
            Some(pages) => {
                let pages: Vec<_> = pages.iter().map(String::as_str).collect();
                format!("pages of {}", pages.join(", "))
            }
        };
        let difference = format!(
            "{words} are refused from now on: {} does not let them in, and only pages that all locations let in are in \
             admission.origins. Add them there, if they may call all namespaces",
            other.at.place
        );
        match is_guarded {
            true => report.security(place.at, difference),
            false => report.plain(place.at, difference),
        }
    }
}

/// Returns the origins made of the nginx servers' own names and ports, since nginx may serve web pages there, too.
fn own_origins(view: &View<'_>, ports: &[ServedPort]) -> BTreeSet<String> {
    let mut own = BTreeSet::new();
    for served in ports {
        let scheme = if served.encrypted { "https" } else { "http" };
        let names = view.sites.sites[served.site]
            .level
            .all("server_name")
            .iter();
        for name in names.flat_map(|it| it.args()) {
            let name = name.strip_prefix('.').unwrap_or(name);
            let is_host = is_literal(name) && name.parse::<HostPattern>().is_ok();
            if is_host && !name.contains('*') && name != "_" {
                let origin = format!("{scheme}://{name}:{}", served.port);
                own.extend(origin.parse::<OriginPattern>().map(|it| it.to_string()));
            }
        }
    }
    own
}

fn origins_of(origins: &[&str], at: &Directive, report: &mut Report) -> BTreeSet<String> {
    let mut valid = BTreeSet::new();
    for origin in origins {
        match origin.parse::<OriginPattern>() {
            Ok(pattern) if !pattern.is_any() => drop(valid.insert(pattern.to_string())),
            _ => report.plain(
                at,
                "an origin that is not written as https://host is not let in",
            ),
        }
    }
    valid
}

/// Returns the pages to which the CORS header of a location's responses gives access, and the directive that sets it. Headers in
/// conditions are not read.
fn answered_pages<'a>(
    location: &ProxiedLocation<'a>,
    report: &mut Report,
) -> (Pages, &'a Directive) {
    let name = "access-control-allow-origin";
    let is_cors = |it: &&Directive| it.is("add_header") && it.first().eq_ignore_ascii_case(name);
    let mut headers = location.scope.all("add_header").iter().copied();
    let Some(header) = headers.find(is_cors) else {
        for condition in location.scope.of_server_and_own("if") {
            for header in condition.block().iter().filter(is_cors) {
                report.plain(header, "the origins that this condition lets in are not read: list them in admission.origins");
            }
        }
        return (Some(BTreeSet::new()), location.at);
    };
    let pages = match header.arg(1).unwrap_or_default() {
        "*" | "$http_origin" => None,
        origin if is_literal(origin) => Some(origins_of(&[origin], header, report)),
        _ => {
            let why =
                "the origins behind this variable are not read: list them in admission.origins";
            report.plain(header, why);
            Some(BTreeSet::new())
        }
    };
    (pages, header)
}
