//! Checks the permissions of files and folders: the gateway must be able to write them, and no other user may read secrets.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::geteuid;

use super::Finding;
use crate::config::Effective;

const CHECK: &str = "permissions";

/// Files in the data directory that only the gateway's user may read.
const SECRET_FILES: [&str; 13] = [
    "keys.json",
    "secrets.enc",
    "secrets.owners.enc",
    "authorizations.enc",
    "session.key",
    "sessions.db",
    "sessions.db-wal",
    "sessions-manager.db",
    "sessions-manager.db-wal",
    "dev.token",
    "dev.manager-token",
    "dev.secrets-key",
    "upgrade.sock",
];

/// Environment variables that name files with secrets.
const SECRET_VARIABLES: [&str; 5] = [
    "BEARER_TOKEN_FILE",
    "MANAGER_INTERNAL_TOKEN_FILE",
    "SECRETS_KEY_FILE",
    "SECRETS_KEY_NEW_FILE",
    "SESSION_KEY_FILE",
];

/// Checks the data directory and all files with secrets.
pub(super) fn check(effective: &Effective) -> Vec<Finding> {
    let data = &effective.data_dir;
    let mut findings: Vec<_> = data_directory(data).into_iter().collect();
    let own = SECRET_FILES.iter().map(|name| data.join(name));
    let listeners = effective.config.listeners.iter();
    let keys = listeners.filter_map(|it| it.tls.as_ref());
    let keys = keys.flat_map(|tls| tls.certificates.iter().map(|pair| pair.key.clone()));
    let remote = effective.config.upstreams.over_http();
    let remote = remote.filter_map(|server| server.config.tls.key.clone());
    let replicas = effective.replica_tls();
    let replicas = replicas.into_iter().flat_map(|tls| tls.certificates);
    let replicas = replicas.map(|pair| pair.key);
    let variables = SECRET_VARIABLES.iter().filter_map(std::env::var_os);
    let secrets: Vec<_> = own
        .chain(keys)
        .chain(remote)
        .chain(replicas)
        .chain(variables.map(PathBuf::from))
        .collect();
    findings.extend(secrets.iter().filter_map(|file| open_to_all(file)));
    findings.extend(effective.source.as_deref().and_then(changed_by_all));
    if findings.is_empty() {
        let data = data.display();
        let said = format!("{data} can be written, and secrets are closed to other users");
        findings.push(Finding::ok(CHECK, said));
    }
    findings
}

fn data_directory(data: &Path) -> Option<Finding> {
    let printed = data.display();
    let Ok(found) = fs::metadata(data) else {
        let mut parents = data.ancestors().skip(1);
        let parent = parents.find(|it| it.exists()).unwrap_or(Path::new("/"));
        return access(parent, Access::WRITE_OK | Access::EXEC_OK)
            .is_err()
            .then(|| {
                Finding::problem(
                    CHECK,
                    format!("{printed} is not there, and this user cannot make it"),
                    format!("sudo install -d -o \"$(id -un)\" {printed}"),
                )
            });
    };
    if !found.is_dir() {
        let said = format!("the data directory {printed} is no directory");
        return Some(Finding::problem(CHECK, said, format!("ls -ld {printed}")));
    }
    if access(data, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let said = format!("this user cannot write to the data directory {printed}");
        let remedy = match found.uid() == geteuid().as_raw() {
            true => format!("chmod u+rwx {printed}"),
            false => format!(
                "sudo -u '#{}' tooldock doctor   # or sudo tooldock-as-service doctor",
                found.uid()
            ),
        };
        return Some(Finding::problem(CHECK, said, remedy));
    }
    if found.permissions().mode() & 0o002 != 0 {
        let said = format!("every user can write to the data directory {printed}");
        return Some(Finding::problem(
            CHECK,
            said,
            format!("chmod o-w {printed}"),
        ));
    }
    None
}

/// Returns a finding if all users of the machine can read or change a file with secrets; otherwise `None`.
fn open_to_all(file: &Path) -> Option<Finding> {
    let found = fs::metadata(file).ok()?;
    let is_open = found.permissions().mode() & 0o006 != 0;
    is_open.then(|| {
        let printed = file.display();
        let said =
            format!("every user of this machine can read or change the secrets in {printed}");
        Finding::problem(CHECK, said, format!("chmod o-rwx {printed}"))
    })
}

/// Returns a finding if all users of the machine can change a configuration file; otherwise `None`.
fn changed_by_all(file: &Path) -> Option<Finding> {
    let found = fs::metadata(file).ok()?;
    let is_open = found.permissions().mode() & 0o002 != 0;
    is_open.then(|| {
        let printed = file.display();
        let said = format!("every user of this machine can change the configuration {printed}");
        Finding::problem(CHECK, said, format!("chmod o-w {printed}"))
    })
}
