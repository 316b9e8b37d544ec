//! The documentation: links lead to existing targets, the map of the code names existing files, the first page stays short,
//! and lines can be pasted as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::pages;

/// The folders that hold no documentation of ours.
const SKIPPED: [&str; 3] = ["target", "node_modules", "tooldock_data"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn pages_below(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with('.') || SKIPPED.contains(&name) || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            pages_below(&path, pages);
        } else if name.ends_with(".md") {
            pages.push(path);
        }
    }
}

fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    pages_below(&root(), &mut pages);
    assert!(pages.len() > 5, "{pages:?}");
    pages
}

/// The lines outside fenced blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    })
}

/// A line with its code spans emptied: what looks like a link there is none.
fn without_code(line: &str) -> String {
    let pieces = line.split('`').enumerate();
    pieces
        .filter_map(|(index, piece)| (index % 2 == 0).then_some(piece))
        .collect()
}

/// The targets of `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for line in prose(text) {
        let line = without_code(line);
        let ends = line.split("](").skip(1);
        links.extend(ends.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())));
    }
    links
}

/// The names under which a page's headings can be linked to, as GitHub makes them, and those of `<a id="…">`.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for line in prose(text) {
        let after = line.split("<a id=\"").skip(1);
        anchors.extend(after.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let slug: String = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let seen = times.entry(slug.clone()).or_default();
        anchors.insert(match *seen {
            0 => slug,
            n => format!("{slug}-{n}"),
        });
        *seen += 1;
    }
    anchors
}

