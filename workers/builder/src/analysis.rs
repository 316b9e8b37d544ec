//! Analysis of a repository from its text alone: tools, dependencies, called hosts, needed secrets.
//!
//! Each source file is parsed by the grammar of its language (tree-sitter), and its tree is traversed once from the root. The
//! duration is bounded: files, bytes and time are limited, and `notes` name the parts that were not analysed.

mod dependencies;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod go;
mod javascript;
mod names;
mod python;
mod rust;
mod syntax;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tooldock_base::regular_file;
use tooldock_process::repositories::{Analysis, FoundTool};
use tree_sitter::{ParseOptions, ParseState, Parser};

use crate::progress::{Show, step};
use crate::tree::Tree;
use dependencies::Dependencies;

/// Limits of one analysis: number of parsed files, bytes of all of them, bytes of one file, time of all and time of one file.
const PARSED_FILES_MAX: usize = 3000;
const PARSED_BYTES_MAX: u64 = 64 * 1024 * 1024;
const PARSED_FILE_MAX: u64 = 512 * 1024;
const TIME_MAX: Duration = Duration::from_secs(90);
const FILE_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum numbers of files, tools and names in the result of an analysis, and maximum number of characters of a description.
const FILES_SHOWN: usize = 1000;
const TOOLS_SHOWN: usize = 500;
const NAMES_SHOWN: usize = 200;
const DESCRIPTION_MAX: usize = 2000;

/// Languages that are analysed. If several have equal amounts of text, the first in this order is the main language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Language {
    Python,
    TypeScript,
    JavaScript,
    Go,
    Rust,
}

/// Facts that were found in all source files together.
#[derive(Debug, Default)]
struct SourceFacts {
    tools: Vec<FoundTool>,
    hosts: BTreeSet<String>,
    secrets: BTreeSet<String>,
    /// Names of the modules that the sources import.
    imports: BTreeSet<String>,
}

impl Language {
    fn of(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next()?;
        if name.ends_with(".d.ts") || name.ends_with(".min.js") {
            return None;
        }
        Some(match name.rsplit_once('.')?.1 {
            "py" => Self::Python,
            "ts" | "tsx" | "mts" | "cts" => Self::TypeScript,
            "js" | "jsx" | "mjs" | "cjs" => Self::JavaScript,
            "go" => Self::Go,
            "rs" => Self::Rust,
            _ => return None,
        })
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::TypeScript => "typescript",
            Self::JavaScript => "javascript",
            Self::Go => "go",
            Self::Rust => "rust",
        }
    }

    fn grammar(self, path: &str) -> tree_sitter::Language {
        match self {
            Self::Python => tree_sitter_python::LANGUAGE.into(),
            Self::TypeScript if path.ends_with(".tsx") => {
                tree_sitter_typescript::LANGUAGE_TSX.into()
            }
            Self::TypeScript => tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(),
            Self::JavaScript => tree_sitter_javascript::LANGUAGE.into(),
            Self::Go => tree_sitter_go::LANGUAGE.into(),
            Self::Rust => tree_sitter_rust::LANGUAGE.into(),
        }
    }
}

/// Analyses the source files of a repository or package in `tree`. `source` is the URL that the result names.
pub(crate) fn analyse(source: &str, tree: &Tree, show: Show<'_>) -> Analysis {
    let started = Instant::now();
    let mut notes = Vec::new();
    let all: Vec<(&str, Language)> = tree
        .files()
        .filter(|path| !is_vendored(path))
        .filter_map(|path| Some((path, Language::of(path)?)))
        .collect();
    // Build output and tests are read only if there are no other source files, as in many npm packages.
    let main: Vec<_> = all
        .iter()
        .copied()
        .filter(|(path, _)| !is_secondary(path))
        .collect();
    let sources = if main.is_empty() { all } else { main };
    let language = most_of(tree, &sources);

    let mut facts = SourceFacts::default();
    let (mut bytes, mut unread) = (0, 0);
    for (index, (path, file_language)) in sources.iter().enumerate() {
        let over =
            index >= PARSED_FILES_MAX || bytes > PARSED_BYTES_MAX || started.elapsed() > TIME_MAX;
        let text = if over { None } else { read(tree, path) };
        let Some(text) = text else {
            unread += 1;
            continue;
        };
        if index % 50 == 0 {
            let percent = 75 + u8::try_from(index * 24 / sources.len()).unwrap_or(0);
            step(
                show,
                percent,
                format!("analysing {} source files", sources.len()),
            );
        }
        bytes += text.len() as u64;
        if !look_into(path, *file_language, &text, &mut facts) {
            unread += 1;
        }
    }
    if unread > 0 {
        notes.push(format!(
            "{unread} source files were not analysed: they are too large, no text, or the repository has too many"
        ));
    }
    let dependencies = Dependencies::of(tree, language);
    let framework = names::framework(language, &dependencies, &facts.imports);
    for package in dependencies.names() {
        facts
            .hosts
            .extend(names::host_of_client(package).map(str::to_owned));
    }
    note_left_out(tree, &mut notes);
    Analysis {
        repo_url: source.to_owned(),
        language: language.map_or("unknown", Language::as_str).to_owned(),
        framework: framework.to_owned(),
        files: files_shown(tree, &mut notes),
        tools_found: tools_shown(facts.tools, &mut notes),
        dependencies: dependencies.into_map(),
        apis_called: facts.hosts.into_iter().take(NAMES_SHOWN).collect(),
        secrets_needed: facts.secrets.into_iter().take(NAMES_SHOWN).collect(),
        notes,
    }
}

