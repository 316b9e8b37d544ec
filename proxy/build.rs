//! Records the build for `tooldock --version --json`: the compiler, the target, the profile, and the commit if the environment
//! variable `TOOLDOCK_COMMIT` contains it.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TOOLDOCK_COMMIT");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let rustc = Command::new(variable("RUSTC")).arg("--version").output();
    let rustc = rustc.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned());
    // `OUT_DIR` is `PROFILE/build/PACKAGE/out`. The environment variable `PROFILE` does not help: it is only `debug` or
    // `release`.
    let out = variable("OUT_DIR");
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name);
    let profile = profile.map(|it| it.to_string_lossy().into_owned());
    let note = |name: &str, value: &str| println!("cargo::rustc-env=TOOLDOCK_BUILD_{name}={value}");
    note("RUSTC", &rustc.unwrap_or_default());
    note("TARGET", &variable("TARGET"));
    note("PROFILE", &profile.unwrap_or_else(|| variable("PROFILE")));
    note("COMMIT", &variable("TOOLDOCK_COMMIT"));
}
