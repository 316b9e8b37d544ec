//! Layers of the modules of each crate: a module uses only modules that stand before it in the list of its crate.
//!
//! The test reads the source: `crate::…` and `super::…`, in imports and in the code. Tests do not belong to the layers. An edge
//! that points the other way is an error unless it stands in [`EXCEPTIONS`], and so is an exception that no longer occurs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::support::programs;

/// Roots of the crates with their modules from the bottom to the top. A name with a slash is a part of a module that has a
/// layer of its own.
const CRATES: &[(&str, &[&str])] = &[
    ("filters/src/lib.rs", FILTERS),
    ("mcp-upstream/engine/src/lib.rs", ENGINE),
    ("mcp-upstream/protocol/src/lib.rs", PROTOCOL),
    ("mcp-upstream/servers/src/lib.rs", SERVERS),
    ("mcp-upstream/sessions/src/lib.rs", SESSIONS),
    ("mcp-upstream/src/lib.rs", MCP_UPSTREAM),
    ("proxy/otlp/src/lib.rs", OTLP),
    ("proxy/src/main.rs", PROXY),
    ("workers/base/src/lib.rs", BASE),
    ("workers/builder/src/lib.rs", BUILDER),
    ("workers/credentials/src/lib.rs", CREDENTIALS),
    ("workers/openapi/src/lib.rs", OPENAPI),
    ("workers/process/src/lib.rs", PROCESS),
    ("workers/src/lib.rs", WORKERS),
];

const FILTERS: &[&str] = &[
    // Parts of a request, refusals, and the tables of routes and names.
    "fields",
    "fingerprint",
    "token",
    "algorithm",
    "rate",
    "rejection",
    "version",
    "path",
    "host",
    "principal",
    "route",
    "namespace",
    "origin",
    "media",
    // The configuration, and the tables that are built from it.
    "config",
    "makers",
    "network",
    "certificate",
    // Checks of a request, and the list that runs them.
    "request",
    "basic",
    "budget",
    "concurrency",
    "csrf",
    "failures",
    "flood",
    "head",
    "limits",
    "manager",
    "oauth",
    "bearer",
    "admission",
];

const PROTOCOL: &[&str] = &["version", "jsonrpc", "format", "seal", "bridge", "testing"];

const SESSIONS: &[&str] = &[
    // Terms of callers and records.
    "profile",
    "caller",
    "call_error",
    "log_file",
    "audit",
    // Conversations with clients, and the entries that they see.
    "stream",
    "replicas",
    "interaction",
    "session",
    "tasks",
    "stores",
    "broadcast",
    "catalogue",
    "testing",
];

const SERVERS: &[&str] = &[
    "breaker",
    "metrics",
    "turns",
    "pipes",
    "link",
    "handshake",
    "key",
    "launch",
    "pool",
    "http",
    "testing",
];

/// Implementations of upstreams are listed apart from the trait.
const ENGINE: &[&str] = &[
    "trace",
    "supervise",
    "connect_links",
    "hooks",
    "metrics",
    "engine",
    "upstream",
    "upstream/worker",
    "upstream/aggregate",
    "upstream/system",
    "upstream/client",
    "upstream/global",
    "testing",
];

const MCP_UPSTREAM: &[&str] = &[
    // Terms of requests, and ports.
    "probe",
    "scopes",
    "reload",
    "credentials",
    "health",
    "tool_result",
    // Surfaces.
    "reply",
    "error",
    "pages",
    "mcp",
    "probe_events",
    "legacy",
    "rest",
    "web",
    "surface",
    "service",
];

const OPENAPI: &[&str] = &[
    "budget",
    "names",
    "swagger",
    "document",
    "schema",
    "output",
    "selection",
    "encode",
    "multipart",
    "parameter",
    "body",
    "pages",
    "tool",
    "operation",
    "request",
    "response",
    "api",
];

const OTLP: &[&str] = &[
    "tls",
    "client",
    "encode",
    "queue",
    "families",
    "logs",
    "operations",
    "sink",
    "export",
];