#[test]
fn every_relative_link_of_the_documentation_leads_to_a_file_and_heading() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let known = match anchor {
                "" => target.exists(),
                anchor => {
                    fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(anchor))
                }
            };
            if !known {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The crates, whose sources are written without `src/`: `proxy/edge.rs` is `proxy/src/edge.rs`.
const CRATES: [&str; 16] = [
    "proxy",
    "proxy/import-clients",
    "proxy/import-nginx",
    "proxy/otlp",
    "filters",
    "mcp-upstream",
    "mcp-upstream/engine",
    "mcp-upstream/protocol",
    "mcp-upstream/servers",
    "mcp-upstream/sessions",
    "workers",
    "workers/base",
    "workers/builder",
    "workers/credentials",
    "workers/openapi",
    "workers/process",
];

/// Whether there is such a file. The crate may be left out, too.
fn exists(path: &str) -> bool {
    let root = root();
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let in_crates = CRATES.iter().map(|name| {
        let within = path.strip_prefix(name).and_then(|it| it.strip_prefix('/'));
        Path::new(name).join("src").join(within.unwrap_or(path))
    });
    let mut candidates = vec![
        Path::new(path).to_owned(),
        Path::new(first).join("src").join(rest),
    ];
    candidates.extend(in_crates);
    candidates.iter().any(|path| root.join(path).exists())
}

/// The pages that say where things are in the code, with the fewest paths that each must name.
const MAPS: [(&str, usize); 2] = [("ARCHITECTURE.md", 50), ("CONTRIBUTING.md", 20)];

/// The fewest paths that the pages of all crates name.
const PATHS_OF_CRATES_MIN: usize = 100;

/// The paths of files and folders of the code that a page names.
fn paths(text: &str) -> Vec<&str> {
    let spans = prose(text).flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_path =
        |span: &&str| !span.contains([' ', '*', '$', ':', '{', '<']) && !span.starts_with('/');
    let is_named = |span: &&str| span.ends_with(".rs") || span.ends_with('/');
    spans.filter(is_path).filter(is_named).collect()
}

/// The root of a crate.
fn crate_root(name: &str) -> String {
    let source = root().join(name).join("src");
    let files = [source.join("lib.rs"), source.join("main.rs")];
    let file = files.iter().find(|file| file.exists()).unwrap();
    fs::read_to_string(file).unwrap()
}

/// The page of a crate: the comment at the top of its root.
fn crate_page(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(str::trim).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_path_that_the_maps_of_the_code_name_exists() {
    let mut missing = Vec::new();
    for (page, fewest) in MAPS {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let named = paths(&text);
        assert!(
            named.len() > fewest,
            "{page}: {} paths: is this how they are written?",
            named.len()
        );
        let gone = named.iter().filter(|path| !exists(path));
        missing.extend(gone.map(|path| format!("{page}: {path}")));
    }
    let mut named_by_crates = 0;
    for name in CRATES {
        let page = crate_page(&crate_root(name));
        let named = paths(&page);
        named_by_crates += named.len();
        let below = |path: &str| root().join(name).join("src").join(path).exists();
        let gone = named.iter().filter(|path| !below(path) && !exists(path));
        missing.extend(gone.map(|path| format!("{name}: {path}")));
    }
    assert!(
        named_by_crates > PATHS_OF_CRATES_MIN,
        "{named_by_crates} paths: are they elsewhere?"
    );
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_page_of_a_crate_names_each_of_its_modules() {
    let mut missing = Vec::new();
    for name in CRATES {
        let text = crate_root(name);
        let page = crate_page(&text);
        let words: BTreeSet<&str> = page
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .collect();
        let modules = text.lines().filter_map(|line| {
            let (visible, rest) = line.split_once("mod ")?;
            let is_module = ["", "pub ", "pub(crate) "].contains(&visible);
            rest.strip_suffix(';').filter(|_| is_module)
        });
        let modules: Vec<_> = modules
            .filter(|module| !["tests", "fuzzing"].contains(module))
            .collect();
        assert!(!modules.is_empty(), "{name}: its modules were not read");
        let unnamed = modules.iter().filter(|module| !words.contains(**module));
        missing.extend(unnamed.map(|module| format!("{name}: {module}")));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn the_map_of_the_code_has_two_pages_and_no_long_row() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let lines = text.lines().count();
    assert!(
        lines <= 180,
        "{lines} lines: details of a crate belong into its own page"
    );
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let long: Vec<_> = rows.filter(|row| row.chars().count() > 200).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn the_readme_has_at_most_two_hundred_lines() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = text.lines().count();
    assert!(
        lines <= 200,
        "{lines} lines: what is not the first page belongs into docs/"
    );
}

fn sources_below(folder: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources_below(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(path);
        }
    }
}

/// `make test` runs no doc tests: looking for them in all crates takes minutes, and there are none.
#[test]
fn every_block_in_a_comment_names_its_language_and_is_no_doc_test() {
    let mut sources = Vec::new();
    for name in CRATES {
        sources_below(&root().join(name).join("src"), &mut sources);
    }
    let mut doc_tests = Vec::new();
    for source in sources {
        let text = fs::read_to_string(&source).unwrap();
        let mut is_open = false;
        for line in text.lines().map(str::trim_start) {
            let doc = ["//!", "///"].iter().find_map(|it| line.strip_prefix(it));
            let Some(language) = doc.and_then(|it| it.trim_start().strip_prefix("```")) else {
                continue;
            };
            is_open = !is_open;
            if is_open && ["", "rust", "no_run", "should_panic"].contains(&language.trim()) {
                doc_tests.push(format!("{}: {line}", source.display()));
            }
        }
    }
    assert!(doc_tests.is_empty(), "{doc_tests:#?}");
}

#[test]
fn every_metric_is_documented() {
    let mut sources = Vec::new();
    for name in CRATES {
        sources_below(&root().join(name).join("src"), &mut sources);
    }
    let mut metrics = BTreeSet::new();
    for source in sources {
        let text = fs::read_to_string(source).unwrap();
        let literals = text.split("\"tooldock_").skip(1);
        metrics.extend(literals.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
    }
    // Targets of the log begin with the name of a crate.
    metrics.retain(|name| {
        let crates = [
            "base",
            "credentials",
            "filters",
            "otlp",
            "process",
            "upstream",
            "workers",
        ];
        let is_name = name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        is_name && !crates.contains(&name.as_str())
    });
    assert!(metrics.len() > 50, "{metrics:?}");
    let pages = ["docs/operating.md", "docs/stdio-servers.md"];
    let pages = pages.map(|page| fs::read_to_string(root().join(page)).unwrap());
    metrics.retain(|name| {
        let names = [format!("`tooldock_{name}`"), format!("`tooldock_{name}{{")];
        !names
            .iter()
            .any(|name| pages.iter().any(|page| page.contains(name)))
    });
    assert!(metrics.is_empty(), "not in docs/operating.md: {metrics:#?}");
}

/// Placeholders for a secret that a reader has to fill in.
const PLACEHOLDERS: [&str; 10] = [
    "change_me",
    "change-me",
    "changeme",
    "replace_me",
    "replace-me",
    "<token",
    "your-token",
    "your_token",
    "token=…",
    "bearer …",
];

/// A reader may paste a line unchanged: a secret that is read from a variable cannot be forgotten.
#[test]
fn no_line_that_is_pasted_holds_a_placeholder_for_a_secret() {
    let mut pasted: Vec<(PathBuf, String)> = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let blocks = pages::blocks(&text).into_iter();
        pasted.extend(blocks.map(|block| (page.clone(), block.text)));
    }
    assert!(pasted.len() > 20, "{} blocks", pasted.len());
    let mut folders = vec![root().join("conf")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_none_or(|kind| kind != "md") {
                let text = fs::read_to_string(&path).unwrap();
                pasted.push((path, text));
            }
        }
    }
    let mut found = Vec::new();
    for (path, text) in pasted {
        for line in text.lines() {
            let lower = line.to_lowercase();
            if PLACEHOLDERS.iter().any(|word| lower.contains(word)) {
                found.push(format!("{}: {line}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
