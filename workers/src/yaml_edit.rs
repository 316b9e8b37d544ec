//! Changes a single entry in a hand-written YAML text and keeps the remaining text unchanged, including comments.
//!
//! The text is changed by lines. The result is parsed and compared with the expected content. If the two differ, because the
//! text has a style that cannot be edited by lines, such as braces over several lines, the change is refused.

use tooldock_base::yaml::{self, Mapping, Value};

/// Error for a text whose style does not allow changing the entry without rewriting other lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the file is written in a style that cannot be changed without losing its comments")]
pub struct CannotEdit;

/// An entry to be added to a map. Each line of `comment` is written as a comment at the beginning of the entry.
#[derive(Debug, Clone, Copy)]
pub struct NewEntry<'a> {
    /// Key of the new entry.
    pub name: &'a str,
    /// Value of the new entry.
    pub entry: &'a Mapping,
    /// Comment of the new entry; empty for none.
    pub comment: &'a str,
}

/// Adds the entry `name` to the map at `path`, or replaces it, as [`put_all`] does.
///
/// # Errors
///
/// As [`put_all`].
pub fn put(
    text: &str,
    path: &[&str],
    name: &str,
    entry: &Mapping,
    comment: &str,
) -> Result<String, CannotEdit> {
    let entry = NewEntry {
        name,
        entry,
        comment,
    };
    put_all(text, path, [entry])
}

/// Adds entries to the map at `path`, or replaces existing ones. Missing maps are created. The text is parsed and checked only
/// once for all entries.
///
/// # Errors
///
/// When the text has a style that cannot be edited by lines.
pub fn put_all<'a>(
    text: &str,
    path: &[&str],
    entries: impl IntoIterator<Item = NewEntry<'a>>,
) -> Result<String, CannotEdit> {
    let mut expected = tree(text)?;
    let known = map_at(&mut expected, path)?;
    let (mut added, mut replaced) = (Vec::new(), Vec::new());
    for entry in entries {
        let value = Value::Mapping(entry.entry.clone());
        match known.insert(entry.name.into(), value) {
            None => added.push(entry),
            Some(_) => replaced.push(entry),
        }
    }
    let mut lines = Lines::of(text);
    if !added.is_empty() {
        lines.add(path, &added)?;
    }
    for entry in replaced {
        let (map, missing) = lines.map_at(path)?;
        let at = lines.find(&map, entry.name);
        let at = at.filter(|_| missing.is_empty()).ok_or(CannotEdit)?;
        let end = lines.block_end(at);
        let block = nested(&[], &entry, map.indent)?;
        lines.0.splice(at..end, block);
    }
    lines.checked(&expected)
}

/// Removes the entry `name` from the map at `path`. Returns the text unchanged if the entry does not exist.
///
/// # Errors
///
/// As [`put`].
pub fn remove(text: &str, path: &[&str], name: &str) -> Result<String, CannotEdit> {
    let mut expected = tree(text)?;
    let map = map_at(&mut expected, path)?;
    if map.shift_remove(name).is_none() {
        return Ok(text.to_owned());
    }
    let is_empty = map.is_empty();
    let mut lines = Lines::of(text);
    let mut map = lines.top();
    let mut around = None;
    for key in path {
        let at = lines.find(&map, key).ok_or(CannotEdit)?;
        around = Some(at);
        map = lines.open(at)?;
    }
    let at = lines.find(&map, name).ok_or(CannotEdit)?;
    let end = lines.block_end(at);
    lines.0.drain(at..end);
    if let (true, Some(at)) = (is_empty, around) {
        // The empty map is written explicitly, because a key without a value would be null.
        let line = &mut lines.0[at];
        let colon = value_of(line).ok_or(CannotEdit)?;
        line.insert_str(colon, " {}");
    }
    lines.checked(&expected)
}

fn tree(text: &str) -> Result<Mapping, CannotEdit> {
    match yaml::from_str(text) {
        Ok(Value::Null) => Ok(Mapping::new()),
        Ok(Value::Mapping(tree)) => Ok(tree),
        _ => Err(CannotEdit),
    }
}

/// Returns the map at a path, and creates missing maps on the path.
fn map_at<'a>(tree: &'a mut Mapping, path: &[&str]) -> Result<&'a mut Mapping, CannotEdit> {
    let mut map = tree;
    for key in path {
        let value = map.entry((*key).into()).or_insert(Value::Null);
        if value.is_null() {
            *value = Value::Mapping(Mapping::new());
        }
        let Value::Mapping(inner) = value else {
            return Err(CannotEdit);
        };
        map = inner;
    }
    Ok(map)
}

