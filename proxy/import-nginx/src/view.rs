//! The parsed nginx configuration, as the other modules read it to write the gateway's configuration; and settings that all
//! locations share.
//!
//! nginx has most settings per location, the gateway has one for all. If locations differ, the strictest value is used and the
//! difference is reported with both positions. Of the limits on bodies, the largest is used (`sizes`).

use std::collections::BTreeSet;

use tooldock_base::names::NamespaceName;

use crate::gateway_rules::GatewayRules;
use crate::report::Report;
use crate::rules::Rules;
use crate::sites::{ProxiedLocation, Sites};
use crate::tree::Directive;
use crate::variables::Variables;

/// The parsed nginx configuration, with the conditions and namespaces of its proxied locations.
pub(crate) struct View<'a> {
    pub(crate) gateway: &'a GatewayRules,
    pub(crate) sites: Sites<'a>,
    pub(crate) variables: Variables<'a>,
    /// The conditions of each proxied location, in the order of `sites.locations`.
    pub(crate) rules: Vec<Rules<'a>>,
    /// The namespace of each proxied location; `None` if no namespace of the gateway corresponds to it.
    pub(crate) names: Vec<Option<NamespaceName>>,
}

/// Returns the `upstream` block of this name.
pub(crate) fn pool_named<'a>(sites: &Sites<'a>, name: &str) -> Option<&'a Directive> {
    let mut pools = sites.http.all("upstream").iter().copied();
    pools.find(|it| it.first() == name)
}

impl<'a> View<'a> {
    /// Iterates over the proxied locations, each with its conditions.
    pub(crate) fn locations(&self) -> impl Iterator<Item = (&ProxiedLocation<'a>, &Rules<'a>)> {
        self.sites.locations.iter().zip(&self.rules)
    }

    /// Returns the namespaces of all proxied locations.
    pub(crate) fn namespaces(&self) -> BTreeSet<NamespaceName> {
        self.names.iter().flatten().cloned().collect()
    }

    /// Returns the strictest value of a setting over all proxied locations, with its directive. Differences between locations are
    /// reported; they open no access.
    pub(crate) fn strictest<T: Ord + Copy>(
        &self,
        report: &mut Report,
        what: &str,
        value: impl Fn(&ProxiedLocation<'a>) -> Option<(T, &'a Directive)>,
    ) -> Option<(T, &'a Directive)> {
        let found: Vec<_> = self.sites.locations.iter().filter_map(value).collect();
        let (least, at) = *found.iter().min_by_key(|(value, _)| *value)?;
        for (other, directive) in found {
            if other != least {
                let place = &at.place;
                let why = format!("{what} is one for all: the smaller value of {place} is taken");
                report.plain(directive, why);
            }
        }
        Some((least, at))
    }
}
