//! The result of a scenario. The report renders it without knowing the scenario.

use serde::{Deserialize, Serialize};

use super::budget::Verdict;
use super::series::{Numbers, Series};
use super::table::Table;
use crate::chart::Chart;

/// Tables, charts, verdicts and measurements that answer the question of a scenario.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Section {
    pub(crate) tables: Vec<Table>,
    pub(crate) charts: Vec<Chart>,
    pub(crate) verdicts: Vec<Verdict>,
    /// Notes below the tables, a line each.
    pub(crate) notes: Vec<String>,
    /// Programs that could not be compared with, and the reasons.
    pub(crate) missing: Vec<String>,
    /// Failures; any of them fails the run.
    pub(crate) failures: Vec<String>,
    /// All measurements.
    pub(crate) series: Vec<Series>,
    /// Number of the repetition to which added measurements belong.
    #[serde(skip)]
    pub(crate) repetition: usize,
}

static NOTHING: Series = Series {
    name: String::new(),
    rows: Vec::new(),
};

impl Section {
    /// Adds a measurement to the row of a series with these labels. Series and row are created if they do not exist.
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

    /// The series with a name; empty if it was not measured.
    pub(crate) fn of(&self, series: &str) -> &Series {
        let known = self.series.iter().find(|known| known.name == series);
        known.unwrap_or(&NOTHING)
    }

    /// Adds a note below the tables; a repeated note is added once.
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
