//! The base environment: one virtual environment with pydantic, shared read-only by all namespaces (DESIGN §5).
//!
//! `workers.base_env` is a symlink to `<base_env>.<hash>` beside it. The hash covers requirements and interpreter, so after a
//! change a new environment is built beside the old one. If there is a plain virtual environment at that path, made by hand or
//! part of an image, it is used unchanged if it contains pydantic 2.
//!
//! Packages that only make workers faster are installed last, and only as wheels: on platforms without such wheels, workers run
//! without them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use tooldock_base::config::WorkersConfig;
use tooldock_base::data_dir::short_hash;

use super::installer::{Installer, Step};
use super::interpreter::{Interpreter, find_program};
use super::lock::FileLock;
use super::{EnvironmentError, blocking, stamp, switch_symlink, venv};
use crate::child::Priority;

/// Packages that the Python runtime uses if they are installed. The gateway never compiles them, and a failure to install them
/// must not make the base environment fail.
const OPTIONAL: [&str; 2] = ["orjson", "uvloop"];

/// A base environment that is complete and can be used.
#[derive(Debug, Clone)]
pub(super) struct Base {
    /// Path of the environment's interpreter, which runs pip for namespaces if uv is not available.
    pub(super) python: PathBuf,
    /// Folder of the environment's packages.
    pub(super) site_packages: PathBuf,
    /// Id of the environment. Base environments with equal ids have equal content.
    pub(super) id: String,
}

/// Returns the base environment at `path`, and makes it first if it is missing or outdated.
pub(super) async fn prepare(
    path: PathBuf,
    config: &WorkersConfig,
    interpreter: &Interpreter,
    installer: &Installer,
) -> Result<Base, EnvironmentError> {
    if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return made_by_hand(&path, interpreter);
    }
    let key = short_hash(
        format!(
            "{}\0{}",
            interpreter.id,
            config.base_requirements.join("\0")
        )
        .as_bytes(),
    );
    let environment = beside(&path, &key);
    let link_target = PathBuf::from(environment.file_name().unwrap_or_default());
    if !is_usable(&environment, &key, interpreter) {
        make(&path, &environment, &key, config, interpreter, installer)
            .await
            .map_err(|error| advice(&path, config, error))?;
    }
    let link = path.clone();
    blocking(move || switch_symlink(&link, &link_target)).await?;
    Ok(Base {
        python: environment.join("bin/python"),
        site_packages: environment.join(&interpreter.site_packages),
        id: key,
    })
}

/// Returns true if the environment is complete, and packages can be installed with it. An environment made by uv has no pip, so
/// it can only be used while uv is available.
fn is_usable(environment: &Path, key: &str, interpreter: &Interpreter) -> bool {
    stamp::is_complete(environment, key)
        && (environment
            .join(&interpreter.site_packages)
            .join("pip")
            .is_dir()
            || find_program("uv").is_some())
}

async fn make(
    path: &Path,
    environment: &Path,
    key: &str,
    config: &WorkersConfig,
    interpreter: &Interpreter,
    installer: &Installer,
) -> Result<(), EnvironmentError> {
    let parent = path.parent().unwrap_or(Path::new("/")).to_owned();
    let fresh = environment.to_owned();
    blocking(move || {
        fs::create_dir_all(&parent).map_err(|e| EnvironmentError::io("create", &parent, &e))
    })
    .await?;
    let _lock = FileLock::take(beside(path, "lock"), config.sync_timeout).await?;
    // Another process may have made the environment while this one waited for the lock.
    if is_usable(environment, key, interpreter) {
        return Ok(());
    }
    tracing::info!(path = %environment.display(), "making the base environment");
    blocking(move || venv::remove_tree(&fresh)).await?;

    let directory = path.parent().unwrap_or(Path::new("/"));
    let uv = find_program("uv");
    let mut arguments: Vec<OsString> = Vec::new();
    let program = if let Some(uv) = &uv {
        let step = Step::local(
            "make the base environment",
            uv,
            &[
                &"venv",
                &"-q",
                &"--python",
                &interpreter.executable,
                &environment,
            ],
        );
        installer.run(step).await?;
        arguments
            .extend(["pip", "install", "-q", "--compile-bytecode", "--python"].map(OsString::from));
        arguments.push(environment.join("bin/python").into());
        uv.clone()
    } else {
        let step = Step::local(
            "make the base environment",
            &interpreter.executable,
            &[&"-m", &"venv", &environment],
        );
        installer.run(step).await.map_err(|error| {
            EnvironmentError(format!("{error}\n(Debian and Ubuntu keep venv in a package of its own: apt install python3-venv)"))
        })?;
        arguments.extend(
            [
                "-m",
                "pip",
                "install",
                "-q",
                "--no-input",
                "--disable-pip-version-check",
            ]
            .map(OsString::from),
        );
        environment.join("bin/python")
    };
    let install = async |more: &[&str], requirements: &[&String]| {
        if requirements.is_empty() {
            return Ok(());
        }
        let mut arguments = arguments.clone();
        arguments.extend(more.iter().map(OsString::from));
        arguments.extend(requirements.iter().map(OsString::from));
        let step = Step {
            doing: "install workers.base_requirements",
            program: &program,
            arguments,
            directory,
            variables: Vec::new(),
            limit: config.sync_timeout,
            priority: Priority::Normal,
            lines: None,
        };
        installer.run(step).await.map(drop)
    };
    let (optional, required): (Vec<_>, Vec<_>) = config
        .base_requirements
        .iter()
        .partition(|requirement| is_optional(requirement));
    install(&[], &required).await?;
    // Each package is installed separately, since a platform may have wheels of only one of them.
    for requirement in optional {
        if let Err(error) = install(&["--only-binary", ":all:"], &[requirement]).await {
            tracing::warn!(%requirement, %error, "an optional package cannot be installed; workers run without it, more slowly");
        }
    }
    let environment = environment.to_owned();
    let key = key.to_owned();
    blocking(move || stamp::write(&environment, &key)).await
}

