//! Loading configurations in tests: a file in a directory of its own, variables from a list.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{
    ConfigError, Effective, Environment, GeneratedTokens, IgnoredKeys, LoadOptions, Purpose, Role,
    load,
};

/// Writes a configuration file whose data directory is `data` beside it, unless it says another.
pub(crate) fn write(yaml: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("tooldock.yaml");
    std::fs::write(&file, yaml).expect("write");
    (dir, file)
}

/// The configuration as `tooldock check -c FILE` loads it.
pub(crate) fn checked(file: &Path, variables: &[(&str, &str)]) -> Result<Effective, ConfigError> {
    load(&options(file, Purpose::Check, Role::All, false, variables))
}

/// The configuration as `tooldock secrets` and other commands beside a gateway load it.
pub(crate) fn commanded(file: &Path) -> Result<Effective, ConfigError> {
    load(&options(file, Purpose::Command, Role::All, false, &[]))
}

/// The configuration as `tooldock serve -c FILE --role ROLE` loads it.
pub(crate) fn served(
    file: &Path,
    role: Role,
    variables: &[(&str, &str)],
) -> Result<Effective, ConfigError> {
    load(&options(file, Purpose::Serve, role, false, variables))
}

/// The configuration as `tooldock serve -c FILE --dev` loads it.
pub(crate) fn served_dev(
    file: &Path,
    variables: &[(&str, &str)],
) -> Result<Effective, ConfigError> {
    load(&options(file, Purpose::Serve, Role::All, true, variables))
}

fn options(
    file: &Path,
    purpose: Purpose,
    role: Role,
    dev: bool,
    variables: &[(&str, &str)],
) -> LoadOptions {
    let mut values: BTreeMap<&str, OsString> = BTreeMap::new();
    if let Some(dir) = file.parent() {
        values.insert("DATA_DIR", dir.join("data").into());
    }
    values.extend(
        variables
            .iter()
            .map(|(name, value)| (*name, OsString::from(value))),
    );
    LoadOptions {
        file: Some(file.to_owned()),
        role,
        dev,
        purpose,
        environment: Environment::from_vars(
            values.into_iter().map(|(name, value)| (name.into(), value)),
        ),
        generated: GeneratedTokens::new().expect("randomness"),
        left_out: IgnoredKeys::default(),
    }
}
