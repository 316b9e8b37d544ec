//! Reads the two configuration files: the operator's file and `$DATA/config.yaml`.
//!
//! Each file is first parsed separately, so that an error names its file. If both exist, their trees are merged (maps are merged,
//! all other values are replaced) and the result is parsed once more. YAML tags are refused: a map with a tag would not be merged
//! as a map, and would replace the operator's map instead of adding to it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tooldock_base::config::NamespacesConfig;
use tooldock_base::regular_file;
use tooldock_base::yaml::{self, Value};
use tooldock_workers::aggregate::AggregatesConfig;
use tooldock_workers::external::StdioServersConfig;

use super::faults::IgnoredKeys;
use super::leaves::leaves;
use super::positions::{Position, Positions};
use super::{Config, ConfigError};

/// Maximum size of a configuration file, in bytes. A larger file is refused: it is probably another file, named by mistake.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The keys that `$DATA/config.yaml` may contain. Tool code can write the file, so that none of its keys may admit clients, and
/// limits can only be lowered; see [`tooldock_workers::narrow`]. Keys that are added here must follow the same rule.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DataFile {
    namespaces: NamespacesConfig,
    upstreams: DataFileUpstreams,
    toolman: AggregatesConfig,
}

/// The section `upstreams` of `$DATA/config.yaml`. It cannot contain remote servers, since tool code could choose the addresses
/// to which the operator's credentials are sent.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DataFileUpstreams {
    stdio: StdioServersConfig,
}

/// Reads the operator's configuration file. Returns the configuration and the tree of the keys that the file sets; without a
/// file, the defaults. Keys in `left_out` are ignored.
pub(super) fn read_file(
    file: Option<&Path>,
    left_out: &IgnoredKeys,
) -> Result<(Config, Value), ConfigError> {
    match file {
        Some(file) => parse(file, &read(file)?, left_out),
        None => Ok((Config::default(), Value::Null)),
    }
}

/// Parses a configuration that is not stored in a file yet.
pub(super) fn parse_text(text: &str) -> Result<Config, ConfigError> {
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(file_error(Path::new("configuration"), "larger than 1 MiB"));
    }
    let file = Path::new("configuration");
    parse(file, text, &IgnoredKeys::default()).map(|(config, _)| config)
}

/// Returns the path of `$DATA/config.yaml`.
pub(super) fn data_file(data_dir: &Path) -> PathBuf {
    data_dir.join("config.yaml")
}

/// The content of `$DATA/config.yaml`, which is merged over the configuration file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DataFileTree(Value);

impl DataFileTree {
    /// Returns the keys that `$DATA/config.yaml` sets.
    pub(super) fn keys(&self) -> Vec<String> {
        let leaves = leaves(&self.0).into_iter();
        leaves.map(|(key, _)| key).collect()
    }
}

/// Reads `$DATA/config.yaml`; `None` if it does not exist.
pub(super) fn read_data_file(data_dir: &Path) -> Result<Option<DataFileTree>, ConfigError> {
    let file = data_file(data_dir);
    // Only a regular file is read: tool code could create a pipe, which would block the start, or a link to any other file.
    let open = match regular_file::open(&file) {
        Ok(open) => open,
        Err(error) if is_absence(&error) => return Ok(None),
        Err(error) => return Err(file_error(&file, error)),
    };
    let text = text_of(&file, open)?;
    let (_, over): (DataFile, Value) = parse(&file, &text, &IgnoredKeys::default())?;
    Ok(Some(DataFileTree(over)))
}

/// Merges the content of `$DATA/config.yaml` over the tree of the operator's file `file`.
pub(super) fn merged(
    file: &Path,
    operator: &Value,
    over: &DataFileTree,
) -> Result<Config, ConfigError> {
    let mut tree = operator.clone();
    merge(&mut tree, over.0.clone());
    from_tree(tree).map_err(|error| ConfigError::in_file(file, error))
}

fn is_absence(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
    )
}

