//! The directives of an nginx configuration that are not carried over, a line each, and the differences in behaviour of
//! those that are.
//!
//! A line has the place, the name of the directive and a fixed text: never an argument, which may be a secret.

use std::collections::BTreeSet;

use crate::known;
use crate::tree::{Directive, Place};
use crate::values::is_relative;

/// The loss that a leftover means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Nothing is open that nginx kept closed.
    Plain,
    /// Access would be open that nginx kept closed, or an operator has to check if it would.
    Security,
}

/// A directive that is not carried over, or not as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Leftover {
    place: Place,
    directive: String,
    weight: Weight,
    why: String,
}

/// All leftovers, by their place, each once, and the differences of the rest.
#[derive(Debug, Default)]
pub struct Report {
    leftovers: BTreeSet<Leftover>,
    differences: BTreeSet<Difference>,
}

/// A directive that is carried over, with a difference in behaviour that clients or operators notice; or a key of the
/// gateway without a directive.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Difference {
    place: Option<Place>,
    name: String,
    what: String,
}

impl Report {
    /// Notes a directive without which nothing is more open than with nginx.
    pub(crate) fn plain(&mut self, directive: &Directive, why: impl Into<String>) {
        self.note(directive, Weight::Plain, why.into());
    }

    /// Notes a directive without which more may be open than with nginx.
    pub(crate) fn security(&mut self, directive: &Directive, why: impl Into<String>) {
        self.note(directive, Weight::Security, why.into());
    }

    /// Notes that a directive is carried over and that requests are treated differently all the same.
    pub(crate) fn differs(&mut self, directive: &Directive, what: impl Into<String>) {
        self.differences.insert(Difference {
            place: Some(directive.place.clone()),
            name: name(directive),
            what: what.into(),
        });
    }

    /// Notes a path that is copied as it is, if nginx and the gateway look for the file in different folders.
    pub(crate) fn path(&mut self, directive: &Directive) {
        if is_relative(directive.first()) {
            self.differs(directive, "is a path without a root: the gateway completes it by its working directory, and nginx by its own prefix. Write the whole path");
        }
    }

    /// Notes a difference that no directive makes, by the section of the gateway's configuration.
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

    /// Returns true if a security directive would be dropped.
    pub fn has_security(&self) -> bool {
        self.count(Weight::Security) > 0
    }

    /// The number of leftovers with that weight.
    pub fn count(&self, weight: Weight) -> usize {
        self.leftovers
            .iter()
            .filter(|it| it.weight == weight)
            .count()
    }

    /// The lines.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.leftovers.iter().map(|it| {
            let weight = match it.weight {
                Weight::Plain => "",
                Weight::Security => "security: ",
            };
            format!("{}: {}: {weight}{}", it.place, it.directive, it.why)
        })
    }

    /// The lines about directives that are carried over and behave differently.
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
        // The key of a line may be a secret.
        Some(table) => format!("line of {table}"),
        None => known::shown(directive.name()).to_owned(),
    }
}
