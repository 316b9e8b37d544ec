//! An nginx configuration in the form that the rest of the importer reads, with the common values of its exposures.
//!
//! nginx decides most things for each location, the gateway once. Where locations differ, the strictest value is taken
//! and the difference is reported with both places.

use std::collections::BTreeSet;

use tooldock_workers::names::NamespaceName;

use super::gateway_rules::GatewayRules;
use super::guards::Token;
use super::report::Report;
use super::rules::Rules;
use super::sites::{Exposure, Sites};
use super::tree::Directive;
use super::variables::Variables;

/// Everything that has been read.
pub(super) struct View<'a> {
    pub(super) gateway: &'a GatewayRules,
    pub(super) sites: Sites<'a>,
    pub(super) variables: Variables<'a>,
    /// The requests that conditions admit, for each exposure.
    pub(super) rules: Vec<Rules<'a>>,
    /// The namespace of each exposure; `None` if no namespace of ours reaches it.
    pub(super) names: Vec<Option<NamespaceName>>,
}

/// The `upstream` of that name.
pub(super) fn pool_named<'a>(sites: &Sites<'a>, name: &str) -> Option<&'a Directive> {
    let mut pools = sites.http.all("upstream").iter().copied();
    pools.find(|it| it.first() == name)
}

impl<'a> View<'a> {
    /// Each exposure with the rules of its conditions.
    pub(super) fn exposures(&self) -> impl Iterator<Item = (&Exposure<'a>, &Rules<'a>)> {
        self.sites.exposures.iter().zip(&self.rules)
    }

    /// The tokens that are let in anywhere.
    pub(super) fn tokens(&self) -> impl Iterator<Item = &Token<'a>> {
        let rules = self.rules.iter().filter_map(|it| it.tokens.as_ref());
        rules.flat_map(|(tokens, _)| tokens)
    }

    /// All namespaces.
    pub(super) fn namespaces(&self) -> BTreeSet<NamespaceName> {
        self.names.iter().flatten().cloned().collect()
    }

    /// The strictest value of a setting, with its directive. Differences are plain: nothing is more open.
    pub(super) fn strictest<T: Ord + Copy>(
        &self,
        report: &mut Report,
        what: &str,
        value: impl Fn(&Exposure<'a>) -> Option<(T, &'a Directive)>,
    ) -> Option<(T, &'a Directive)> {
        let found: Vec<_> = self.sites.exposures.iter().filter_map(value).collect();
        let (least, at) = *found.iter().min_by_key(|(value, _)| *value)?;
        for (other, directive) in found {
            if other != least {
                let place = &at.place;
                report.plain(
                    directive,
                    format!("{what} is one for all: the smaller value of {place} is taken"),
                );
            }
        }
        Some((least, at))
    }
}
