//! A package that is installed before its server is started, as operators and clients see it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{and, readiness, serving, shared_pid, stray};
use crate::support::eventually;

/// A `uvx` that installs until a file is there, and runs the server with every vice.
fn uvx(folder: &Path) -> Value {
    let stray = stray(&[]);
    let program = stray["command"].as_str().expect("a path");
    let folder_name = folder.display();
    let script = format!(
        "#!/bin/sh\nfor word in \"$@\"; do case \"$word\" in --from)\n\
         echo \"downloading the package, niceness $(nice)\" >&2\n\
         while [ ! -e '{folder_name}/go' ]; do sleep 0.05; done; exit 0;; esac; done\n\
         exec '{program}'\n"
    );
    let path = folder.join("uvx");
    fs::write(&path, script).expect("the script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
    json!({"command": path, "args": ["some-server"]})
}

#[tokio::test]
async fn a_package_that_is_being_installed_is_seen_in_ready_and_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let server = and(uvx(folder.path()), json!({"install_timeout": "2m"}));
    let gateway = serving(json!({"any": server, "beside": stray(&[])})).await;
    let entry = eventually("it is being installed", || async {
        let entry = readiness(&gateway, "any").await;
        (entry["state"] == "installing").then_some(entry)
    })
    .await;
    assert_eq!(entry["server"]["processes"]["installing"], 1, "{entry}");
    let own = Command::new("nice").output().unwrap().stdout;
    let own: i32 = String::from_utf8(own).unwrap().trim().parse().unwrap();
    // Behind whatever answers calls.
    let downloading = format!("downloading the package, niceness {}", (own + 10).min(19));
    eventually("the log says so", || async {
        let log = gateway.log();
        let told = log
            .contains("the package of the server of namespace any is installed, for at most 2m")
            && log.contains(&downloading);
        told.then_some(())
    })
    .await;
    // Other namespaces do not wait for it.
    assert!(shared_pid(&gateway, "beside").await > 0);
    fs::write(folder.path().join("go"), "").unwrap();
    assert!(shared_pid(&gateway, "any").await > 0);
    assert_eq!(readiness(&gateway, "any").await["state"], "ready");
}
