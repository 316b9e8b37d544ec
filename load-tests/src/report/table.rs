//! Tables: rows of a series, with a column for each number that is shown.

use serde::{Deserialize, Serialize};

use super::series::Row;

/// Text of a cell without a value.
const NONE: &str = "-";

/// A table of formatted cells.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) caption: Option<String>,
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// A column: its header, and a function that formats its cell for a row.
pub(crate) struct Column<'a> {
    header: &'static str,
    cell: Box<dyn Fn(&Row) -> String + 'a>,
}

impl Table {
    pub(crate) fn new<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Self {
        Self {
            header: header.map(str::to_owned).to_vec(),
            ..Self::default()
        }
    }

    /// Creates a table with a line for each row. The first columns are the row's labels, as many as `labels` has names.
    pub(crate) fn of<'r, const COLUMNS: usize>(
        rows: impl IntoIterator<Item = &'r Row>,
        labels: &[&str],
        columns: [Column<'_>; COLUMNS],
    ) -> Self {
        let headers = columns.iter().map(|column| column.header);
        let mut table = Self {
            header: labels
                .iter()
                .copied()
                .chain(headers)
                .map(str::to_owned)
                .collect(),
            ..Self::default()
        };
        for row in rows {
            let labels = row.labels.iter().take(labels.len()).cloned();
            table.row(labels.chain(columns.iter().map(|column| (column.cell)(row))));
        }
        table
    }

    /// Adds a caption above the table.
    pub(crate) fn captioned(self, caption: impl Into<String>) -> Self {
        Self {
            caption: Some(caption.into()),
            ..self
        }
    }

    /// Adds a row. Missing cells are empty; surplus cells are dropped.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let empty = std::iter::repeat_with(|| NONE.to_owned());
        let cells = cells.into_iter().chain(empty).take(self.header.len());
        self.rows.push(cells.collect());
    }
}

/// A column with the median of a number, with `digits` decimals.
pub(crate) fn middle(header: &'static str, name: &'static str, digits: usize) -> Column<'static> {
    figure(header, digits, move |row| row.median(name))
}

/// A column with the largest value of a number.
pub(crate) fn most(header: &'static str, name: &'static str, digits: usize) -> Column<'static> {
    figure(header, digits, move |row| row.most(name))
}

/// A column with the smallest value of a number.
pub(crate) fn least(header: &'static str, name: &'static str, digits: usize) -> Column<'static> {
    figure(header, digits, move |row| Some(row.spread(name)?.0))
}

/// A column with the sum of several numbers over all measurements.
pub(crate) fn sum(header: &'static str, names: &'static [&'static str]) -> Column<'static> {
    figure(header, 0, move |row| {
        Some(names.iter().map(|name| row.sum(name)).sum())
    })
}

/// A column with the number of measurements.
pub(crate) fn times(header: &'static str) -> Column<'static> {
    figure(header, 0, |row| Some(row.times() as f64))
}

/// A column with the smallest and the largest value of a number.
pub(crate) fn range(header: &'static str, name: &'static str) -> Column<'static> {
    let cell = move |row: &Row| {
        let spread = row.spread(name);
        spread.map_or_else(
            || NONE.to_owned(),
            |(least, most)| format!("{least:.2} .. {most:.2}"),
        )
    };
    let cell = Box::new(cell);
    Column { header, cell }
}

/// A column with any number computed from a row.
pub(crate) fn figure<'a>(
    header: &'static str,
    digits: usize,
    of: impl Fn(&Row) -> Option<f64> + 'a,
) -> Column<'a> {
    let cell = Box::new(move |row: &Row| cell(of(row), digits));
    Column { header, cell }
}

/// Formats a number with `digits` decimals.
pub(crate) fn cell(value: impl Into<Option<f64>>, digits: usize) -> String {
    let value = value.into();
    value.map_or_else(|| NONE.to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Numbers, Section};

    #[test]
    fn rows_have_as_many_cells_as_the_header() {
        let mut table = Table::new(["who", "us", "x"]).captioned("above");
        table.row(["nginx".to_owned(), cell(1.26, 1)]);
        table.row(["a", "b", "c", "d"].map(str::to_owned));
        assert_eq!(table.rows, [["nginx", "1.3", "-"], ["a", "b", "c"]]);
        assert_eq!(cell(None, 2), "-");
    }

    #[test]
    fn a_column_shows_what_is_asked_of_all_repetitions() {
        let mut section = Section::default();
        for us in [1.0, 8.0, 3.0] {
            section.add("calls", ["a", "hidden"], Numbers::one("us", us));
        }
        section.add("calls", ["b", "hidden"], Numbers::default());
        let columns = [
            times("times"),
            middle("us", "us", 1),
            least("least", "us", 0),
            most("most", "us", 0),
            range("from .. to", "us"),
            sum("all", &["us", "none"]),
            figure("twice", 0, |row| Some(row.median("us")? * 2.0)),
        ];
        let table = Table::of(&section.of("calls").rows, &["who"], columns);
        assert_eq!(
            table.header,
            [
                "who",
                "times",
                "us",
                "least",
                "most",
                "from .. to",
                "all",
                "twice"
            ]
        );
        assert_eq!(
            table.rows[0],
            ["a", "3", "3.0", "1", "8", "1.00 .. 8.00", "12", "6"]
        );
        assert_eq!(table.rows[1], ["b", "1", "-", "-", "-", "-", "0", "-"]);
    }
}
