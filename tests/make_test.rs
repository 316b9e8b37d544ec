//! The last lines of `make test`: the time of each part, and the skipped parts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::programs::root;

/// A command of the repository that knows nothing of the run it is part of.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(root())
        .env_remove("MAKEFLAGS")
        .env_remove("TEST_SKIPPED")
        .env_remove("CI");
    command
}

/// Runs `.ci/test` with these targets of a makefile of its own; whether it succeeded, and its lines.
fn run(targets: &[&str], ci: Option<&str>) -> (bool, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let makefile = folder.path().join("Makefile");
    let text = "good:\n\t@echo the good one ran\n\
                skips:\n\t@echo 'licences: no such tool' >>$$TEST_SKIPPED\n\
                counts:\n\t@echo 'counts: none' >>$$TEST_SKIPPED\n\
                bad:\n\t@exit 7\n\
                slow:\n\t@sleep 1000\n";
    fs::write(&makefile, text).unwrap();
    let mut test = command(".ci/test");
    test.args(targets)
        .env("MAKE", format!("make -f {}", makefile.display()))
        .envs(ci.map(|ci| ("CI", ci)));
    let output = test.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(str::to_owned).collect();
    (output.status.success(), lines)
}

/// The part of a line of times.
fn timed(line: &str) -> Option<&str> {
    let (time, part) = line.trim_start().split_once("  ")?;
    let (minutes, seconds) = time.split_once(':')?;
    minutes.parse::<u32>().ok()?;
    (seconds.len() == 2).then_some(part)
}

#[test]
fn the_time_of_each_part_and_the_verdict_stand_at_the_end() {
    let (succeeded, lines) = run(&["good", "good"], Some("true"));
    assert!(succeeded, "{lines:?}");
    assert_eq!(
        lines.last().unwrap(),
        "all tests passed, nothing was skipped"
    );
    let times: Vec<_> = lines.iter().filter_map(|line| timed(line)).collect();
    assert_eq!(times, ["good", "good", "together"]);
}

#[test]
fn what_was_skipped_is_the_last_line_and_fails_the_run_in_ci_only() {
    let skipped = "SKIPPED: counts: none; licences: no such tool";
    for (ci, expected) in [
        (None, true),
        (Some("false"), true),
        (Some("true"), false),
        (Some("1"), false),
    ] {
        let (succeeded, lines) = run(&["skips", "counts", "skips", "good"], ci);
        assert_eq!(succeeded, expected, "{ci:?}: {lines:?}");
        assert!(lines.last().unwrap().ends_with(skipped), "{lines:?}");
        assert_eq!(
            lines.last().unwrap().contains("FAILED"),
            !expected,
            "{lines:?}"
        );
    }
}

#[test]
fn the_first_part_that_fails_ends_the_run_and_is_named() {
    let (succeeded, lines) = run(&["skips", "bad", "good"], None);
    assert!(!succeeded, "{lines:?}");
    let last = lines.last().unwrap();
    assert_eq!(last, "FAILED: make bad; SKIPPED: licences: no such tool");
    assert!(!lines.contains(&"the good one ran".to_owned()), "{lines:?}");
}

#[test]
fn parts_beside_others_are_shown_and_counted_and_end_with_the_run() {
    let (succeeded, lines) = run(&["good+", "counts+", "skips"], None);
    assert!(succeeded, "{lines:?}");
    assert!(lines.contains(&"the good one ran".to_owned()), "{lines:?}");
    let last = lines.last().unwrap();
    assert_eq!(
        last,
        "all tests passed; SKIPPED: counts: none; licences: no such tool"
    );
    let mut times: Vec<_> = lines.iter().filter_map(|line| timed(line)).collect();
    times.sort_unstable();
    assert_eq!(times, ["counts", "good", "skips", "together"]);

    let (succeeded, lines) = run(&["bad+", "good"], None);
    assert!(!succeeded, "{lines:?}");
    assert_eq!(lines.last().unwrap(), "FAILED: make bad");
    // The pipe of the output is closed when nothing of the run is left.
    let (succeeded, lines) = run(&["slow+", "bad"], None);
    assert!(!succeeded, "{lines:?}");
    assert_eq!(lines.last().unwrap(), "FAILED: make bad");
}

#[test]
fn parts_whose_tools_are_missing_name_them_as_skipped() {
    let folder = tempfile::tempdir().unwrap();
    // The only program there is: a cargo without subcommands.
    executable(&folder.path().join("cargo"), "#!/bin/sh\nexit 101\n");
    let skipped = folder.path().join("skipped");
    let output = command("sh")
        .args([
            "-c",
            r#"make=$(command -v make) && PATH=$1 exec "$make" cost deny"#,
            "sh",
        ])
        .arg(folder.path())
        .env("TEST_SKIPPED", &skipped)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = fs::read_to_string(skipped).unwrap();
    let lines: Vec<_> = lines.lines().collect();
    assert_eq!(
        lines,
        [
            "instruction counts: valgrind is not installed (apt-get install valgrind)",
            "licences and sources: cargo-deny is not installed (cargo install cargo-deny --locked)",
        ]
    );
}

fn executable(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}
