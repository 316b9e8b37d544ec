//! Imports the origins of web pages that may send requests, as `admission.origins`.

use std::collections::BTreeSet;

use tooldock_filters::host::HostPattern;
use tooldock_filters::origin::OriginPattern;

use crate::conditions::{VariableTest, variable_test};
use crate::listeners::ServedPort;
use crate::report::Report;
use crate::sites::ProxiedLocation;
use crate::tree::Directive;
use crate::values::{is_literal, only_variable};
use crate::variables::{Key, Variables};
use crate::view::View;
use crate::yaml_text::{Map, Node};

/// Comment in the written configuration on `admission.origins`, if no directive of nginx names an origin.
const NO_OTHER: &str = "nginx answers no page of another origin";
const NO_COMMON: &str = "all locations of nginx let in no other page";
const LIST: &str = "list the pages that may call, as https://chat.example.com";

/// The origins of the web pages whose requests a location of nginx admits.
#[derive(Clone, PartialEq, Eq)]
enum Pages {
    All,
    Only(BTreeSet<String>),
}

impl Pages {
    fn and(self, other: &Self) -> Self {
        match (self, other) {
            (Self::All, other) => other.clone(),
            (one, Self::All) => one,
            (Self::Only(one), Self::Only(other)) => {
                Self::Only(one.intersection(other).cloned().collect())
            }
        }
    }
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
    for (proxied_location, rules) in view.proxied_locations() {
        let (pages, at) = match &rules.origins {
            Some((origins, at)) => (Pages::Only(origins_of(origins, at, report)), *at),
            None => match answered_pages(proxied_location, &view.variables, report) {
                (Pages::Only(pages), at) => (Pages::Only(&pages | &own), at),
                other => other,
            },
        };
        places.push(PlacePages {
            pages,
            at,
            is_guarded: rules.origins.is_some(),
            is_named: !std::ptr::eq(at, proxied_location.at),
        });
    }
    let all = places.iter().map(|it| it.pages.clone());
    let Some(Pages::Only(origins)) = all.reduce(|one, other| one.and(&other)) else {
        return;
    };
    let refused = report_refused(&places, &origins, report);
    if places.iter().any(|it| !it.is_guarded) {
        report.differs_in("admission", "requests of web pages of other origins get 403 origin_not_allowed, where nginx passes them on: add the pages that may call (origins)");
    }
    let comment = comment(&places, &origins, &own, refused);
    admission.add_with("origins", Node::list(origins), comment);
}

/// The web pages, by origin, whose requests a location admits, and the directive that lists them.
struct PlacePages<'a> {
    pages: Pages,
    at: &'a Directive,
    /// True if a condition of nginx refuses requests from pages that are not in `pages`; false if only response headers name the
    /// pages.
    is_guarded: bool,
    /// True if a directive lists the origins, as `add_header Access-Control-Allow-Origin` does. False if there is no such
    /// directive; then only pages of the gateway's own host are admitted.
    is_named: bool,
}

