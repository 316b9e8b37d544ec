//! The wrapper that cargo calls in place of rustc: it adds the profile of the gateway under load to release builds.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use crate::support::programs::root;

const WRAPPER: &str = ".cargo/rustc-with-profile";

/// Arguments of cargo for a library and for the gateway, with the profile `release` of Cargo.toml.
const LIBRARY: &str = "--crate-name bytes -C opt-level=3 -C linker-plugin-lto -C codegen-units=1";
const GATEWAY: &str = "--crate-name tooldock -C opt-level=3 -C lto=fat -C codegen-units=1";

fn recorded_by() -> String {
    let file = root().join("load-tests/profile/rustc.txt");
    fs::read_to_string(file).unwrap().trim().to_owned()
}

/// The arguments that a rustc of this version gets from the wrapper, and what else is printed.
fn compiled(arguments: &str, version: &str) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let rustc = folder.path().join("rustc");
    let text = format!(
        "#!/bin/sh\n[ \"$*\" != --version ] || {{ echo '{version}'; exit; }}\necho \"$*\"\n"
    );
    fs::write(&rustc, text).unwrap();
    fs::set_permissions(&rustc, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(root().join(WRAPPER))
        .arg(&rustc)
        .args(arguments.split(' '))
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let Output { stdout, stderr, .. } = output;
    let text = |bytes| String::from_utf8(bytes).unwrap().trim().to_owned();
    (text(stdout), text(stderr))
}

#[test]
fn release_builds_get_the_profile_of_the_gateway_under_load() {
    let profile = root().join("load-tests/profile/calls.profdata");
    let profile = profile.canonicalize().unwrap();
    for arguments in [LIBRARY, GATEWAY] {
        let expected = format!("{arguments} -Cprofile-use={}", profile.display());
        assert_eq!(
            compiled(arguments, &recorded_by()),
            (expected, String::new())
        );
    }
}

#[test]
fn other_builds_are_left_alone() {
    for arguments in [
        "--version --verbose",
        "--crate-name tooldock -C embed-bitcode=no",
        "--crate-name tooldock -C opt-level=3 -C lto=off -C embed-bitcode=no",
        "--crate-name client -C opt-level=z -C lto=fat",
        &format!("{GATEWAY} -Cprofile-generate=counts"),
        &format!("{GATEWAY} -C profile-generate"),
        &format!("{GATEWAY} -Cprofile-use=own.profdata"),
        &format!("{GATEWAY} -C profile-use=own.profdata"),
        &format!("{GATEWAY} -C instrument-coverage"),
        &format!("{GATEWAY} -Cinstrument-coverage"),
    ] {
        let expected = (arguments.to_owned(), String::new());
        assert_eq!(compiled(arguments, &recorded_by()), expected);
    }
}

#[test]
fn the_compiler_gets_every_variable_that_cargo_sets() {
    let output = Command::new(root().join(WRAPPER))
        .arg("env")
        .env("CARGO_BIN_EXE_some-program", "there")
        .output()
        .unwrap();
    let variables = String::from_utf8(output.stdout).unwrap();
    let kept = variables.contains("CARGO_BIN_EXE_some-program=there\n");
    assert!(kept, "{variables}");
}

#[test]
fn a_compiler_of_another_version_builds_without_the_profile_and_says_so_once() {
    let other = "rustc 1.0.0 (a59de37e9 2015-05-13)";
    assert_eq!(
        compiled(LIBRARY, other),
        (LIBRARY.to_owned(), String::new())
    );
    let (arguments, said) = compiled(GATEWAY, other);
    assert_eq!(arguments, GATEWAY);
    for part in [other, &recorded_by(), "make profile"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn the_compiler_that_recorded_the_profile_can_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.rs");
    fs::write(&source, "fn main() {}\n").unwrap();
    let output = Command::new(root().join(WRAPPER))
        .args("rustc -C opt-level=3 -C linker-plugin-lto --emit=obj main.rs".split(' '))
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}
