//! `.ci/release`: release builds with the recorded profile of the gateway under load; and the one version of Rust that CI, the
//! image and the recording have.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::programs::root;

fn text(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// The version of rustc that recorded the profile, as it prints it.
fn recorded_by() -> String {
    text("load-tests/profile/rustc.txt").trim().to_owned()
}

/// A program of a shell, for `PATH`.
fn program(folder: &Path, name: &str, script: &str) {
    let file = folder.join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A run of `.ci/release`.
struct ReleaseBuild {
    /// The arguments that cargo got.
    arguments: Vec<String>,
    stderr: String,
    folder: tempfile::TempDir,
}

impl ReleaseBuild {
    /// Runs the script with a cargo that prints its arguments, beside a rustc of this version.
    fn run(version: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        program(folder.path(), "cargo", r#"printf '%s\n' "$@""#);
        program(folder.path(), "rustc", &format!("echo '{version}'"));
        let path = std::env::var("PATH").unwrap();
        let output = Command::new(root().join(".ci/release"))
            .args(["--package", "tooldock"])
            .env("PATH", format!("{}:{path}", folder.path().display()))
            .env("CARGO_TARGET_DIR", folder.path())
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        Self {
            arguments: stdout.lines().map(str::to_owned).collect(),
            stderr: String::from_utf8(output.stderr).unwrap(),
            folder,
        }
    }

    fn is_without_profile(&self) -> bool {
        self.arguments == ["build", "--release", "--locked", "--package", "tooldock"]
    }
}

#[test]
fn release_builds_get_the_profile_of_the_gateway_under_load() {
    let build = ReleaseBuild::run(&recorded_by(), &[]);
    assert_eq!(build.stderr, "");
    let [
        "build",
        "--release",
        "--locked",
        "--config",
        config,
        "--package",
        "tooldock",
    ] = *build
        .arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
    else {
        panic!("{:?}", build.arguments);
    };
    let flag = config.strip_prefix("target.'cfg(all())'.rustflags=['-Cprofile-use=");
    let used = PathBuf::from(flag.and_then(|it| it.strip_suffix("']")).expect(config));
    assert!(used.starts_with(build.folder.path()), "{config}");
    let recording = root().join("load-tests/profile/calls.profdata");
    assert!(fs::read(used).unwrap() == fs::read(recording).unwrap());
}

#[test]
fn a_compiler_of_another_version_builds_without_the_profile_and_says_so() {
    let other = "rustc 1.0.0 (a59de37e9 2015-05-13)";
    let build = ReleaseBuild::run(other, &[]);
    assert!(build.is_without_profile(), "{:?}", build.arguments);
    let last = build.stderr.lines().last().unwrap_or_default();
    for part in [other, &recorded_by(), "make profile"] {
        assert!(last.contains(part), "{}", build.stderr);
    }
}

#[test]
fn flags_of_the_environment_take_the_place_of_the_profile_and_it_is_said() {
    for (name, value) in [
        ("RUSTFLAGS", "-Cprofile-generate=counts"),
        ("CARGO_ENCODED_RUSTFLAGS", "-Cinstrument-coverage"),
    ] {
        let build = ReleaseBuild::run(&recorded_by(), &[(name, value)]);
        assert!(build.is_without_profile(), "{:?}", build.arguments);
        assert!(build.stderr.contains("unset it"), "{}", build.stderr);
    }
}

#[test]
fn the_compiler_that_recorded_the_profile_can_read_it() {
    let rustc = || {
        let mut rustc = Command::new("rustc");
        rustc.current_dir(root());
        rustc
    };
    let version = rustc().arg("--version").output().unwrap();
    if String::from_utf8(version.stdout).unwrap().trim() != recorded_by() {
        // Only rustup reads rust-toolchain.toml: without it, rustc may be another version than the recorded one.
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.rs");
    fs::write(&source, "fn main() {}\n").unwrap();
    let output = rustc()
        .args("-Copt-level=3 --emit=obj -Cprofile-use=load-tests/profile/calls.profdata".split(' '))
        .arg("--out-dir")
        .args([folder.path(), &source])
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

#[test]
fn ci_the_image_and_the_recording_have_one_version_of_rust() {
    let pinned = text("rust-toolchain.toml");
    let channel = pinned.lines().find_map(|it| it.strip_prefix("channel = "));
    let version = channel.expect("a channel").trim_matches('"');
    assert!(
        recorded_by().starts_with(&format!("rustc {version} (")),
        "{version}: make profile"
    );
    let image = text("conf/container/Containerfile");
    assert!(
        image.contains(&format!("/rust:{version}-slim-")),
        "{version}: conf/container/Containerfile has another"
    );
    for crate_of_counts in ["filters", "mcp-upstream"] {
        let counts = text(&format!("{crate_of_counts}/cost.json"));
        assert!(
            counts.contains(&format!("\"compiler\": \"rustc {version}\"")),
            "{version}: make cost-write"
        );
    }
}

#[test]
fn the_image_and_make_release_build_with_the_profile() {
    let image = text("conf/container/Containerfile");
    assert!(image.contains("RUN .ci/release --package tooldock"));
    assert!(text("Makefile").contains("\n\t.ci/release --package tooldock\n"));
}
