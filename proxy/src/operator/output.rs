//! Output of commands: tables, colours on a terminal, JSON. Texts come from tools, clients and configurations. Therefore control
//! characters are escaped everywhere; otherwise such a text could control the user's terminal.

use std::io::{IsTerminal as _, Write as _};

use serde::Serialize;
use tooldock_process::child::output::printable_text;
use unicode_width::UnicodeWidthStr as _;

/// Colour of a table cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Colour {
    /// The default colour of the terminal, for text without a special meaning.
    #[default]
    Plain,
    /// Green, for working states.
    Green,
    /// Yellow, for states that work in part or do not work yet.
    Yellow,
    /// Red, for failed states.
    Red,
    /// Dimmed, for less important text.
    Dim,
}

impl Colour {
    fn code(self) -> Option<&'static str> {
        Some(match self {
            Self::Plain => return None,
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Red => "31",
            Self::Dim => "2",
        })
    }

    /// The colour for the state of a namespace, a server or a backend.
    pub(crate) fn of_state(state: &str) -> Self {
        match state {
            "ready" | "running" | "up" | "idle" | "complete" => Self::Green,
            "empty" => Self::Dim,
            "failed" | "crash_loop" | "stopped" | "rejected" | "down" => Self::Red,
            _ => Self::Yellow,
        }
    }
}

/// Text for standard output. It contains colours only if standard output is a terminal.
#[derive(Debug, Default)]
pub(crate) struct TerminalText {
    text: String,
    coloured: bool,
}

impl TerminalText {
    /// An empty text. It will contain colours if standard output is a terminal that supports them and `NO_COLOR` is not set.
    pub(crate) fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|it| it == "dumb");
        Self {
            text: String::new(),
            coloured: std::io::stdout().is_terminal() && !refused && !dumb,
        }
    }

    /// Adds a line to the text. Control characters in it are escaped.
    pub(crate) fn push(&mut self, line: impl AsRef<str>) {
        self.text.push_str(&printable_text(line.as_ref()));
        self.text.push('\n');
    }

    /// Adds a table with a line of column titles. Each column is as wide as its widest cell.
    pub(crate) fn table<const N: usize>(&mut self, titles: [&str; N], rows: &[[Cell; N]]) {
        let titles = titles.map(|title| Cell::new(title).coloured(Colour::Dim));
        let all = || std::iter::once(&titles).chain(rows);
        let widths: [usize; N] = std::array::from_fn(|column| {
            let widths = all().map(|row| row[column].text.width());
            widths.max().unwrap_or_default()
        });
        for row in all() {
            let last = row.iter().rposition(|cell| !cell.text.is_empty());
            for (column, cell) in row.iter().enumerate().take(last.map_or(0, |it| it + 1)) {
                self.paint(cell);
                if Some(column) != last {
                    let gap = widths[column] - cell.text.width() + 2;
                    self.text.extend(std::iter::repeat_n(' ', gap));
                }
            }
            self.text.push('\n');
        }
    }

    fn paint(&mut self, cell: &Cell) {
        match cell.colour.code().filter(|_| self.coloured) {
            Some(code) => {
                self.text.push_str("\x1b[");
                self.text.push_str(code);
                self.text.push('m');
                self.text.push_str(&cell.text);
                self.text.push_str("\x1b[0m");
            }
            None => self.text.push_str(&cell.text),
        }
    }

    /// Returns the complete text for standard output.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// A cell of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    colour: Colour,
}

impl Cell {
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self {
            text: printable_text(text.as_ref()).replace('\t', " "),
            colour: Colour::Plain,
        }
    }

    #[must_use]
    pub(crate) fn coloured(mut self, colour: Colour) -> Self {
        self.colour = colour;
        self
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

/// A value as indented JSON with a line break at its end.
pub(crate) fn json(value: &impl Serialize) -> String {
    // Serialization cannot fail: answers contain only texts and numbers.
    safe_json(&serde_json::to_string_pretty(value).unwrap_or_default()) + "\n"
}

/// A value as one line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    safe_json(&serde_json::to_string(value).unwrap_or_default()) + "\n"
}

/// Escapes all characters of a JSON text that control a terminal. JSON itself escapes only some of them.
fn safe_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        let shown = printable_text(character.encode_utf8(&mut [0; 4]));
        match character == '\n' || shown.chars().eq([character]) {
            true => text.push(character),
            false => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    text
}

/// The text with all control characters escaped except line breaks.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines = text.split('\n').map(|line| {
        let line = line.strip_suffix('\r').unwrap_or(line);
        printable_text(line)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The first line of a text, at most `width` characters long.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    let line = text.trim().lines().next().unwrap_or_default().trim_end();
    match line.char_indices().nth(width) {
        None => line.to_owned(),
        Some(_) => line.chars().take(width - 1).chain(['…']).collect(),
    }
}

/// Writes a text to standard output. Returns false if standard output has been closed.
pub(crate) fn show(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_on_a_terminal() {
        let mut text = TerminalText::default();
        let rows = [
            ["a".into(), "ready".into(), "".into()],
            ["日本".into(), "x".into(), "why".into()],
            ["é".into(), "b\tc\u{1b}".into(), "".into()],
        ];
        text.table(["NAME", "STATE", "REASON"], &rows);
        let expected = "NAME  STATE      REASON\n\
                        a     ready\n\
                        日本  x          why\n\
                        é     b c\\u{1b}\n";
        assert_eq!(text.into_text(), expected);
    }

    #[test]
    fn colours_do_not_change_the_columns() {
        let rows = [["a".into(), Cell::new("up").coloured(Colour::Green)]];
        let mut text = TerminalText {
            coloured: true,
            ..TerminalText::default()
        };
        text.table(["N", "S"], &rows);
        let text = text.into_text();
        assert!(text.ends_with("a  \u{1b}[32mup\u{1b}[0m\n"), "{text:?}");
    }

    #[test]
    fn json_and_lines_cannot_drive_the_terminal() {
        let evil = "a\u{1b}[2J\nb\u{202e}c\u{2028}d";
        let text = json(&evil);
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\u{2028}']), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), evil);
        let text = printable_lines(evil);
        assert_eq!(text, "a\\u{1b}[2J\nb\\u{202e}c\\u{2028}d");
    }

    #[test]
    fn long_descriptions_are_cut_to_one_line() {
        assert_eq!(shortened(" Adds.\nMore", 10), "Adds.");
        assert_eq!(shortened("größere Zahl", 8), "größere…");
        assert_eq!(shortened("12345678", 8), "12345678");
    }
}
