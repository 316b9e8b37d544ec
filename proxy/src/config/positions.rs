//! Finds the lines and columns of all keys in a YAML file, for error messages. The YAML parser reports them for some errors only.

use std::collections::HashMap;
use std::fmt;

use saphyr_parser::{Event, Marker, Parser};

/// Maximum length of all paths together, in bytes; positions of later keys are not recorded. Many keys below a long key could
/// otherwise need gigabytes, since the path of each repeats the long key.
const PATHS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Line and column of a character, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    line: usize,
    column: usize,
}

impl From<Marker> for Position {
    fn from(marker: Marker) -> Self {
        Self {
            line: marker.line(),
            column: marker.col() + 1,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} column {}", self.line, self.column)
    }
}

/// The positions of all keys and list entries in a text, by their paths, such as `listeners[0].name`.
#[derive(Debug, Default)]
pub(super) struct Positions {
    keys: HashMap<String, Position>,
    duplicates: Vec<(String, Position, Position)>,
}

impl Positions {
    /// Finds the positions in a text. If the text is not valid YAML, only those before the fault are found.
    pub(super) fn of(text: &str) -> Self {
        let mut reading = Reading::default();
        for event in Parser::new_from_str(text) {
            let Ok((event, span)) = event else {
                break;
            };
            if reading.path_bytes > PATHS_BYTES_MAX {
                break;
            }
            let at = span.start.into();
            match event {
                Event::MappingStart(..) => reading.open(at, true),
                Event::SequenceStart(..) => reading.open(at, false),
                Event::MappingEnd | Event::SequenceEnd => reading.close(),
                Event::Scalar(text, ..) => reading.scalar(at, &text),
                Event::Alias(_) => reading.scalar(at, ""),
                _ => {}
            }
        }
        reading.positions
    }

    /// Returns the position of a key, or of the nearest enclosing key that the text contains.
    pub(super) fn nearest(&self, path: &str) -> Option<Position> {
        let mut path = path;
        loop {
            if let Some(position) = self.keys.get(path) {
                return Some(*position);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// Returns a text that lists keys which occur twice in a map; `None` if there are none.
    pub(super) fn duplicates(&self) -> Option<String> {
        let each = self.duplicates.iter().map(|(path, first, second)| {
            format!("duplicate key {path} at {second}: it stands at {first} already")
        });
        let all = each.collect::<Vec<_>>().join("; ");
        (!all.is_empty()).then_some(all)
    }
}

/// A map or a list whose end has not been read yet.
enum Open {
    Mapping {
        path: String,
        /// Path of the key whose value is read next; `None` if a key is read next.
        key: Option<String>,
    },
    List {
        path: String,
        next: usize,
    },
}

#[derive(Default)]
struct Reading {
    positions: Positions,
    open: Vec<Open>,
    /// Length of all recorded paths so far, in bytes.
    path_bytes: usize,
}

impl Reading {
    /// Records the position `at` of a node. Returns the node's path; `None` if the node is itself the key of a map.
    fn begin(&mut self, at: Position, key: &str) -> Option<String> {
        match self.open.last_mut() {
            None => Some(String::new()),
            Some(Open::List { path, next }) => {
                let path = format!("{path}[{next}]");
                *next += 1;
                self.path_bytes += path.len();
                self.positions.keys.insert(path.clone(), at);
                Some(path)
            }
            Some(Open::Mapping { path, key: known }) => match known.take() {
                Some(key) => Some(key),
                None => {
                    let path = match &**path {
                        "" => key.to_owned(),
                        parent => format!("{parent}.{key}"),
                    };
                    *known = Some(path.clone());
                    self.path_bytes += path.len();
                    match self.positions.keys.get(&path) {
                        Some(first) => self.positions.duplicates.push((path, *first, at)),
                        None => {
                            self.positions.keys.insert(path, at);
                        }
                    }
                    None
                }
            },
        }
    }

    fn scalar(&mut self, at: Position, text: &str) {
        self.begin(at, text);
    }

    fn open(&mut self, at: Position, is_mapping: bool) {
        // A map or list used as a key has no path; no key of the configuration is one.
        let path = self.begin(at, "?").unwrap_or_else(|| "?".to_owned());
        self.open.push(match is_mapping {
            true => Open::Mapping { path, key: None },
            false => Open::List { path, next: 0 },
        });
    }

    fn close(&mut self) {
        self.open.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_entries_are_found_by_their_paths_in_both_styles() {
        let text = "a:\n  b: [x, { c: 1 }]\n# note\n\"d e\":\n  - f: 2\n    g: 3\n";
        let positions = Positions::of(text);
        for (path, line, column) in [
            ("a", 1, 1),
            ("a.b", 2, 3),
            ("a.b[0]", 2, 7),
            ("a.b[1]", 2, 10),
            ("a.b[1].c", 2, 12),
            ("d e", 4, 1),
            ("d e[0]", 5, 5),
            ("d e[0].g", 6, 5),
            // The nearest key around a key that the text lacks.
            ("a.b[1].missing.further", 2, 10),
        ] {
            assert_eq!(
                positions.nearest(path),
                Some(Position { line, column }),
                "{path}"
            );
        }
        assert_eq!(positions.nearest("z"), None);
        assert_eq!(positions.duplicates(), None);
    }

    #[test]
    fn keys_that_stand_twice_are_listed_with_both_places() {
        let positions = Positions::of("a: 1\nb: { c: 1, c: 2 }\na: 2\n");
        assert_eq!(
            positions.duplicates().as_deref(),
            Some(
                "duplicate key b.c at line 2 column 12: it stands at line 2 column 6 already; \
                 duplicate key a at line 3 column 1: it stands at line 1 column 1 already"
            )
        );
    }

    #[test]
    fn a_text_with_a_fault_has_the_positions_before_it() {
        let positions = Positions::of("a: 1\nb: [\n");
        assert!(positions.nearest("a").is_some());
        Positions::of(&"[".repeat(10_000));
        // Paths of gigabytes, unless their length is bounded.
        let below = "  a: 1\n".repeat(50_000);
        Positions::of(&format!("? {}\n:\n{below}", "k".repeat(400_000)));
    }
}