/// Parses a file and adds its facts; returns false if parsing takes too long or is impossible.
fn look_into(path: &str, language: Language, text: &str, facts: &mut SourceFacts) -> bool {
    let mut parser = Parser::new();
    if parser.set_language(&language.grammar(path)).is_err() {
        return false;
    }
    let started = Instant::now();
    let mut in_time = |_: &ParseState| match started.elapsed() > FILE_TIME_MAX {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let options = ParseOptions::new().progress_callback(&mut in_time);
    let bytes = text.as_bytes();
    let mut rest = |from: usize, _| bytes.get(from..).unwrap_or_default();
    let Some(parsed) = parser.parse_with_options(&mut rest, None, Some(options)) else {
        return false;
    };
    let file = syntax::File {
        path,
        text,
        root: parsed.root_node(),
    };
    match language {
        Language::Python => python::read(&file, facts),
        Language::TypeScript | Language::JavaScript => javascript::read(&file, facts),
        Language::Go => go::read(&file, facts),
        Language::Rust => rust::read(&file, facts),
    }
    true
}

fn read(tree: &Tree, path: &str) -> Option<String> {
    let bytes = regular_file::read(&tree.root().join(path), PARSED_FILE_MAX);
    String::from_utf8(bytes.ok()?).ok()
}

/// The language in which most of the source text is written.
fn most_of(tree: &Tree, sources: &[(&str, Language)]) -> Option<Language> {
    let mut bytes: BTreeMap<Language, u64> = BTreeMap::new();
    for (path, language) in sources {
        let size = tree.root().join(path).metadata().map_or(0, |it| it.len());
        *bytes.entry(*language).or_default() += size.max(1);
    }
    let best = bytes
        .into_iter()
        .max_by_key(|(language, bytes)| (*bytes, std::cmp::Reverse(*language)));
    best.map(|(language, _)| language)
}

/// Returns true if a file is third-party code within the repository.
fn is_vendored(path: &str) -> bool {
    let folders = [
        "node_modules",
        "vendor",
        "third_party",
        "site-packages",
        ".venv",
        "venv",
        "bower_components",
    ];
    path.split('/')
        .rev()
        .skip(1)
        .any(|part| folders.contains(&part))
}

/// Returns true if a file belongs to tests or to build output.
fn is_secondary(path: &str) -> bool {
    let folders = [
        "test",
        "tests",
        "__tests__",
        "testdata",
        "__mocks__",
        "e2e",
        "dist",
        "build",
        "out",
        "target",
        "coverage",
        ".yarn",
        "fixtures",
    ];
    let mut parts = path.split('/').rev();
    let name = parts.next().unwrap_or_default();
    let stem = name.rsplit_once('.').map_or(name, |it| it.0);
    parts.any(|part| folders.contains(&part))
        || stem.starts_with("test_")
        || [".test", ".spec", "_test"]
            .iter()
            .any(|it| stem.ends_with(it))
        || stem == "conftest"
}

fn files_shown(tree: &Tree, notes: &mut Vec<String>) -> Vec<String> {
    let files: Vec<&str> = tree.files().collect();
    if files.len() <= FILES_SHOWN {
        return files.into_iter().map(str::to_owned).collect();
    }
    notes.push(format!(
        "the repository has {} files; {FILES_SHOWN} of them are listed, sources and documents first. The others can be read, too",
        files.len()
    ));
    let rank = |path: &str| {
        let is_main = Language::of(path).is_some() && !is_vendored(path) && !is_secondary(path);
        let is_document = path.ends_with(".md") || dependencies::is_manifest(path);
        match (is_main || is_document, is_vendored(path)) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        }
    };
    let mut ranked = files;
    ranked.sort_by_key(|path| (rank(path), path.matches('/').count(), *path));
    ranked.truncate(FILES_SHOWN);
    ranked.sort_unstable();
    ranked.into_iter().map(str::to_owned).collect()
}

fn tools_shown(found: Vec<FoundTool>, notes: &mut Vec<String>) -> Vec<FoundTool> {
    let mut tools: Vec<FoundTool> = Vec::new();
    let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
    for mut tool in found {
        tool.description = shortened(tool.description.trim(), DESCRIPTION_MAX);
        // A tool may be declared at one point of a file and registered at another. A description or parameters that are missing
        // at the first point are taken from the second.
        let key = (tool.file.clone(), tool.name.clone());
        match places.get(&key) {
            Some(at) => {
                let known = &mut tools[*at];
                if known.description.is_empty() {
                    known.description = tool.description;
                }
                if known.parameters.is_empty() {
                    known.parameters = tool.parameters;
                }
            }
            None => {
                places.insert(key, tools.len());
                tools.push(tool);
            }
        }
    }
    if tools.len() > TOOLS_SHOWN {
        notes.push(format!(
            "the repository has {} tools; the first {TOOLS_SHOWN} are listed",
            tools.len()
        ));
        tools.truncate(TOOLS_SHOWN);
    }
    tools
}

fn note_left_out(tree: &Tree, notes: &mut Vec<String>) {
    let left_out = tree.left_out();
    let Some((path, reason)) = left_out.first_key_value() else {
        return;
    };
    let first = format!("{} {reason}", shortened(path, 100));
    notes.push(match tree.left_out_count() {
        1 => format!("one file cannot be read: {first}"),
        count => format!("{count} files cannot be read, the first: {first}"),
    });
}

fn shortened(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
