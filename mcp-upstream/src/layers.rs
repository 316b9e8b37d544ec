//! Layers of the crate's modules: a module uses only modules that stand before it in [`LAYERS`].
//!
//! The test reads the source: `use crate::…`, and `crate::…` in the code. Tests do not belong to the layers. An edge that points
//! the other way is an error unless it stands in [`EXCEPTIONS`], and so is an exception that no longer occurs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules from the bottom to the top. Implementations of upstreams are listed apart from the trait.
const LAYERS: &[&str] = &[
    // Protocol terms, messages, keys.
    "protocol",
    "jsonrpc",
    "seal",
    "profile",
    "caller",
    "scopes",
    "call_error",
    "supervise",
    "reload",
    "credentials",
    "health",
    "heavy_work",
    "log_file",
    // Modules that know no upstream.
    "audit",
    "format",
    "bridge",
    "stream",
    "replicas",
    "interaction",
    "session",
    "stores",
    "broadcast",
    "catalogue",
    // Connections, the engine, and the upstreams of namespaces.
    "stdio",
    "metrics",
    "engine",
    "upstream",
    "upstream/http",
    "upstream/worker",
    "upstream/aggregate",
    "upstream/system",
    "upstream/client",
    "upstream/global",
    // Surfaces.
    "reply",
    "error",
    "pages",
    "mcp",
    "legacy",
    "rest",
    "web",
    "surface",
    "service",
];

/// Edges against the layers, each with the change that will remove it.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

#[test]
fn modules_use_only_modules_below_them() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut edges = BTreeSet::new();
    for file in sources(&source) {
        let path = file.strip_prefix(&source).expect("inside");
        let path = path.to_str().expect("UTF-8");
        let Some(from) = module(path.trim_end_matches(".rs")) else {
            continue;
        };
        let text = fs::read_to_string(&file).expect("a source file");
        for used in uses(&text) {
            let to = module(&used);
            edges.extend(to.filter(|to| *to != from).map(|to| (from, to)));
        }
    }
    assert!(edges.len() > LAYERS.len(), "the source was not read");
    let place = |module: &str| LAYERS.iter().position(|it| *it == module);
    let upward = |(from, to): &&(&str, &str)| place(from) < place(to);
    let found: BTreeSet<_> = edges.iter().filter(upward).copied().collect();
    let known = EXCEPTIONS.iter().map(|(from, to, _)| (*from, *to));
    let known: BTreeSet<_> = known.collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "these modules use one above them: {new:?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(
        gone.is_empty(),
        "these exceptions are not needed any more: {gone:?}"
    );
}

#[test]
fn every_module_has_a_layer() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let library = fs::read_to_string(source.join("lib.rs")).expect("the crate");
    let (production, _) = library
        .split_once("#[cfg(test)]")
        .expect("tests stand last");
    let modules = production.lines().filter_map(|line| {
        let line = line.trim_start_matches("pub ");
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    for name in modules {
        assert!(LAYERS.contains(&name), "{name} has no place in LAYERS");
    }
}

#[test]
fn imports_are_found_however_they_are_written() {
    let text = "use crate::mcp::{self, exchange::{body, Up}, head::McpHead};\n\
                // crate::rest is only spoken of\n\
                fn f() { crate::stdio::x(); }\n\
                #[cfg(test)]\nmod tests { use crate::service::Service; }\n";
    let found: BTreeSet<_> = uses(text).into_iter().collect();
    let expected = [
        "mcp/exchange/Up",
        "mcp/exchange/body",
        "mcp/head/McpHead",
        "mcp/self",
        "stdio/x",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
}

/// The layer that a path belongs to; the parts of the path are separated by slashes.
fn module(path: &str) -> Option<&'static str> {
    let within = |layer: &&&str| {
        let rest = path.strip_prefix(**layer);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    LAYERS
        .iter()
        .filter(within)
        .max_by_key(|it| it.len())
        .copied()
}

/// The files of the crate except tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str());
        if matches!(
            name,
            Some("tests" | "testing" | "contract" | "cost" | "properties" | "layers")
        ) {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
    found
}

/// The modules of the crate that a file uses, its tests excluded.
fn uses(text: &str) -> Vec<String> {
    let tests = ["mod tests {", "pub(crate) mod tests {"];
    let tests = tests.map(|it| text.find(&format!("#[cfg(test)]\n{it}")));
    let end = tests.into_iter().flatten().min().unwrap_or(text.len());
    let production = &text[..end];
    let code: Vec<&str> = production
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        // Skips `$crate` of a macro, and names that end in `crate`.
        if code[..at].ends_with(|before: char| before.is_alphanumeric() || "_$:".contains(before)) {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        let end = end_of_path(rest);
        expand("", &rest[..end], &mut found);
    }
    found
}

/// The end of a path, including its braces.
fn end_of_path(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '{' if depth > 0 || text[..at].ends_with("::") || at == 0 => depth += 1,
            '}' if depth > 1 => depth -= 1,
            '}' if depth == 1 => return at + 1,
            _ if depth > 0 => {}
            ':' | '_' => {}
            other if other.is_alphanumeric() => {}
            _ => return at,
        }
    }
    text.len()
}

/// Expands a path with braces into single paths.
fn expand(before: &str, path: &str, found: &mut Vec<String>) {
    let path = path.trim();
    let Some(open) = path.find('{') else {
        if !path.is_empty() {
            let path = path.split(" as ").next().unwrap_or_default();
            found.push(format!(
                "{before}{}",
                path.trim_end_matches(':').replace("::", "/")
            ));
        }
        return;
    };
    let before = format!("{before}{}", path[..open].replace("::", "/"));
    let inner = path[open + 1..].strip_suffix('}').unwrap_or_default();
    let (mut depth, mut start) = (0_usize, 0);
    for (at, character) in inner.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                expand(&before, &inner[start..at], found);
                start = at + 1;
            }
            _ => {}
        }
    }
    expand(&before, &inner[start..], found);
}
