//! The report of an import: a line for each directive that is not imported, and one for each imported directive that behaves
//! differently.
//!
//! A line contains the position, the name of the directive and a fixed text: never an argument, which may be a secret.

use std::collections::BTreeSet;
use std::fmt;

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

/// A report line about a directive, or about a key of the gateway's configuration that corresponds to no directive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ReportLine {
    place: Option<DirectivePosition>,
    name: String,
    weight: Weight,
    what: String,
}

/// The report lines of an import, sorted by position and without duplicates.
#[derive(Debug, Default)]
pub struct Report {
    leftovers: BTreeSet<ReportLine>,
    /// Lines about directives that are imported and behave differently for clients or operators.
    differences: BTreeSet<ReportLine>,
}

impl Report {
    /// Reports that a directive is not imported, which opens no access.
    pub(crate) fn plain(&mut self, directive: &Directive, why: impl Into<String>) {
        self.leftovers
            .insert(line(directive, Weight::Plain, why.into()));
    }

    /// Reports that a directive is not imported, which may open access.
    pub(crate) fn security(&mut self, directive: &Directive, why: impl Into<String>) {
        self.leftovers
            .insert(line(directive, Weight::Security, why.into()));
    }

    /// Reports that a directive is imported, but requests are treated differently in the gateway.
    pub(crate) fn differs(&mut self, directive: &Directive, what: impl Into<String>) {
        self.differences
            .insert(line(directive, Weight::Plain, what.into()));
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
        self.differences.insert(ReportLine {
            place: None,
            name: section.to_owned(),
            weight: Weight::Plain,
            what: what.into(),
        });
    }

    /// Returns true if some directive was not imported whose omission may open access.
    pub fn has_security(&self) -> bool {
        self.count(Weight::Security) > 0
    }

    /// Returns the number of report lines of a weight about directives that are not imported.
    pub fn count(&self, weight: Weight) -> usize {
        let lines = self.leftovers.iter();
        lines.filter(|it| it.weight == weight).count()
    }

    /// Iterates over the report lines about directives that are not imported.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.leftovers.iter().map(ToString::to_string)
    }

    /// Iterates over the report lines about directives that are imported and behave differently.
    pub fn differences(&self) -> impl Iterator<Item = String> {
        self.differences.iter().map(ToString::to_string)
    }
}

impl fmt::Display for ReportLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        let weight = if self.weight == Weight::Security {
            "security: "
        } else {
            ""
        };
        write!(f, "{}: {weight}{}", self.name, self.what)
    }
}

/// A line about a directive, whose name is shown in a form that reveals no secret.
fn line(directive: &Directive, weight: Weight, what: String) -> ReportLine {
    let name = match directive.table {
        // The key of a line of a `map` may be a secret, such as a token.
        Some(table) => format!("line of {table}"),
        None => known::shown(directive.name()).to_owned(),
    };
    let place = Some(directive.place.clone());
    ReportLine {
        place,
        name,
        weight,
        what,
    }
}
