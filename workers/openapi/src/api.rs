//! The operations of a document that become tools: selection, names, and limits of the whole document.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::budget::{Budget, Spent};
use crate::document::{Document, DocumentError};
use crate::encode;
use crate::names::{self, NameSource, TakenNames};
use crate::operation::{Operation, Source};
use crate::selection::{Candidate, Selection};

/// Maximum length of the sentence about an operation in an error, in characters.
const ISSUE_MAX: usize = 300;
/// Maximum number of tools of one document.
const TOOLS_MAX: usize = 1_000;
/// Maximum size of the definitions of all tools of one document, in bytes. The catalogue of a session reads lists of tools of at
/// most 100 pages, and a large definition has a page of at least 128 KiB of its own.
const TOOLS_BYTES_MAX: usize = 12 * 1024 * 1024;
/// Maximum number of selected operations of one document that are read, including those that become no tools.
const ATTEMPTS_MAX: usize = 5_000;
/// Maximum number of bytes that are inspected and copied for the tools of one document.
const BYTES_MAX: usize = 512 * 1024 * 1024;
/// Cost of an operation in the budget of [`BYTES_MAX`], in bytes, in addition to the length of its path, id and tags.
const OPERATION_COST: usize = 64;
/// Maximum length of a path in the document, in bytes. Operations of longer paths become no tools.
const PATH_MAX: usize = 2_000;
/// Methods of operations that become tools: the key in a path item, and the method in requests.
const METHODS: [(&str, &str); 5] = [
    ("get", "GET"),
    ("post", "POST"),
    ("put", "PUT"),
    ("patch", "PATCH"),
    ("delete", "DELETE"),
];

/// Settings for the tools of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiSettings {
    /// Patterns of the operations that become tools.
    pub include: Vec<String>,
    /// Patterns of the operations that become no tools.
    pub exclude: Vec<String>,
    /// Source of the names of tools.
    pub names: NameSource,
    /// Names of headers that the configuration sets, passes or removes, in lower case. Header parameters with these names are no
    /// arguments; the name `cookie` excludes all cookie parameters.
    pub headers: Vec<String>,
}

/// The operations of a document that are served as tools.
#[derive(Debug)]
pub struct Api {
    document: Arc<Document>,
    operations: Vec<Operation>,
    by_name: BTreeMap<String, usize>,
    issues: Vec<String>,
}

impl Api {
    /// Reads the selected operations of a document. Leaves out an operation that cannot be a tool, and names it in
    /// [`Self::issues`].
    ///
    /// # Errors
    ///
    /// When no operation can be served.
    pub fn read(document: Document, settings: &ApiSettings) -> Result<Self, DocumentError> {
        let document = Arc::new(document);
        let budget = Budget::new(BYTES_MAX);
        let mut issues = Vec::new();
        let mut operations = Vec::new();
        let mut dropped = 0;
        let mut left = TOOLS_BYTES_MAX;
        for source in sources(&document, settings, &budget, &mut issues) {
            if operations.len() >= TOOLS_MAX {
                dropped += 1;
                continue;
            }
            let place = format!("{} {}", source.method, source.path);
            match Operation::read(&document, source, &settings.headers, &budget) {
                Ok(operation) => match left.checked_sub(operation.tool().to_string().len()) {
                    Some(less) => {
                        left = less;
                        operations.push(operation);
                    }
                    None => issues.push(format!(
                        "{place} is beyond {} MiB of definitions; it is no tool",
                        TOOLS_BYTES_MAX / (1024 * 1024)
                    )),
                },
                Err(why) => issues.push(format!("{place} {why}; it is no tool")),
            }
        }
        if dropped > 0 {
            issues.push(format!(
                "{dropped} operations beyond the first {TOOLS_MAX} are no tools; choose others by include and exclude"
            ));
        }
        if operations.is_empty() {
            return Err(match issues.into_iter().next() {
                Some(issue) => DocumentError::Empty(issue.chars().take(ISSUE_MAX).collect()),
                None => DocumentError::NoneSelected,
            });
        }
        let by_name = operations
            .iter()
            .enumerate()
            .map(|(at, it)| (it.name.clone(), at));
        Ok(Self {
            by_name: by_name.collect(),
            document,
            operations,
            issues,
        })
    }

    /// Returns the operations, in the order of their paths.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Returns the operation whose tool has the name `name`.
    pub fn operation(&self, name: &str) -> Option<&Operation> {
        self.operations.get(*self.by_name.get(name)?)
    }

    /// Returns a sentence about each operation, or group of operations, that was left out.
    pub fn issues(&self) -> &[String] {
        &self.issues
    }

    /// Returns the document's title; `None` if the document has no title.
    pub fn title(&self) -> Option<&str> {
        self.document.member("info")?.get("title")?.as_str()
    }
}

/// Returns the selected operations of a document, with the names of their tools. Adds a sentence to `issues` for each path that
/// is refused, for the operations above the limits, and for each pattern that selects no operation.
fn sources<'d>(
    document: &'d Document,
    settings: &ApiSettings,
    budget: &Budget,
    issues: &mut Vec<String>,
) -> Vec<Source<'d>> {
    let mut selection = Selection::new(&settings.include, &settings.exclude);
    let paths = document.member("paths").and_then(Value::as_object);
    let mut taken = TakenNames::default();
    let mut found = Vec::new();
    for (path, item) in paths
        .into_iter()
        .flatten()
        .filter(|(path, _)| path.starts_with('/'))
    {
        if let Some(why) = refused(path) {
            let short: String = path.chars().take(80).collect();
            issues.push(format!("{short} {why}; it is no tool"));
            continue;
        }
        let Some(item) = document.resolve(item) else {
            continue;
        };
        for (key, method) in METHODS {
            let Some(operation) = item.get(key).filter(|it| it.is_object()) else {
                continue;
            };
            let id = operation.get("operationId").and_then(Value::as_str);
            let tags = operation.get("tags").and_then(Value::as_array);
            if found.len() >= ATTEMPTS_MAX || charge(budget, path, operation).is_err() {
                issues.push(format!(
                    "operations from {method} {path} on are not read, since there are too many before; choose fewer by include"
                ));
                return found;
            }
            let name = taken.unique(&names::tool(settings.names, id, method, path));
            let candidate = Candidate {
                name: &name,
                method,
                path,
                tags: tags
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect(),
            };
            if selection.has(&candidate) {
                found.push(Source {
                    name,
                    method,
                    path,
                    item,
                    operation,
                });
            }
        }
    }
    if !found.is_empty() {
        issues.extend(selection.unused());
    }
    found
}

/// Takes the size of an operation's path, id and tags from the budget.
fn charge(budget: &Budget, path: &str, operation: &Value) -> Result<(), Spent> {
    budget.charge(OPERATION_COST + path.len())?;
    let texts = ["operationId", "tags"].into_iter();
    let mut texts = texts.filter_map(|key| operation.get(key));
    texts.try_for_each(|it| budget.charge_value(it))
}

/// Returns the reason why a path is not served, worded to follow the path; `None` if the path is served. A server could read
/// `//`, `.` or `..` as another path, which the patterns of `include` and `exclude` were not compared with.
fn refused(path: &str) -> Option<&'static str> {
    if path.len() > PATH_MAX {
        return Some("is too long a path");
    }
    let path = path.split('?').next().unwrap_or_default();
    if encode::has_dot_segment(path) {
        return Some("has a segment \".\" or \"..\"");
    }
    path.contains("//").then_some("has an empty segment")
}