fn read(file: &Path) -> Result<String, ConfigError> {
    let open = File::open(file).map_err(|error| file_error(file, error))?;
    text_of(file, open)
}

fn text_of(file: &Path, open: File) -> Result<String, ConfigError> {
    let mut text = String::new();
    open.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| file_error(file, error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(file_error(file, "larger than 1 MiB"));
    }
    Ok(text)
}

/// Parses a text both into its type, for errors with their line, and into a tree that can be merged.
fn parse<T: DeserializeOwned + Default>(
    file: &Path,
    text: &str,
    left_out: &IgnoredKeys,
) -> Result<(T, Value), ConfigError> {
    if !yaml::readable_in_time(text.as_bytes()) {
        return Err(file_error(file, yaml::UNREADABLE));
    }
    let mut tree = yaml::from_str(text).map_err(|error| syntax_error(file, text, &error))?;
    if let Some(tag) = tag_in(&tree) {
        return Err(file_error(
            file,
            format!("the YAML tag {tag} has no meaning here; leave it out"),
        ));
    }
    if matches!(tree, Value::Null) {
        return Ok((T::default(), tree));
    }
    if left_out.is_empty() {
        let typed = typed(file, text)?;
        drop_empty(&mut tree);
        return Ok((typed, tree));
    }
    drop_empty(&mut tree);
    leave_out(&mut tree, "", left_out);
    // The tree is written as YAML text and parsed again, since only the parser of texts accepts a number where a string is
    // expected.
    let rest = yaml::to_string(&tree).map_err(|error| file_error(file, error))?;
    let typed = typed(file, &rest).map_err(ConfigError::without_position)?;
    Ok((typed, tree))
}

fn typed<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, ConfigError> {
    serde_path_to_error::deserialize(yaml::Deserializer::from_str(text))
        .map_err(|error| ConfigError::in_file(file, error))
}

/// Returns the line and column of a key in a file, or of the nearest enclosing key. `None` if the file cannot be read.
pub(super) fn position(file: &Path, key: &str) -> Option<Position> {
    // The content of a pipe cannot be read a second time.
    let is_kept = file.is_file();
    let text = is_kept.then(|| read(file).ok()).flatten()?;
    Positions::of(&text).nearest(key)
}

/// Creates the error for a text that is not valid YAML, with the probable cause.
fn syntax_error(file: &Path, text: &str, error: &yaml::Error) -> ConfigError {
    if let Some(duplicates) = Positions::of(text).duplicates() {
        return file_error(file, duplicates);
    }
    let indented_by_tab = |line: &str| line.trim_start_matches(' ').starts_with('\t');
    match text.lines().position(indented_by_tab) {
        Some(index) => file_error(
            file,
            format!("{error}: a tab indents line {}, use spaces", index + 1),
        ),
        None => file_error(file, error),
    }
}

/// Removes keys without a value from a tree. The parser of texts accepts a section without keys (`admission:`), but in a tree its
/// value is null. Merged over another file's section, the null would replace that section.
fn drop_empty(tree: &mut Value) {
    match tree {
        Value::Mapping(entries) => entries.retain(|_, value| {
            drop_empty(value);
            !value.is_null()
        }),
        Value::Sequence(values) => values.iter_mut().for_each(drop_empty),
        _ => {}
    }
}

/// Removes the keys in `left_out` from a tree. `path` is the path of the tree itself. The parser limits nesting to 128, so that
/// the recursion is bounded.
fn leave_out(tree: &mut Value, path: &str, left_out: &IgnoredKeys) {
    match tree {
        Value::Mapping(entries) => entries.retain(|key, value| {
            let key = key.as_str().unwrap_or_default();
            let path = match path {
                "" => key.to_owned(),
                parent => format!("{parent}.{key}"),
            };
            leave_out(value, &path, left_out);
            !left_out.has(&path)
        }),
        Value::Sequence(values) => {
            let mut index = 0;
            values.retain_mut(|value| {
                let path = format!("{path}[{index}]");
                index += 1;
                leave_out(value, &path, left_out);
                !left_out.has(&path)
            });
        }
        _ => {}
    }
}

