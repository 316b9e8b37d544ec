//! The web interface in the binary equals the build of its sources, and its parts work.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::support::programs::{node, root, run};

/// Where the sources and their packages are.
fn web() -> PathBuf {
    let web = root().join("proxy/web");
    assert!(
        web.join("node_modules/installed").exists(),
        "{}/node_modules is not there: run `make test-environments`",
        web.display()
    );
    web
}

fn node_there() -> Command {
    let (node, _) = node();
    // The program may be named by a path relative to here.
    let program = PathBuf::from(node.get_program());
    let program = program.canonicalize().unwrap_or(program);
    let mut node = Command::new(program);
    node.current_dir(web());
    node
}

/// `make web` was run after the last change of the sources.
#[test]
fn the_embedded_page_is_what_its_sources_make() {
    let mut types = node_there();
    run(types.args(["node_modules/typescript/bin/tsc", "--noEmit"]));
    let built = TempDir::new().unwrap();
    run(node_there().arg("build.mjs").arg(built.path()));
    let names = |folder: PathBuf| {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let committed = web().join("dist");
    assert_eq!(names(built.path().to_owned()), names(committed.clone()));
    for name in names(committed.clone()) {
        let same =
            fs::read(built.path().join(&name)).unwrap() == fs::read(committed.join(&name)).unwrap();
        assert!(same, "{name:?} is older than its sources: run `make web`");
    }
}

#[test]
fn the_parts_of_the_page_that_need_no_browser() {
    run(node_there().args(["--test", "test/parts.test.ts"]));
}
