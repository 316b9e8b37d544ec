//! An empty virtual environment, made once by Python's `venv` and then copied for each namespace. Copying takes a dozen small
//! files, whereas making it requires the start of an interpreter, which loads much of its library.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tooldock_base::data_dir::short_hash;
use tooldock_base::regular_file;

use super::installer::{Installer, Step};
use super::interpreter::Interpreter;
use super::lock::FileLock;
use super::{EnvironmentError, LOCAL_STEP, blocking, stamp, venv};

/// Prefix of an empty environment's name. It has no `-` and no `.`, so the name cannot be that of a namespace's build. The
/// characters after it make the name unique, so that it can be found and replaced in the environment's files.
const PREFIX: &str = "empty_";

/// Returns the empty environment of this interpreter, and makes it first if it is missing.
pub(super) async fn prepare(
    builds: &Path,
    interpreter: &Interpreter,
    installer: &Installer,
) -> Result<PathBuf, EnvironmentError> {
    let key = short_hash(interpreter.id.as_bytes());
    let template = builds.join(format!("{PREFIX}{key}"));
    if stamp::is_complete(&template, &key) {
        return Ok(template);
    }
    let _lock = FileLock::take(template.with_extension("lock"), LOCAL_STEP).await?;
    // Another process may have made the environment while this one waited for the lock.
    if stamp::is_complete(&template, &key) {
        return Ok(template);
    }
    let garbage = template.clone();
    blocking(move || venv::remove_tree(&garbage)).await?;
    let step = Step::local(
        "make an empty virtual environment",
        &interpreter.executable,
        &[&"-m", &"venv", &"--without-pip", &template],
    );
    installer.run(step).await?;
    let made = template.clone();
    blocking(move || stamp::write(&made, &key)).await?;
    Ok(template)
}

/// Copies the empty environment to the folder `build` beside it. The empty environment's configuration and activation scripts
/// contain its name. The name is replaced, so that the result equals an environment that `venv` made there.
pub(super) fn copy(template: &Path, build: &Path) -> Result<(), EnvironmentError> {
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .as_encoded_bytes()
            .to_vec()
    };
    copy_folder(template, build, &name(template), &name(build))
        .map_err(|error| EnvironmentError::io("make", build, &error))
}

fn copy_folder(from: &Path, to: &Path, name: &[u8], new_name: &[u8]) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else if kind.is_dir() {
            copy_folder(&source, &target, name, new_name)?;
        } else if !stamp::is_stamp(&entry.file_name()) {
            fs::write(
                &target,
                renamed(&regular_file::read(&source, u64::MAX)?, name, new_name),
            )?;
            fs::set_permissions(&target, source.metadata()?.permissions())?;
        }
    }
    Ok(())
}

fn renamed(content: &[u8], name: &[u8], new_name: &[u8]) -> Vec<u8> {
    let mut renamed = Vec::with_capacity(content.len());
    let mut rest = content;
    while let Some(at) = rest.windows(name.len()).position(|found| found == name) {
        renamed.extend_from_slice(&rest[..at]);
        renamed.extend_from_slice(new_name);
        rest = &rest[at + name.len()..];
    }
    renamed.extend_from_slice(rest);
    renamed
}

/// Removes the empty environments of earlier interpreters.
pub(super) fn collect_garbage(builds: &Path, current: &Path) {
    for path in fs::read_dir(builds)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
    {
        let is_template = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
        if is_template
            && path.is_dir()
            && path != current
            && let Err(error) = venv::remove_tree(&path)
        {
            tracing::warn!(%error, "an empty environment of an earlier interpreter stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::installer::tests::{broken, unguarded};

    /// Every entry below a folder with its content, without `name` and the folder's own path.
    fn listing(root: &Path, under: &Path) -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(under).unwrap() {
            let path = entry.unwrap().path();
            let relative = path.strip_prefix(root).unwrap().to_owned();
            if path.is_symlink() {
                found.push((
                    relative,
                    format!("-> {}", fs::read_link(&path).unwrap().display()),
                ));
            } else if path.is_dir() {
                found.push((relative, "folder".to_owned()));
                found.extend(listing(root, &path));
            } else if !stamp::is_stamp(path.file_name().unwrap()) {
                let mode = path.metadata().unwrap().permissions();
                let text = fs::read_to_string(&path).unwrap();
                found.push((relative, format!("{mode:?} {text}")));
            }
        }
        found.sort();
        found
    }

    #[tokio::test]
    async fn a_copy_is_what_venv_makes_in_its_place() {
        let temp = tempfile::tempdir().unwrap();
        let installer = unguarded(temp.path());
        let python = Interpreter::find("python3", &installer).await.unwrap();
        let builds = temp.path().join("some builds");
        fs::create_dir(&builds).unwrap();
        let template = prepare(&builds, &python, &installer).await.unwrap();
        // With an installer that cannot run anything, the environment must be found on disk.
        assert_eq!(
            prepare(&builds, &python, &broken()).await.unwrap(),
            template
        );

        let build = builds.join("ns-0123");
        copy(&template, &build).unwrap();
        let copied = listing(&build, &build);
        fs::remove_dir_all(&build).unwrap();
        let step = Step::local(
            "make it without the template",
            &python.executable,
            &[&"-m", &"venv", &"--without-pip", &build],
        );
        installer.run(step).await.unwrap();
        assert_eq!(copied, listing(&build, &build));
    }

    #[test]
    fn only_templates_of_other_interpreters_are_garbage() {
        let temp = tempfile::tempdir().unwrap();
        let current = temp.path().join("empty_1");
        for name in ["empty_1", "empty_2", "emptied-1", "empty-3"] {
            fs::create_dir(temp.path().join(name)).unwrap();
        }
        // Its lock file is left to the code that removes locks.
        fs::write(temp.path().join("empty_2.lock"), "").unwrap();
        collect_garbage(temp.path(), &current);
        let mut left: Vec<_> = fs::read_dir(temp.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["emptied-1", "empty-3", "empty_1", "empty_2.lock"]);
    }
}