/// Returns the first YAML tag in the tree. The parser limits nesting to 128, so that the recursion is bounded.
fn tag_in(tree: &Value) -> Option<String> {
    match tree {
        Value::Tagged(tagged) => Some(tagged.tag.to_string()),
        Value::Sequence(values) => values.iter().find_map(tag_in),
        Value::Mapping(entries) => entries
            .iter()
            .find_map(|(key, value)| tag_in(key).or_else(|| tag_in(value))),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn from_tree(tree: Value) -> Result<Config, serde_path_to_error::Error<yaml::Error>> {
    match tree {
        Value::Null => Ok(Config::default()),
        tree => serde_path_to_error::deserialize(tree),
    }
}

fn file_error(file: &Path, reason: impl ToString) -> ConfigError {
    ConfigError::File {
        file: file.to_owned(),
        reason: reason
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// Merges the tree `over` into the tree `below`. The parser limits nesting to 128, so that the recursion is bounded.
fn merge(below: &mut Value, over: Value) {
    match (below, over) {
        (_, Value::Null) => {}
        (Value::Mapping(below), Value::Mapping(over)) => {
            for (key, value) in over {
                match below.get_mut(&key) {
                    Some(slot) => merge(slot, value),
                    None => {
                        below.insert(key, value);
                    }
                }
            }
        }
        (below, over) => *below = over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_merge_and_lists_replace() {
        let mut below: Value = yaml::from_str("{ a: { x: 1, y: [1, 2] }, b: 1 }").expect("yaml");
        merge(
            &mut below,
            yaml::from_str("{ a: { y: [3], z: 4 } }").expect("yaml"),
        );
        let expected: Value = yaml::from_str("{ a: { x: 1, y: [3], z: 4 }, b: 1 }").expect("yaml");
        assert_eq!(below, expected);
    }

    #[test]
    fn a_file_of_comments_is_the_default() {
        let (config, _): (Config, Value) =
            parse(Path::new("x.yaml"), "# nothing\n", &IgnoredKeys::default()).expect("empty");
        assert_eq!(config, Config::default());
    }

    #[test]
    fn deep_nesting_is_refused_without_a_panic() {
        let text = format!("a: {}", "[".repeat(2_000));
        assert!(parse::<Config>(Path::new("x.yaml"), &text, &IgnoredKeys::default()).is_err());
    }

    #[test]
    fn brackets_that_would_keep_the_reader_busy_are_not_read() {
        let text = format!("a: {}", "[".repeat(100_000));
        let error = parse::<Config>(Path::new("x.yaml"), &text, &IgnoredKeys::default())
            .expect_err("refused")
            .to_string();
        assert!(error.contains("too many brackets"), "{error}");
    }

    #[test]
    fn a_tag_never_replaces_what_the_operator_says() {
        let dir = tempfile::tempdir().expect("directory");
        for over in [
            "!x\nnamespaces: {}\n",
            "!x { namespaces: {} }",
            "namespaces: !x { overrides: {} }",
            "namespaces: { overrides: !x {} }",
            "namespaces: { overrides: { !x a: { timeout: 6s } } }",
            "namespaces: { env_allowed: [!x A] }",
        ] {
            std::fs::write(data_file(dir.path()), over).expect("write");
            let read = read_data_file(dir.path());
            let error = read.expect_err(over).to_string();
            assert!(
                error.contains("the YAML tag !x has no meaning here"),
                "{over}: {error}"
            );
        }
    }

    #[test]
    fn a_huge_file_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("file");
        std::fs::write(file.path(), "#".repeat(FILE_BYTES_MAX as usize + 1)).expect("write");
        let error = read_file(Some(file.path()), &IgnoredKeys::default()).expect_err("too large");
        assert!(error.to_string().ends_with("larger than 1 MiB"), "{error}");
    }
}