/// Returns the lines of an entry, preceded by the missing keys that contain it.
fn nested(missing: &[&str], new: &NewEntry<'_>, indent: usize) -> Result<Vec<String>, CannotEdit> {
    let NewEntry {
        name,
        entry,
        comment,
    } = *new;
    let mut lines = Vec::new();
    let mut indent = indent;
    for key in missing {
        lines.push(format!("{}{key}:", " ".repeat(indent)));
        indent += 2;
    }
    let pad = " ".repeat(indent);
    let name = written(&name.into())?;
    if entry.is_empty() {
        lines.push(format!("{pad}{name}: {{}}"));
        return Ok(lines);
    }
    lines.push(format!("{pad}{name}:"));
    for line in comment.lines() {
        let line = line.replace(char::is_control, " ");
        lines.push(format!("{pad}  # {line}"));
    }
    for line in written(&Value::Mapping(entry.clone()))?.lines() {
        lines.push(match line.is_empty() {
            true => String::new(),
            false => format!("{pad}  {line}"),
        });
    }
    Ok(lines)
}

fn written(value: &Value) -> Result<String, CannotEdit> {
    let text = yaml::to_string(value).map_err(|_| CannotEdit)?;
    Ok(text.trim_end().to_owned())
}

/// The lines of a text, without line breaks.
struct Lines(Vec<String>);

/// The lines of a map in the text: `start` is its first line, `end` the line after its last one.
struct MapLines {
    start: usize,
    end: usize,
    indent: usize,
}

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.lines().map(str::to_owned).collect())
    }

    /// The lines of the outermost map.
    fn top(&self) -> MapLines {
        let is_content =
            |line: &String| !is_blank(line) && !line.starts_with("---") && !line.starts_with('%');
        MapLines {
            start: 0,
            end: self.0.len(),
            indent: self
                .0
                .iter()
                .find(|it| is_content(it))
                .map_or(0, |it| indent(it)),
        }
    }

    /// Returns the lines of the deepest existing map on a path, and the remaining keys of the path.
    fn map_at<'a, 'b>(
        &mut self,
        path: &'a [&'b str],
    ) -> Result<(MapLines, &'a [&'b str]), CannotEdit> {
        let mut map = self.top();
        for (depth, key) in path.iter().enumerate() {
            let Some(at) = self.find(&map, key) else {
                return Ok((map, &path[depth..]));
            };
            map = self.open(at)?;
        }
        Ok((map, &[]))
    }

    /// Adds entries at the end of the map at a path. The map must not contain them yet.
    fn add(&mut self, path: &[&str], entries: &[NewEntry<'_>]) -> Result<(), CannotEdit> {
        let (map, missing) = self.map_at(path)?;
        let mut block = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let lines = match index {
                0 => nested(missing, entry, map.indent)?,
                _ => nested(&[], entry, map.indent + 2 * missing.len())?,
            };
            block.extend(lines);
        }
        self.insert(map.end, block);
        Ok(())
    }

    /// Returns the number of the line with a key of a map; `None` if the map does not contain the key.
    fn find(&self, map: &MapLines, key: &str) -> Option<usize> {
        let spellings = [key.to_owned(), format!("\"{key}\""), format!("'{key}'")];
        let is_here = |line: &String| {
            let rest = line.get(map.indent..).unwrap_or_default();
            let mut rests = spellings
                .iter()
                .filter_map(|key| rest.strip_prefix(key.as_str()));
            indent(line) == map.indent && rests.any(|rest| rest.trim_start().starts_with(':'))
        };
        let mut lines = map.start..map.end;
        lines.find(|at| is_here(&self.0[*at]))
    }

    /// Returns the number of the line after the last line of a key's value.
    fn block_end(&self, at: usize) -> usize {
        let own = indent(&self.0[at]);
        let mut end = at + 1;
        for (line, text) in self.0.iter().enumerate().skip(at + 1) {
            if is_blank(text) {
                continue;
            }
            let is_item = indent(text) == own && text.trim_start().starts_with("- ");
            if indent(text) <= own && !is_item {
                break;
            }
            end = line + 1;
        }
        end
    }

    /// Returns the map that is the value of a key. If the map is written as `{}`, the braces are removed, so that lines can be
    /// added.
    fn open(&mut self, at: usize) -> Result<MapLines, CannotEdit> {
        let line = &mut self.0[at];
        let own = indent(line);
        let colon = value_of(line).ok_or(CannotEdit)?;
        let (value, comment) = match line[colon..].find(" #") {
            Some(comment) => (
                line[colon..colon + comment].trim().to_owned(),
                Some(comment),
            ),
            None => (line[colon..].trim().to_owned(), None),
        };
        match value.as_str() {
            "" => {}
            "{}" | "null" | "~" => {
                let comment = comment.map(|it| line[colon + it..].to_owned());
                line.truncate(colon);
                line.push_str(&comment.unwrap_or_default());
            }
            _ => return Err(CannotEdit),
        }
        let end = self.block_end(at);
        let inner = self.0[at + 1..end].iter().find(|it| !is_blank(it));
        Ok(MapLines {
            start: at + 1,
            end,
            indent: inner.map_or(own + 2, |it| indent(it)),
        })
    }

    fn insert(&mut self, at: usize, block: Vec<String>) {
        self.0.splice(at..at, block);
    }

    fn checked(self, expected: &Mapping) -> Result<String, CannotEdit> {
        let mut text = self.0.join("\n");
        text.push('\n');
        match tree(&text)? == *expected {
            true => Ok(text),
            false => Err(CannotEdit),
        }
    }
}

