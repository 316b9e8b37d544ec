//! The report of an import: a line for each directive that is not imported, and one for each imported directive that behaves
//! differently.
//!
//! A line contains the position, the name of the directive and a fixed text: never an argument, which may be a secret.

use std::collections::BTreeSet;

use crate::known;
use crate::tree::{Directive, Place};
use crate::values::is_relative;

/// The consequence of a directive that is not imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The line opens no access that nginx refused.
    Plain,
    /// Access that nginx refused may be open, or an operator has to check whether it is.
    Security,
}

/// A directive that is not imported, or is imported with a change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Leftover {
    place: Place,
    directive: String,
    weight: Weight,
    why: String,
}

/// All leftovers, sorted by position and without duplicates, and the differences.
#[derive(Debug, Default)]
pub struct Report {
    leftovers: BTreeSet<Leftover>,
    differences: BTreeSet<Difference>,
}

/// A directive that is imported and behaves differently for clients or operators; or a key of the gateway that no directive
/// corresponds to.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Difference {
    place: Option<Place>,
    name: String,
    what: String,
}

impl Report {
    /// Reports a directive whose loss opens no access.
    pub(crate) fn plain(&mut self, directive: &Directive, why: impl Into<String>) {
        self.note(directive, Weight::Plain, why.into());
    }

    /// Reports a directive whose loss may open access.
    pub(crate) fn security(&mut self, directive: &Directive, why: impl Into<String>) {
        self.note(directive, Weight::Security, why.into());
    }

    /// Reports that a directive is imported and that requests are still treated differently.
    pub(crate) fn differs(&mut self, directive: &Directive, what: impl Into<String>) {
        self.differences.insert(Difference {
            place: Some(directive.place.clone()),
            name: name(directive),
            what: what.into(),
        });
    }

    /// Reports a path that is copied unchanged, if nginx and the gateway resolve it in different folders.
    pub(crate) fn path(&mut self, directive: &Directive) {
        if is_relative(directive.first()) {
            self.differs(directive, "is a path without a root: the gateway completes it by its working directory, and nginx by its own prefix. Write the whole path");
        }
    }

    /// Reports a difference that no directive causes, by the section of the gateway's configuration.
    pub(crate) fn differs_in(&mut self, section: &str, what: impl Into<String>) {
        self.differences.insert(Difference {
            place: None,
            name: section.to_owned(),
            what: what.into(),
        });
    }

    fn note(&mut self, directive: &Directive, weight: Weight, why: String) {
        self.leftovers.insert(Leftover {
            place: directive.place.clone(),
            directive: name(directive),
            weight,
            why,
        });
    }

    /// Returns true if a directive is lost whose loss may open access.
    pub fn has_security(&self) -> bool {
        self.count(Weight::Security) > 0
    }

    /// The number of leftovers of a weight.
    pub fn count(&self, weight: Weight) -> usize {
        self.leftovers
            .iter()
            .filter(|it| it.weight == weight)
            .count()
    }

    /// The report lines about directives that are not imported.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.leftovers.iter().map(|it| {
            let weight = match it.weight {
                Weight::Plain => "",
                Weight::Security => "security: ",
            };
            format!("{}: {}: {weight}{}", it.place, it.directive, it.why)
        })
    }

    /// The lines about directives that are imported and behave differently.
    pub fn differences(&self) -> impl Iterator<Item = String> {
        self.differences.iter().map(|it| match &it.place {
            Some(place) => format!("{place}: {}: {}", it.name, it.what),
            None => format!("{}: {}", it.name, it.what),
        })
    }
}

/// The name of a directive as a report may show it.
fn name(directive: &Directive) -> String {
    match directive.table {
        // The key in a line of a map may be a secret.
        Some(table) => format!("line of {table}"),
        None => known::shown(directive.name()).to_owned(),
    }
}
