//! Servers of `tests/fixtures/servers` that are a single Rust file: compiled once, with `rustc` alone.
//!
//! A test of thousands of processes has no time for an interpreter's start, and a workspace member only for tests would be
//! built with all others.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use super::programs::{root, run};
use super::sha256;

/// The server with every kind of misbehaviour.
pub fn stray() -> PathBuf {
    server("stray")
}

/// The program made of `tests/fixtures/servers/NAME.rs`. Its file is named after its content, so that a change makes a
/// new one while tests of another checkout of the same folder go on with theirs.
///
/// # Panics
///
/// When it does not compile.
pub fn server(name: &str) -> PathBuf {
    let source = root().join(format!("tests/fixtures/servers/{name}.rs"));
    let text =
        fs::read_to_string(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let folder = root().join("target/test-fixtures");
    fs::create_dir_all(&folder).expect("a folder for compiled fixtures");
    let folder = folder.canonicalize().expect("it was just made");
    let program = folder.join(format!("{name}-{}", &sha256(&text)[..16]));

    // Tests run side by side in separate processes; the first one compiles. The lock is released with the file.
    let lock = File::create(folder.join(format!("{name}.lock"))).expect("a lock file");
    lock.lock().expect("locked");
    if !program.exists() {
        let unfinished = program.with_extension("new");
        run(Command::new("rustc")
            .current_dir(root())
            .args(["--edition", "2024", "-O", "-o"])
            .arg(&unfinished)
            .arg(&source));
        fs::rename(&unfinished, &program).expect("renamed");
    }
    program
}
