//! The report of an import: a line for each directive that is not imported, and one for each imported directive that behaves
//! differently.
//!
//! A line contains the position, the name of the directive and a fixed text: never an argument, which may be a secret.

use std::collections::BTreeSet;

use crate::known;
use crate::tree::{Directive, DirectivePosition};
use crate::values::is_relative;

/// The importance of a report line about a directive that is not imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The omission of the directive opens no access that nginx refused.
    Plain,
    /// The omission of the directive may open access that nginx refused; an operator has to check it.
    Security,
}

/// A report line about a directive that is not imported, or is imported with a change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ReportLine {
    place: DirectivePosition,
    directive: String,
    weight: Weight,
    why: String,
}

/// The report lines of an import, sorted by position and without duplicates.
#[derive(Debug, Default)]
pub struct Report {
    leftovers: BTreeSet<ReportLine>,
    differences: BTreeSet<Difference>,
}

/// A report line about a directive that is imported and behaves differently for clients or operators, or about a key of the
/// gateway's configuration that corresponds to no directive.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Difference {
    place: Option<DirectivePosition>,
    name: String,
    what: String,
}

impl Report {
    /// Reports that a directive is not imported, which opens no access.
    pub(crate) fn plain(&mut self, directive: &Directive, why: impl Into<String>) {
        self.note(directive, Weight::Plain, why.into());
    }

    /// Reports that a directive is not imported, which may open access.
    pub(crate) fn security(&mut self, directive: &Directive, why: impl Into<String>) {
        self.note(directive, Weight::Security, why.into());
    }

    /// Reports that a directive is imported, but requests are treated differently in the gateway.
    pub(crate) fn differs(&mut self, directive: &Directive, what: impl Into<String>) {
        self.differences.insert(Difference {
            place: Some(directive.place.clone()),
            name: name(directive),
            what: what.into(),
        });
    }

    /// Reports a directive whose path is relative and is copied unchanged: nginx and the gateway resolve it against different
    /// folders.
    pub(crate) fn path(&mut self, directive: &Directive) {
        if is_relative(directive.first()) {
            self.differs(directive, "is a path without a root: the gateway completes it by its working directory, and nginx by its own prefix. Write the whole path");
        }
    }

    /// Reports a difference that no directive causes, under the section of the gateway's configuration that it concerns.
    pub(crate) fn differs_in(&mut self, section: &str, what: impl Into<String>) {
        self.differences.insert(Difference {
            place: None,
            name: section.to_owned(),
            what: what.into(),
        });
    }

    fn note(&mut self, directive: &Directive, weight: Weight, why: String) {
        self.leftovers.insert(ReportLine {
            place: directive.place.clone(),
            directive: name(directive),
            weight,
            why,
        });
    }

    /// Returns true if some directive was not imported whose omission may open access.
    pub fn has_security(&self) -> bool {
        self.count(Weight::Security) > 0
    }

    /// Returns the number of report lines of a weight about directives that are not imported.
    pub fn count(&self, weight: Weight) -> usize {
        self.leftovers
            .iter()
            .filter(|it| it.weight == weight)
            .count()
    }

    /// Iterates over the report lines about directives that are not imported.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.leftovers.iter().map(|it| {
            let weight = match it.weight {
                Weight::Plain => "",
                Weight::Security => "security: ",
            };
            format!("{}: {}: {weight}{}", it.place, it.directive, it.why)
        })
    }

    /// Iterates over the report lines about directives that are imported and behave differently.
    pub fn differences(&self) -> impl Iterator<Item = String> {
        self.differences.iter().map(|it| match &it.place {
            Some(place) => format!("{place}: {}: {}", it.name, it.what),
            None => format!("{}: {}", it.name, it.what),
        })
    }
}

/// Returns the name of a directive in a form that reveals no secret.
fn name(directive: &Directive) -> String {
    match directive.table {
        // The key of a line of a `map` may be a secret, such as a token.
        Some(table) => format!("line of {table}"),
        None => known::shown(directive.name()).to_owned(),
    }
}
