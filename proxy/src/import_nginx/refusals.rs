//! Locations that refuse all requests. The gateway refuses every path that it does not know, so that they matter only where
//! nginx asks them before the location of an endpoint.

use std::rc::Rc;

use regex::{Regex, RegexBuilder};

use super::scope::{Level, Paths, Scope};
use super::tree::Directive;

/// All of them.
#[derive(Default)]
pub(super) struct Refusals<'a>(Vec<Refusal<'a>>);

struct Refusal<'a> {
    at: &'a Directive,
    paths: Paths<'a>,
    server: Option<Rc<Level<'a>>>,
}

impl<'a> Refusals<'a> {
    pub(super) fn add(&mut self, at: &'a Directive, paths: Paths<'a>, scope: &Scope<'a>) {
        self.0.push(Refusal {
            at,
            paths,
            server: scope.server.clone(),
        });
    }

    /// The location that refuses a path of a server before other locations are looked at, or may do so.
    pub(super) fn of(&self, path: &str, scope: &Scope<'a>) -> Option<&'a Directive> {
        let same_server = |it: &&Refusal<'a>| match (&it.server, &scope.server) {
            (Some(one), Some(other)) => Rc::ptr_eq(one, other),
            _ => true,
        };
        let first = |it: &&Refusal<'a>| match it.paths {
            Paths::Exactly(exact) => exact == path,
            // What is no regular expression here may match there.
            Paths::Matching(pattern) => matching(pattern).is_none_or(|it| it.is_match(path)),
            Paths::Below(_) | Paths::Named => false,
        };
        let mut here = self.0.iter().filter(same_server);
        here.find(first).map(|it| it.at)
    }
}

/// Whether a location denies everybody, and allows nobody before.
pub(super) fn lets_nobody_in(level: &Level<'_>) -> bool {
    let denies = level.all("deny").iter().any(|it| it.first() == "all");
    denies && level.all("allow").is_empty()
}

/// The regular expression of a location, without regard to case.
pub(super) fn matching(pattern: &str) -> Option<Regex> {
    let mut builder = RegexBuilder::new(pattern);
    builder.case_insensitive(true).build().ok()
}