/// Returns true if workers can run without the package that the requirement names.
fn is_optional(requirement: &str) -> bool {
    let requirement = requirement.trim_start();
    let end = requirement
        .find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.'))
        .unwrap_or(requirement.len());
    OPTIONAL
        .iter()
        .any(|name| requirement[..end].eq_ignore_ascii_case(name))
}

/// Returns an environment that the gateway did not make, unchanged, if it can be used as base environment.
fn made_by_hand(path: &Path, interpreter: &Interpreter) -> Result<Base, EnvironmentError> {
    let python = path.join("bin/python");
    let site_packages = path.join(&interpreter.site_packages);
    let pydantic = venv::installed_version(&site_packages, "pydantic");
    match pydantic {
        Some(version) if python.is_file() && venv::major(&version) >= Some(2) => Ok(Base {
            id: short_hash(format!("{}\0{}\0{version}", interpreter.id, path.display()).as_bytes()),
            python,
            site_packages,
        }),
        _ => Err(EnvironmentError(format!(
            "workers.base_env: {} is there but is no virtual environment of Python {} with pydantic 2 or newer; remove \
             it, or run: {}",
            path.display(),
            interpreter.version,
            by_hand(path, &["pydantic>=2".to_owned()])
        ))),
    }
}

fn advice(path: &Path, config: &WorkersConfig, error: EnvironmentError) -> EnvironmentError {
    EnvironmentError(format!(
        "the base environment could not be made: {error}\nWith network access (or PIP_INDEX_URL, PIP_FIND_LINKS) \
         reload again, or run: {}",
        by_hand(path, &config.base_requirements)
    ))
}

fn by_hand(path: &Path, requirements: &[String]) -> String {
    format!(
        "python3 -m venv {path} && {path}/bin/pip install '{}'",
        requirements.join("' '"),
        path = path.display()
    )
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::installer::tests::{broken, unguarded};

    /// Requirements that every installer refuses are not downloaded, so these tests run offline; the integration tests cover
    /// installing.
    fn config() -> WorkersConfig {
        WorkersConfig {
            base_requirements: vec!["orjson=>3".into(), "uvloop=>0".into()],
            ..WorkersConfig::default()
        }
    }

    #[tokio::test]
    async fn is_made_once_behind_a_symlink_and_without_the_optional_packages_it_cannot_have() {
        let temp = tempfile::tempdir().unwrap();
        let installer = unguarded(temp.path());
        let python = Interpreter::find("python3", &installer).await.unwrap();
        let path = temp.path().join("envs/base");
        let base = prepare(path.clone(), &config(), &python, &installer)
            .await
            .unwrap();
        assert!(base.python.is_file() && base.site_packages.is_dir());
        assert_eq!(
            path.canonicalize().unwrap().join("bin/python"),
            base.python
                .parent()
                .unwrap()
                .canonicalize()
                .unwrap()
                .join("python")
        );
        // With an installer that cannot run anything, the environment must be found on disk.
        let again = prepare(path, &config(), &python, &broken()).await.unwrap();
        assert_eq!(again.id, base.id);
    }

    #[test]
    fn only_what_makes_workers_faster_is_optional() {
        for optional in [
            "orjson",
            "orjson>=3.10,<4",
            " uvloop ~= 0.21",
            "UVLoop==1; x",
        ] {
            assert!(is_optional(optional), "{optional}");
        }
        for required in [
            "pydantic>=2",
            "orjson-extra",
            "uvloops>=1",
            "my_orjson",
            "",
            "./orjson",
        ] {
            assert!(!is_optional(required), "{required}");
        }
    }

    #[tokio::test]
    async fn one_that_cannot_be_made_says_what_to_run() {
        let temp = tempfile::tempdir().unwrap();
        let python = Interpreter::find("python3", &unguarded(temp.path()))
            .await
            .unwrap();
        let path = temp.path().join("base");
        let error = prepare(path.clone(), &WorkersConfig::default(), &python, &broken())
            .await
            .unwrap_err()
            .0;
        assert!(
            error.contains(&format!(
                "run: python3 -m venv {0} && {0}/bin/pip install 'pydantic>=2' 'orjson>=3.10,<4' 'uvloop>=0.21,<1'",
                path.display()
            )),
            "{error}"
        );
    }

    #[tokio::test]
    async fn one_made_by_hand_is_used_if_it_holds_pydantic_2() {
        let temp = tempfile::tempdir().unwrap();
        let installer = unguarded(temp.path());
        let python = Interpreter::find("python3", &installer).await.unwrap();
        let path = temp.path().join("base");
        let site_packages = path.join(&python.site_packages);
        fs::create_dir_all(&site_packages).unwrap();
        fs::create_dir_all(path.join("bin")).unwrap();
        std::os::unix::fs::symlink(&python.executable, path.join("bin/python")).unwrap();
        let error = prepare(path.clone(), &config(), &python, &installer)
            .await
            .unwrap_err()
            .0;
        assert!(error.starts_with("workers.base_env: "), "{error}");
        fs::create_dir(site_packages.join("pydantic-2.11.0.dist-info")).unwrap();
        assert!(prepare(path, &config(), &python, &installer).await.is_ok());
    }
}