/// Reports the pages that some locations admit and others do not. The gateway has one list for all locations and refuses these
/// pages. Returns true if there are any.
fn report_refused(
    places: &[PlacePages<'_>],
    origins: &BTreeSet<String>,
    report: &mut Report,
) -> bool {
    let is_guarded = places.iter().any(|it| it.is_guarded);
    let mut has_refused = false;
    for place in places {
        let (refused, words) = match &place.pages {
            Pages::All => (None, "all pages but those in admission.origins".to_owned()),
            Pages::Only(pages) => {
                let refused: Vec<_> = pages.difference(origins).map(String::as_str).collect();
                let words = format!("pages of {}", refused.join(", "));
                (Some(refused), words)
            }
        };
        if refused.as_ref().is_some_and(Vec::is_empty) {
            continue;
        }
        let lets_in = |pages: &Pages| match (pages, &refused) {
            (Pages::All, _) => true,
            (Pages::Only(_), None) => false,
            (Pages::Only(pages), Some(refused)) => refused.iter().all(|it| pages.contains(*it)),
        };
        let Some(other) = places.iter().find(|it| !lets_in(&it.pages)) else {
            continue;
        };
        has_refused = true;
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
    has_refused
}

/// Returns the comment in the written configuration on `admission.origins`: the position of the first directive that names an
/// origin of the list other than the nginx servers' own origins.
fn comment(
    places: &[PlacePages<'_>],
    origins: &BTreeSet<String>,
    own: &BTreeSet<String>,
    has_refused: bool,
) -> String {
    let names = |place: &&PlacePages<'_>| match &place.pages {
        _ if !place.is_named => false,
        Pages::All => false,
        Pages::Only(pages) => pages
            .iter()
            .any(|it| origins.contains(it) && (place.is_guarded || !own.contains(it))),
    };
    let named = places.iter().find(names);
    // If no directive names an origin of the list, and the gateway refuses no page that nginx admits, the comment cites any
    // directive that lists origins.
    let named = named.or_else(|| places.iter().find(|it| it.is_named && !has_refused));
    match named {
        Some(place) => place.at.place.to_string(),
        None if has_refused && origins.is_empty() => format!("{NO_COMMON}; {LIST}"),
        None if has_refused => format!("pages of the servers themselves; {NO_COMMON}: {LIST}"),
        None if origins.is_empty() => format!("{NO_OTHER}; {LIST}"),
        None => format!("pages of the servers themselves; {NO_OTHER}: {LIST}"),
    }
}

/// Returns the origins made of the nginx servers' own names and ports, since nginx may serve web pages there, too.
fn own_origins(view: &View<'_>, ports: &[ServedPort]) -> BTreeSet<String> {
    let mut own = BTreeSet::new();
    for served in ports {
        let server_names = view.sites.sites[served.site].level.all("server_name");
        let names = server_names.iter().flat_map(|it| it.args());
        let proxied_locations = view
            .proxied_locations()
            .filter(|(it, _)| it.site == served.site);
        let hosts = proxied_locations.filter_map(|(_, rules)| rules.host.map(|(host, _)| host));
        let scheme = if served.encrypted { "https" } else { "http" };
        for name in names.chain(hosts) {
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
            Ok(pattern) if !pattern.is_any() => {
                valid.insert(pattern.to_string());
            }
            _ => report.plain(at, "what is no origin as https://host is not let in"),
        }
    }
    valid
}

/// Returns the pages to which the CORS headers of responses give access, and the directive that sets the header.
fn answered_pages<'a>(
    proxied_location: &ProxiedLocation<'a>,
    variables: &Variables<'a>,
    report: &mut Report,
) -> (Pages, &'a Directive) {
    let own = proxied_location.scope.all("add_header").iter();
    if let Some(header) = own.copied().find(is_cors) {
        return (named_pages(header, variables, report), header);
    }
    let mut preflight = None;
    let mut chosen: Option<(BTreeSet<String>, &Directive)> = None;
    for condition in proxied_location.scope.conditions() {
        let mut headers = condition.block().iter();
        let Some(header) = headers.find(is_cors) else {
            continue;
        };
        match variable_test(condition) {
            Some(("request_method", VariableTest::Is("OPTIONS"))) => {
                preflight = preflight.or(Some(header));
                continue;
            }
            Some(("http_origin", VariableTest::Is(origin))) => {
                let pages = origins_of(&[origin], condition, report);
                let (before, _) = chosen.get_or_insert((BTreeSet::new(), header));
                before.extend(pages);
            }
            _ => {
                report.plain(header, "the origins that this condition lets in are not known: list them in admission.origins");
                chosen.get_or_insert((BTreeSet::new(), header));
            }
        }
    }
    match (chosen, preflight) {
        (Some((origins, header)), _) => (Pages::Only(origins), header),
        // If the only CORS header is that of responses to preflight requests, it counts for all responses.
        (None, Some(header)) => (named_pages(header, variables, report), header),
        (None, None) => (Pages::Only(BTreeSet::new()), proxied_location.at),
    }
}

/// Returns true if a directive sets the CORS header that names the pages which may read a response.
fn is_cors(it: &&Directive) -> bool {
    let name = it.first();
    it.is("add_header") && name.eq_ignore_ascii_case("access-control-allow-origin")
}

/// Returns the origins in the value of a CORS header.
fn named_pages<'a>(header: &'a Directive, variables: &Variables<'a>, report: &mut Report) -> Pages {
    let value = header.arg(1).unwrap_or_default();
    match only_variable(value) {
        _ if value == "*" => Pages::All,
        Some("http_origin") => Pages::All,
        Some(name) => match variables.map(name) {
            Some(map)
                if only_variable(map.source) == Some("http_origin") && map.default.is_empty() =>
            {
                let texts = map
                    .entries
                    .iter()
                    .filter(|it| !it.value.is_empty())
                    .filter_map(|it| match it.key {
                        Key::Text(text) if !text.is_empty() => Some(text),
                        _ => None,
                    });
                if map.entries.iter().any(|it| it.key == Key::Pattern) {
                    report.plain(header, "origins are listed one by one in admission.origins: pages that a pattern lets in are refused");
                }
                Pages::Only(origins_of(&texts.collect::<Vec<_>>(), header, report))
            }
            _ => {
                report.plain(header, "the origins behind this variable are not known: list them in admission.origins");
                Pages::Only(BTreeSet::new())
            }
        },
        None if is_literal(value) => Pages::Only(origins_of(&[value], header, report)),
        None => {
            report.plain(
                header,
                "the origins behind this text are not known: list them in admission.origins",
            );
            Pages::Only(BTreeSet::new())
        }
    }
}