const PROXY: &[&str] = &[
    // Files, values of headers, and the configuration.
    "kept_file",
    "nearest",
    "timeout",
    "scratch",
    "request_id",
    "header_edits",
    "cli",
    "config",
    "logging",
    "access_log",
    "allocator",
    "descriptors",
    "session_key",
    "telemetry",
    // Connections of clients, and to other servers.
    "sockets",
    "session_store",
    "body",
    "connection",
    "tls",
    "rules",
    "remote",
    "replicas",
    "certificates",
    // Requests and answers.
    "metrics",
    "unread",
    "respond",
    "web",
    "web_session",
    "issuers",
    "web_login",
    "connect_pages",
    "stream",
    "gateway",
    "edge",
    // The running process, and the commands.
    "check",
    "config_view",
    "hooks",
    "sandbox",
    "dev",
    "upgrade",
    "watcher",
    "management",
    "reconfigure",
    "signals",
    "service_manager",
    "relay",
    "control_loop",
    "serve",
    "operator",
    "doctor",
    "version",
    "command_pages",
    "new_namespace",
    "test_namespace",
    "explain_cli",
    "import_nginx",
    "keys_cli",
    "secrets_cli",
    "client_files",
    "toolman",
];

const BUILDER: &[&str] = &[
    "progress", "tree", "analysis", "source", "clone", "reach", "http", "registry", "fetch",
    "store", "job",
];

const BASE: &[&str] = &[
    // Names, texts and values.
    "names",
    "bounds",
    "address",
    "secret",
    "redactor",
    "yaml",
    "json",
    "logins",
    "template",
    "mask",
    "pattern",
    "definition",
    "prompt",
    "resource",
    "tool",
    "error",
    "server_failure",
    "fault",
    "issue",
    "key_maker",
    "precedence",
    "worker_state",
    "route",
    "off_or",
    "network",
    "namespace_scope",
    "config",
    "metric_table",
    "trace",
    // Rights and limits.
    "scope",
    "effect",
    "grant",
    "policy",
    "gate",
    "parking",
    "heavy_work",
    "budget",
    "answers",
    "failures",
    // Files and runtimes.
    "regular_file",
    "tree_file",
    "file_lock",
    "gateway_process",
    "data_dir",
    "listening",
    "runtimes",
    "poll_watch",
];

const CREDENTIALS: &[&str] = &["keys", "secrets", "personal"];

const PROCESS: &[&str] = &[
    "metrics",
    "child",
    "requirements",
    "sandbox",
    "environment",
    "worker",
    "repositories",
];

const WORKERS: &[&str] = &[
    // Configured servers of one kind, folders.
    "yaml_edit",
    "pins",
    "server_settings",
    "external",
    "remote",
    "openapi",
    "aggregate",
    "manifest",
    "scan",
    // All namespaces, and changes of them.
    "registry",
    "explain",
    "hidden",
    "servers",
    "narrow",
    "recipients",
    "manage",
    "folder_check",
    "reload",
    "watch",
];

/// Edges against the layers: root, module and used module, each with the change that will remove it.
const EXCEPTIONS: &[(&str, &str, &str, &str)] = &[];

#[test]
fn modules_use_only_modules_below_them() {
    let mut found = BTreeSet::new();
    for (root, layers) in CRATES {
        let mut edges = BTreeSet::new();
        for (module, text) in modules(root) {
            let Some(from) = layer(layers, &module) else {
                continue;
            };
            let used = uses(&module, &text);
            let to = used.iter().filter_map(|used| layer(layers, used));
            edges.extend(to.filter(|to| *to != from).map(|to| (from, to)));
        }
        assert!(!edges.is_empty(), "{root}: the modules were not read");
        let height = |module: &str| layers.iter().position(|it| *it == module);
        let upward = edges
            .into_iter()
            .filter(|(from, to)| height(from) < height(to));
        found.extend(upward.map(|(from, to)| (*root, from, to)));
    }
    let known: BTreeSet<_> = EXCEPTIONS.iter().map(|it| (it.0, it.1, it.2)).collect();
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
    for (root, layers) in CRATES {
        let names: BTreeSet<_> = modules(root).into_iter().map(|it| it.0).collect();
        for name in &names {
            assert!(layer(layers, name).is_some(), "{root}: {name} has no layer");
        }
        for layer in *layers {
            assert!(names.contains(*layer), "{root} has no module {layer}");
        }
    }
}

