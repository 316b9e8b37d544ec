//! What a scenario gives back. The report renders it without knowing the scenario.

use serde::{Deserialize, Serialize};

use super::budget::Verdict;
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
    /// Every sample, as the scenario keeps it.
    pub(crate) samples: serde_json::Value,
}

/// Cells as they are shown.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) caption: Option<String>,
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// What a cell shows where there is no value.
const NONE: &str = "-";

impl Table {
    pub(crate) fn new<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Self {
        Self {
            caption: None,
            header: header.map(str::to_owned).to_vec(),
            rows: Vec::new(),
        }
    }

    /// With a line above it.
    pub(crate) fn captioned(self, caption: impl Into<String>) -> Self {
        Self {
            caption: Some(caption.into()),
            ..self
        }
    }

    /// Adds a row; what it has too little is empty, what it has too much is not shown.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let empty = std::iter::repeat_with(|| NONE.to_owned());
        let cells = cells.into_iter().chain(empty).take(self.header.len());
        self.rows.push(cells.collect());
    }
}

/// A number with so many digits behind the point.
pub(crate) fn cell(value: impl Into<Option<f64>>, digits: usize) -> String {
    value
        .into()
        .map_or_else(|| NONE.to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_as_many_cells_as_the_header() {
        let mut table = Table::new(["who", "us", "x"]).captioned("above");
        table.row(["nginx".to_owned(), cell(1.26, 1)]);
        table.row(["a", "b", "c", "d"].map(str::to_owned));
        assert_eq!(table.rows, [["nginx", "1.3", "-"], ["a", "b", "c"]]);
        assert_eq!(cell(None, 2), "-");
    }
}
