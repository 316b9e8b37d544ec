//! Folders that a process of a Python environment may read in its sandbox.

use std::path::Path;

use super::venv::PTH_FILE;
use crate::child::confine::KeptPath;

/// Returns the folder of the environment whose interpreter is `python` (`<build>/bin/python`), and the folders that its `.pth`
/// file adds to Python's search path: those of the worker's runtime and of the base environment.
///
/// The process may not write to any of these folders: the `.pth` file decides which folders the sandbox contains at the next
/// start.
pub fn paths_of(python: &Path) -> Vec<KeptPath> {
    let build = python.parent().and_then(Path::parent);
    let libraries = build.and_then(|it| std::fs::read_dir(it.join("lib")).ok());
    let files = libraries.into_iter().flatten().flatten();
    let files = files.map(|it| it.path().join("site-packages").join(PTH_FILE));
    let texts = files.filter_map(|it| std::fs::read_to_string(it).ok());
    let added = texts.flat_map(|it| it.lines().map(KeptPath::readable).collect::<Vec<_>>());
    build
        .map(KeptPath::readable)
        .into_iter()
        .chain(added)
        .collect()
}