#[test]
fn imports_are_found_however_they_are_written() {
    let text = "use crate::mcp::{self, exchange::{body, Up}, head::McpHead};\n\
                // crate::rest is only spoken of\n\
                use super::frame::Frame;\n\
                fn f() { crate::stdio::x(); super::super::super::engine::run(); }\n\
                #[cfg(test)]\nmod tests { use crate::service::Service; }\n";
    let found: BTreeSet<_> = uses("upstream/http/call", text).into_iter().collect();
    let expected = [
        "engine/run",
        "mcp/exchange/Up",
        "mcp/exchange/body",
        "mcp/head/McpHead",
        "mcp/self",
        "stdio/x",
        "upstream/http/frame/Frame",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
}

#[test]
fn modules_of_tests_are_not_read() {
    let text = "mod link;\n#[cfg(test)]\npub(crate) mod testing;\npub(super) mod wire;\n\
                #[cfg(test)]\n#[path = \"counted.rs\"]\nmod counted;\n#[cfg(test)]\nmod tests {}\n";
    assert_eq!(declared(text), ["link", "wire"]);
}

/// The layer that a path belongs to; the parts of the path are separated by slashes.
fn layer(layers: &[&'static str], path: &str) -> Option<&'static str> {
    let within = |layer: &&&str| {
        let rest = path.strip_prefix(**layer);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let found = layers.iter().filter(within);
    found.max_by_key(|it| it.len()).copied()
}

/// Names and texts of all modules of a crate, by the path of its root.
fn modules(root: &str) -> Vec<(String, String)> {
    let root = programs::root().join(root);
    let mut found = Vec::new();
    read_modules(root.parent().unwrap(), "", &root, &mut found);
    found
}

/// Reads the modules that a file declares, and theirs.
fn read_modules(source: &Path, parent: &str, file: &Path, found: &mut Vec<(String, String)>) {
    let text = fs::read_to_string(file).unwrap();
    for name in declared(&text) {
        let name = format!("{parent}{name}");
        let file = source.join(format!("{name}.rs"));
        read_modules(source, &format!("{name}/"), &file, found);
        found.push((name, fs::read_to_string(file).unwrap()));
    }
}

/// Returns the modules that a file declares, except modules for tests and for fuzzing.
fn declared(text: &str) -> Vec<&str> {
    let (mut found, mut of_tests) = (Vec::new(), false);
    for line in text.lines() {
        let (visible, rest) = line.split_once("mod ").unwrap_or_default();
        if let Some(name) = rest.strip_suffix(';')
            && !of_tests
            && ["", "pub ", "pub(crate) ", "pub(super) "].contains(&visible)
        {
            found.push(name);
        }
        of_tests = ["#[cfg(test)]", "#[cfg(any(test, fuzzing))]"].contains(&line)
            || (of_tests && line.starts_with('#'));
    }
    found
}

/// The modules of the crate that a module uses, its tests excluded.
fn uses(module: &str, text: &str) -> Vec<String> {
    let tests = ["mod tests {", "pub(crate) mod tests {"];
    let tests = tests.map(|it| text.find(&format!("#[cfg(test)]\n{it}")));
    let end = tests.into_iter().flatten().min().unwrap_or(text.len());
    let production = &text[..end];
    let code: Vec<&str> = production
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    let code = code.join("\n");
    // Skips `$crate` of a macro, and names that end in `crate`.
    let starts = |at: &usize| {
        let inside = |before: char| before.is_alphanumeric() || "_$:".contains(before);
        !code[..*at].ends_with(inside)
    };
    let mut found = Vec::new();
    for (at, root) in code.match_indices("crate::") {
        if starts(&at) {
            let rest = &code[at + root.len()..];
            expand("", &rest[..end_of_path(rest)], &mut found);
        }
    }
    for (at, _) in code.match_indices("super::") {
        if starts(&at) {
            let (mut rest, mut parent) = (&code[at..], module);
            while let Some(above) = rest.strip_prefix("super::") {
                parent = parent.rsplit_once('/').map_or("", |it| it.0);
                rest = above;
            }
            let before = match parent {
                "" => String::new(),
                parent => format!("{parent}/"),
            };
            expand(&before, &rest[..end_of_path(rest)], &mut found);
        }
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
