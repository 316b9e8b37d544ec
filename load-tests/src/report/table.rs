//! Tables of formatted cells.

use serde::{Deserialize, Serialize};

/// Text of a cell without a value.
const NONE: &str = "-";

/// A table of formatted cells.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) caption: Option<String>,
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Self {
        Self {
            header: header.map(str::to_owned).to_vec(),
            ..Self::default()
        }
    }

    /// Adds a row. Missing cells are empty; surplus cells are dropped.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let empty = std::iter::repeat_with(|| NONE.to_owned());
        let cells = cells.into_iter().chain(empty).take(self.header.len());
        self.rows.push(cells.collect());
    }
}

/// Formats a number with `digits` decimals.
pub(crate) fn cell(value: impl Into<Option<f64>>, digits: usize) -> String {
    let value = value.into();
    value.map_or_else(|| NONE.to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_as_many_cells_as_the_header() {
        let mut table = Table::new(["who", "us", "x"]);
        table.row(["nginx".to_owned(), cell(1.26, 1)]);
        table.row(["a", "b", "c", "d"].map(str::to_owned));
        assert_eq!(table.rows, [["nginx", "1.3", "-"], ["a", "b", "c"]]);
        assert_eq!(cell(None, 2), "-");
    }
}
