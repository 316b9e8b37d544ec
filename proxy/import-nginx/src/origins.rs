//! `admission.origins`: the origins of web pages that may send requests.

use std::collections::BTreeSet;

use tooldock_filters::host::HostPattern;
use tooldock_filters::origin::OriginPattern;

use crate::conditions::{Test, asked};
use crate::listeners::ServedPort;
use crate::report::Report;
use crate::sites::Exposure;
use crate::tree::Directive;
use crate::values::{is_literal, only_variable};
use crate::variables::{Key, Variables};
use crate::view::View;
use crate::yaml_text::{Map, Node};

/// Comment in the configuration for origins that no directive names.
const NO_OTHER: &str = "nginx answers no page of another origin";
const LIST: &str = "list the pages that may call, as https://chat.example.com";

/// The origins of the web pages that an exposure admits.
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

/// Adds the admitted origins: those that conditions admit, or else those that answer headers name, with the servers'
/// own.
pub(crate) fn write(
    view: &View<'_>,
    ports: &[ServedPort],
    admission: &mut Map,
    report: &mut Report,
) {
    let own = own_origins(view, ports);
    let mut unguarded = false;
    let mut all: Option<(Pages, &Directive)> = None;
    let mut guarded = false;
    let mut said: Option<&Directive> = None;
    for (exposure, rules) in view.exposures() {
        let (pages, at) = match &rules.origins {
            Some((origins, at)) => {
                guarded = true;
                (Pages::Only(origins_of(origins, at, report)), *at)
            }
            None => {
                unguarded = true;
                match answered_pages(exposure, &view.variables, report) {
                    (Pages::Only(pages), at) => (Pages::Only(&pages | &own), at),
                    other => other,
                }
            }
        };
        if !std::ptr::eq(at, exposure.at) {
            said = said.or(Some(at));
        }
        all = Some(match all {
            None => (pages, at),
            Some((before, first)) => {
                if before != pages {
                    let difference = format!(
                        "lets in other web pages than {} does: only those that both let in are let in",
                        first.place
                    );
                    match guarded {
                        true => report.security(at, difference),
                        false => report.plain(at, difference),
                    }
                }
                (before.and(&pages), first)
            }
        });
    }
    let Some((Pages::Only(origins), _)) = all else {
        return;
    };
    let comment = match said {
        Some(at) => at.place.to_string(),
        None if origins.is_empty() => format!("{NO_OTHER}; {LIST}"),
        None => format!("pages of the servers themselves; {NO_OTHER}: {LIST}"),
    };
    if unguarded {
        report.differs_in("admission", "requests of web pages of other origins get 403 origin_not_allowed, where nginx passes them on: add the pages that may call (origins)");
    }
    admission.add_with("origins", Node::list(origins), comment);
}

/// The origins of the servers by their names and ports, for pages that nginx serves beside the MCP servers.
fn own_origins(view: &View<'_>, ports: &[ServedPort]) -> BTreeSet<String> {
    let mut own = BTreeSet::new();
    for served in ports {
        let server_names = view.sites.sites[served.site].level.all("server_name");
        let names = server_names.iter().flat_map(|it| it.args());
        let exposures = view.exposures().filter(|(it, _)| it.site == served.site);
        let hosts = exposures.filter_map(|(_, rules)| rules.host.map(|(host, _)| host));
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

/// The pages that may read answers, by the headers of the answers.
fn answered_pages<'a>(
    exposure: &Exposure<'a>,
    variables: &Variables<'a>,
    report: &mut Report,
) -> (Pages, &'a Directive) {
    let own = exposure.scope.all("add_header").iter();
    if let Some(header) = own.copied().find(is_cors) {
        return (named_pages(header, variables, report), header);
    }
    let mut preflight = None;
    let mut chosen: Option<(BTreeSet<String>, &Directive)> = None;
    for condition in exposure.scope.conditions() {
        let mut headers = condition.block().iter();
        let Some(header) = headers.find(is_cors) else {
            continue;
        };
        match asked(condition) {
            Some(("request_method", Test::Is("OPTIONS"))) => {
                preflight = preflight.or(Some(header));
                continue;
            }
            Some(("http_origin", Test::Is(origin))) => {
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
        // A page that only answers to preflights name may read other answers, too.
        (None, Some(header)) => (named_pages(header, variables, report), header),
        (None, None) => (Pages::Only(BTreeSet::new()), exposure.at),
    }
}

/// Returns true if a directive sets the header that names the pages which may read an answer.
fn is_cors(it: &&Directive) -> bool {
    let name = it.first();
    it.is("add_header") && name.eq_ignore_ascii_case("access-control-allow-origin")
}

/// The pages that the value of a CORS header names.
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
