//! `admission.origins`: web pages that may call.

use std::collections::BTreeSet;

use tooldock_filters::origin::OriginPattern;

use crate::conditions::{Test, asked};
use crate::report::Report;
use crate::sites::Exposure;
use crate::tree::Directive;
use crate::values::{is_literal, only_variable};
use crate::variables::{Key, Variables};
use crate::view::View;
use crate::yaml_text::{Map, Node};

/// The web pages that an exposure admits.
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

/// Adds the web pages that may call: those that conditions admit, or those that headers of answers name.
pub(crate) fn write(view: &View<'_>, admission: &mut Map, report: &mut Report) {
    let mut all: Option<(Pages, &Directive)> = None;
    let mut guarded = false;
    let mut said: Option<&Directive> = None;
    for (exposure, rules) in view.exposures() {
        let (pages, at) = match &rules.origins {
            Some((origins, at)) => {
                guarded = true;
                (Pages::Only(origins_of(origins, at, report)), *at)
            }
            None => answered_pages(exposure, &view.variables, report),
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
        None => "nginx answers no page of another origin; list the pages that may call, as https://chat.example.com".to_owned(),
    };
    admission.add_with("origins", Node::list(origins), comment);
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

/// The pages that may read answers by the headers of the answers.
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
        // If only answers to preflights name a page, that page may read other answers, too.
        (None, Some(header)) => (named_pages(header, variables, report), header),
        (None, None) => (Pages::Only(BTreeSet::new()), exposure.at),
    }
}

/// Returns true if a directive names the pages that may read an answer.
fn is_cors(it: &&Directive) -> bool {
    let name = it.first();
    it.is("add_header") && name.eq_ignore_ascii_case("access-control-allow-origin")
}

/// The pages that a header names.
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
