//! Explains accesses that a sandbox may have refused. A refusal is recognized by an error text in the output of a process or in
//! the exception of a function, and is explained once, with the configuration key that allows the access.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use tooldock_base::config::SandboxMode;
use tooldock_base::names::NamespaceName;

/// Maximum number of refusals that are explained for one namespace.
const EXPLAINED_MAX: usize = 64;
/// Maximum length of a path that an explanation quotes, in bytes; a longer path is not quoted.
const PATH_MAX: usize = 512;

/// Error texts of programs after an access that a sandbox refused.
const REFUSALS: [&str; 7] = [
    "Permission denied",
    "permission denied",
    "EACCES",
    "Operation not permitted",
    "operation not permitted",
    "EPERM",
    "Read-only file system",
];
/// Error texts of programs about files that do not exist. Below the data directory, a sandbox causes these errors.
const ABSENCES: [&str; 3] = ["No such file", "no such file", "ENOENT"];

/// Explains the refusals of the sandbox of one namespace.
#[derive(Debug)]
pub struct RefusalHints {
    namespace: NamespaceName,
    mode: SandboxMode,
    /// Folders that are empty in the sandbox.
    covered: Vec<PathBuf>,
    explained: Mutex<HashSet<(&'static str, String)>>,
}

impl RefusalHints {
    /// Creates explanations for a sandbox of this mode, in which the folders `covered` are empty.
    pub fn new(namespace: NamespaceName, mode: SandboxMode, covered: Vec<PathBuf>) -> Self {
        Self {
            namespace,
            mode,
            covered,
            explained: Mutex::default(),
        }
    }

    /// Logs an explanation of a line, if the line reports a refusal that was not explained yet.
    pub(super) fn look_at(&self, line: &str) {
        let Some(hint) = self.explanation(line) else {
            return;
        };
        tracing::warn!(namespace = self.namespace.as_str(), "{hint}");
    }

    fn explanation(&self, line: &str) -> Option<String> {
        let path = path_in(line).filter(|it| it.len() <= PATH_MAX);
        let is_covered = |path: &str| {
            let mut covered = self.covered.iter().filter_map(|it| it.to_str());
            covered.any(|it| path.starts_with(it))
        };
        let refused = REFUSALS.iter().find(|it| line.contains(**it));
        let absent = || {
            let absent = ABSENCES.iter().find(|it| line.contains(**it));
            absent.filter(|_| path.is_some_and(is_covered))
        };
        let kind = *refused.or_else(absent)?;
        let mut explained = self
            .explained
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let entry = (kind, path.unwrap_or_default().to_owned());
        if explained.len() >= EXPLAINED_MAX || !explained.insert(entry) {
            return None;
        }
        let mode = self.mode.as_str();
        Some(match path {
            Some(path) => format!(
                "\"{kind}\" for {}: if the sandbox ({mode}) keeps it away, sandbox.read or sandbox.write opens it \
                 (docs/sandbox.md)",
                super::printable_text(path)
            ),
            None => format!(
                "\"{kind}\": the sandbox ({mode}) may be the reason; docs/sandbox.md lists what it refuses, with the key for each"
            ),
        })
    }
}

/// The first absolute path in quotes of a line; without one, the first word that is an absolute path.
fn path_in(line: &str) -> Option<&str> {
    for quote in ['\'', '"'] {
        let mut parts = line.split(quote).skip(1).step_by(2);
        if let Some(path) = parts.find(|it| it.starts_with('/')) {
            return Some(path);
        }
    }
    let mut words = line.split_whitespace();
    let path = words.find(|it| it.starts_with('/'))?;
    Some(path.trim_end_matches([':', ',', ';', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_explained_once_for_each_path_and_kind() {
        let hints = RefusalHints::new(
            "ns".parse().unwrap(),
            SandboxMode::Basic,
            vec!["/data".into()],
        );
        for (line, told) in [
            (
                "PermissionError: [Errno 13] Permission denied: '/srv/a'",
                Some("/srv/a"),
            ),
            (
                "PermissionError: [Errno 13] Permission denied: '/srv/a'",
                None,
            ),
            (
                "PermissionError: [Errno 13] Permission denied: '/srv/b'",
                Some("/srv/b"),
            ),
            (
                "Error: EACCES: permission denied, open '/srv/c'",
                Some("/srv/c"),
            ),
            ("cat: /srv/d: Permission denied", Some("/srv/d")),
            (
                "FileNotFoundError: [Errno 2] No such file or directory: '/srv/e'",
                None,
            ),
            (
                "FileNotFoundError: [Errno 2] No such file or directory: '/data/keys.json'",
                Some("/data/keys.json"),
            ),
            ("ptrace: Operation not permitted", Some("docs/sandbox.md")),
            ("all is well in /data", None),
        ] {
            let hint = hints.explanation(line);
            match told {
                Some(part) => assert!(hint.is_some_and(|it| it.contains(part)), "{line}"),
                None => assert_eq!(hint, None, "{line}"),
            }
        }
    }
}
