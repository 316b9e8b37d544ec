//! What a scenario gives back. The report renders it without knowing the scenario.

use serde::{Deserialize, Serialize};

use super::budget::Verdict;
use super::series::{Numbers, Series};
use super::table::Table;
use crate::chart::Chart;

/// The answer to one question.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Section {
    pub(crate) tables: Vec<Table>,
    pub(crate) charts: Vec<Chart>,
    pub(crate) verdicts: Vec<Verdict>,
    /// One line each, under the tables.
    pub(crate) notes: Vec<String>,
    /// What could not be compared with, and why.
    pub(crate) missing: Vec<String>,
    /// Any of them fails the run.
    pub(crate) failures: Vec<String>,
    /// Every measurement.
    pub(crate) series: Vec<Series>,
    /// Of what is added now.
    #[serde(skip)]
    pub(crate) repetition: usize,
}

static NOTHING: Series = Series {
    name: String::new(),
    rows: Vec::new(),
};

impl Section {
    /// Adds a measurement to a series, to its row of these labels. Either may be new.
    pub(crate) fn add<L: Into<String>>(
        &mut self,
        series: &str,
        labels: impl IntoIterator<Item = L>,
        numbers: Numbers,
    ) {
        let known = self.series.iter().position(|known| known.name == series);
        let at = known.unwrap_or_else(|| {
            let (name, rows) = (series.to_owned(), Vec::new());
            self.series.push(Series { name, rows });
            self.series.len() - 1
        });
        let labels = labels.into_iter().map(Into::into).collect();
        self.series[at].add(labels, numbers.in_repetition(self.repetition));
    }

    /// Without rows where nothing was measured.
    pub(crate) fn of(&self, series: &str) -> &Series {
        let known = self.series.iter().find(|known| known.name == series);
        known.unwrap_or(&NOTHING)
    }

    /// Adds a line under the tables; once, however often it is told.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        once(&mut self.notes, text.into());
    }

    pub(crate) fn miss(&mut self, what: impl Into<String>) {
        once(&mut self.missing, what.into());
    }

    pub(crate) fn fail(&mut self, why: impl Into<String>) {
        once(&mut self.failures, why.into());
    }
}

fn once(all: &mut Vec<String>, text: String) {
    if !all.contains(&text) {
        all.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_failure_is_told_once() {
        let mut section = Section::default();
        section.fail("401: status 500");
        section.fail("401: status 500");
        assert_eq!(section.failures, ["401: status 500"]);
    }
}
