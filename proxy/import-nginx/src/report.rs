//! The directives of an nginx configuration that are not carried over, a line each.
//!
//! A line has the place, the name of the directive and a fixed text: never an argument, which may be a secret.

use std::collections::BTreeSet;

use crate::known;
use crate::tree::{Directive, Place};

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

/// All leftovers, by their place, each once.
#[derive(Debug, Default)]
pub struct Report(BTreeSet<Leftover>);

impl Report {
    /// Notes a directive without which nothing is more open than with nginx.
    pub(crate) fn plain(&mut self, directive: &Directive, why: impl Into<String>) {
        self.note(directive, Weight::Plain, why.into());
    }

    /// Notes a directive without which more may be open than with nginx.
    pub(crate) fn security(&mut self, directive: &Directive, why: impl Into<String>) {
        self.note(directive, Weight::Security, why.into());
    }

    fn note(&mut self, directive: &Directive, weight: Weight, why: String) {
        let name = match directive.table {
            // The key of a line may be a secret.
            Some(table) => format!("line of {table}"),
            None => known::shown(directive.name()).to_owned(),
        };
        self.0.insert(Leftover {
            place: directive.place.clone(),
            directive: name,
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
        self.0.iter().filter(|it| it.weight == weight).count()
    }

    /// The lines.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|it| {
            let weight = match it.weight {
                Weight::Plain => "",
                Weight::Security => "security: ",
            };
            format!("{}: {}: {weight}{}", it.place, it.directive, it.why)
        })
    }
}
