//! The interpreter that `workers.python` names: finds it, determines its version and paths, and refuses Python before 3.11.

use std::path::{Path, PathBuf};

use super::EnvironmentError;
use super::installer::{Installer, Step};

/// Minimum version of Python for workers.
const MINIMUM: (u32, u32) = (3, 11);

/// Python program that prints five lines about its interpreter. It must run in isolated mode (`-I`), so that it loads no file of
/// the current directory or of the user.
const PROBE: &str = "\
import os, sys, sysconfig
print(sys.executable)
print('%d.%d' % sys.version_info[:2])
print(sys.implementation.cache_tag)
print(os.path.realpath(sys.executable))
scheme = 'venv' if 'venv' in sysconfig.get_scheme_names() else sysconfig.get_default_scheme()
print(sysconfig.get_path('purelib', scheme, vars={'base': '', 'platbase': ''}).lstrip('/'))
";

/// The Python interpreter with which environments are made.
#[derive(Debug, Clone)]
pub(super) struct Interpreter {
    /// Absolute path of the interpreter.
    pub(super) executable: PathBuf,
    /// Version of the interpreter, such as `3.11`.
    pub(super) version: String,
    /// Cache tag of the interpreter, such as `cpython-311`, which is part of the names of compiled files.
    pub(super) cache_tag: String,
    /// Folder of an environment's packages, such as `lib/python3.11/site-packages`, relative to the environment.
    pub(super) site_packages: PathBuf,
    /// Id of the interpreter. Environments made by interpreters with equal ids are interchangeable. A patch release that is
    /// installed over the previous one has the same id.
    pub(super) id: String,
}

impl Interpreter {
    /// Finds the interpreter that `workers.python` names, a path or a name on `PATH`, and determines its version and paths.
    pub(super) async fn find(
        python: &str,
        installer: &Installer,
    ) -> Result<Self, EnvironmentError> {
        let program = find_program(python).ok_or_else(|| {
            EnvironmentError(format!(
                "workers.python: {python:?} was not found; install Python {}.{} or newer with venv (Debian: apt \
                 install python3 python3-venv)",
                MINIMUM.0, MINIMUM.1
            ))
        })?;
        let step = Step::local(
            "ask workers.python for its version",
            &program,
            &[&"-I", &"-c", &PROBE],
        );
        let output = installer.run(step).await?;
        Self::from_probe(&program, &output)
    }

    fn from_probe(program: &Path, output: &str) -> Result<Self, EnvironmentError> {
        let strange = || {
            EnvironmentError(format!(
                "workers.python: {} does not answer like Python 3",
                program.display()
            ))
        };
        let lines: Vec<&str> = output.lines().map(str::trim).collect();
        let [executable, version, cache_tag, real, site_packages] = lines[..] else {
            return Err(strange());
        };
        let (major, minor) = version.split_once('.').ok_or_else(strange)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| strange());
        if (number(major)?, number(minor)?) < MINIMUM {
            return Err(EnvironmentError(format!(
                "workers.python: {} is Python {version}; {}.{} or newer is needed",
                program.display(),
                MINIMUM.0,
                MINIMUM.1
            )));
        }
        Ok(Self {
            executable: executable.into(),
            version: version.into(),
            cache_tag: cache_tag.into(),
            site_packages: site_packages.into(),
            id: format!("{cache_tag} {real}"),
        })
    }
}

/// Finds the executable file for a path or a name on `PATH`; returns `None` if there is none.
pub fn find_program(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let executable = |path: &Path| {
        path.metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return std::path::absolute(name)
            .ok()
            .filter(|path| executable(path));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|candidate| executable(candidate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::installer::tests::unguarded;

    #[tokio::test]
    async fn the_systems_python_is_found_and_described() {
        let temp = tempfile::tempdir().unwrap();
        let found = Interpreter::find("python3", &unguarded(temp.path()))
            .await
            .unwrap();
        assert!(found.executable.is_absolute());
        assert!(found.site_packages.starts_with("lib"), "{found:?}");
        assert!(found.site_packages.ends_with("site-packages"), "{found:?}");
    }

    #[tokio::test]
    async fn a_missing_one_names_the_key() {
        let temp = tempfile::tempdir().unwrap();
        let error = Interpreter::find("no-such-python", &unguarded(temp.path()))
            .await
            .unwrap_err()
            .0;
        assert!(
            error.starts_with("workers.python: \"no-such-python\" was not found"),
            "{error}"
        );
    }

    #[test]
    fn an_old_or_strange_one_is_refused() {
        let probe = |version: &str| {
            let output =
                format!("/usr/bin/python3\n{version}\ncpython-39\n/usr/bin/python3.9\nlib/x\n");
            Interpreter::from_probe(Path::new("/usr/bin/python3"), &output)
        };
        let error = probe("3.9").unwrap_err().0;
        assert_eq!(
            error,
            "workers.python: /usr/bin/python3 is Python 3.9; 3.11 or newer is needed"
        );
        assert!(probe("3.11").is_ok());
        assert!(probe("4.0").is_ok());
        assert!(
            probe("three")
                .unwrap_err()
                .0
                .contains("does not answer like Python 3")
        );
        assert!(Interpreter::from_probe(Path::new("/x"), "hello").is_err());
    }
}