/// Returns true if a line is empty or contains only a comment.
fn is_blank(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// The byte offset after the colon that follows a key.
fn value_of(line: &str) -> Option<usize> {
    line.find(':').map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str) -> Mapping {
        yaml::from_str(text).expect("a map")
    }

    fn added(text: &str) -> Result<String, CannotEdit> {
        put(
            text,
            &["upstreams", "remote"],
            "a",
            &entry("{ backends: [x] }"),
            "",
        )
    }

    #[test]
    fn an_entry_is_added_where_its_map_stands_and_comments_stay() {
        for (before, after) in [
            (
                "",
                "upstreams:\n  remote:\n    a:\n      backends:\n      - x\n",
            ),
            (
                "# top\ndata_dir: d # here\n",
                "# top\ndata_dir: d # here\nupstreams:\n  remote:\n    a:\n      backends:\n      - x\n",
            ),
            (
                "upstreams:\n  stdio: {}\n  remote: {} # servers\n  # b: x\nhooks: []\n",
                "upstreams:\n  stdio: {}\n  remote: # servers\n    a:\n      backends:\n      - x\n  # b: x\nhooks: []\n",
            ),
            (
                "upstreams:\n    remote:\n        # first\n        b: { backends: [y] }\n\n# end\nhooks: []\n",
                "upstreams:\n    remote:\n        # first\n        b: { backends: [y] }\n        a:\n          backends:\n          - x\n\n# end\nhooks: []\n",
            ),
            (
                "upstreams:\n  remote:\n    a:\n      backends:\n      - old\n    b: { backends: [y] }\n",
                "upstreams:\n  remote:\n    a:\n      backends:\n      - x\n    b: { backends: [y] }\n",
            ),
        ] {
            assert_eq!(added(before).expect(before), after);
        }
    }

    #[test]
    fn many_entries_at_once_are_what_they_are_one_after_another() {
        let (x, y) = (entry("{ command: x }"), entry("{ command: y }"));
        let new = |name, entry| NewEntry {
            name,
            entry,
            comment: "about it",
        };
        let entries = [new("a", &x), new("b", &y), new("c", &x), new("a", &y)];
        for text in [
            "",
            "# top\nupstreams:\n  stdio:\n    # first\n    b: { command: old }\n    d: { command: z }\n# end\n",
            "upstreams: {}\nhooks: []\n",
        ] {
            let path = ["upstreams", "stdio"];
            let each = entries.iter().try_fold(text.to_owned(), |text, it| {
                put(&text, &path, it.name, it.entry, it.comment)
            });
            assert_eq!(put_all(text, &path, entries), each, "{text}");
            assert!(each.is_ok(), "{text}");
        }
    }

    #[test]
    fn a_text_in_another_style_is_refused_and_never_broken() {
        for text in [
            "{ upstreams: { remote: {} } }",
            "upstreams: { remote: {} }",
            "upstreams:\n  remote: { b: { backends: [y] } }\n",
            "upstreams: &x\n  remote: {}\n",
            "- a\n",
        ] {
            assert_eq!(added(text), Err(CannotEdit), "{text}");
        }
    }

    #[test]
    fn an_entry_is_removed_with_its_lines_alone() {
        let text = "servers:\n  # about a\n  a:\n    command: x\n    args:\n    - y\n  b: { command: z } # b\n";
        let without = remove(text, &["servers"], "a").expect("removed");
        assert_eq!(without, "servers:\n  # about a\n  b: { command: z } # b\n");
        let empty = remove(&without, &["servers"], "b").expect("removed");
        assert_eq!(empty, "servers: {}\n  # about a\n");
        assert_eq!(remove(&empty, &["servers"], "c").expect("same"), empty);
        let again = put(
            &empty,
            &["servers"],
            "1",
            &entry("{ command: x }"),
            "one\ntwo",
        );
        assert_eq!(
            again.expect("added"),
            "servers:\n  '1':\n    # one\n    # two\n    command: x\n  # about a\n"
        );
    }
}
