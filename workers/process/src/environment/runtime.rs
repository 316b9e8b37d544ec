//! The Python runtime (`python/app`) and its stubs for editors (`python/stubs`), embedded in the binary and unpacked to
//! `runtime/<hash>/app` and `runtime/<hash>/stubs`.
//!
//! The hash is that of the content, so an upgrade unpacks beside the old runtime, and workers that still use it are not affected.

use std::fs;
use std::path::{Path, PathBuf};

use include_dir::{Dir, File, include_dir};
use sha2::{Digest as _, Sha256};
use tooldock_base::data_dir::hex;
use tooldock_base::regular_file;

use super::installer::{Installer, Step};
use super::interpreter::Interpreter;
use super::{EnvironmentError, blocking};

// `build.rs` has copied the sources to this folder.
static FILES: Dir<'static> = include_dir!("$OUT_DIR/runtime");

/// Folder beside `app` with the types of the names that the runtime supplies. Python never imports it.
pub(super) const STUBS: &str = "stubs";

/// Unpacks the runtime, or checks that it is unpacked and unchanged. Returns the folder that contains `app`.
pub(super) async fn unpack(runtime_dir: &Path) -> Result<PathBuf, EnvironmentError> {
    let runtime_dir = runtime_dir.to_owned();
    blocking(move || unpack_files(&runtime_dir, &sources(&FILES))).await
}

/// Compiles the runtime once per interpreter. Workers do not write compiled files themselves, so otherwise each start would
/// compile it again. A failure only makes starts slower.
pub(super) async fn compile(runtime: &Path, interpreter: &Interpreter, installer: &Installer) {
    let app = runtime.join("app");
    let suffix = format!(".{}.pyc", interpreter.cache_tag);
    let compiled = fs::read_dir(app.join("__pycache__")).is_ok_and(|mut entries| {
        entries.any(|entry| {
            entry.is_ok_and(|entry| entry.file_name().to_string_lossy().ends_with(&suffix))
        })
    });
    if compiled {
        return;
    }
    let arguments: [&(dyn AsRef<std::ffi::OsStr> + Sync); 5] =
        [&"-I", &"-m", &"compileall", &"-q", &app];
    let step = Step::local(
        "compile the Python runtime",
        &interpreter.executable,
        &arguments,
    );
    if let Err(error) = installer.run(step).await {
        tracing::warn!(%error, "the Python runtime cannot be compiled in advance; workers will start more slowly");
    }
}

/// Removes the runtimes of earlier versions.
pub(super) fn collect_garbage(runtime_dir: &Path, current: &Path) {
    let Ok(entries) = fs::read_dir(runtime_dir) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path != current {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// All files of the runtime in the order of their paths. `build.rs` embeds only sources.
fn sources<'a>(directory: &'a Dir<'a>) -> Vec<&'a File<'a>> {
    let mut files: Vec<_> = directory.files().collect();
    for folder in directory.dirs() {
        files.extend(sources(folder));
    }
    files.sort_by_key(|file| file.path());
    files
}

fn unpack_files(runtime_dir: &Path, files: &[&File<'_>]) -> Result<PathBuf, EnvironmentError> {
    let mut hash = Sha256::new();
    for file in files {
        for part in [file.path().as_os_str().as_encoded_bytes(), file.contents()] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    let target = runtime_dir.join(&hex(&hash.finalize())[..16]);
    let intact = |file: &&File<'_>| {
        let (path, content) = (target.join(file.path()), file.contents());
        regular_file::read(&path, content.len() as u64).is_ok_and(|found| found == content)
    };
    if target.join("app").is_dir() && files.iter().all(intact) {
        return Ok(target);
    }

    let failed = |error: std::io::Error| {
        EnvironmentError::io("unpack the Python runtime to", &target, &error)
    };
    let fresh = tempfile::Builder::new()
        .prefix(".tmp-")
        .tempdir_in(runtime_dir)
        .map_err(failed)?;
    let content = fresh.path().join("content");
    fs::create_dir_all(&content).map_err(failed)?;
    for file in files {
        let path = content.join(file.path());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        fs::write(&path, file.contents()).map_err(failed)?;
        fs::File::open(&path)
            .and_then(|file| file.sync_all())
            .map_err(failed)?;
    }
    // A damaged runtime is moved into the temporary folder, and removed together with that.
    match fs::rename(&target, fresh.path().join("damaged")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    fs::rename(&content, &target).map_err(failed)?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacks_once_and_repairs_what_was_changed() {
        let temp = tempfile::tempdir().unwrap();
        let (init, sub) = (
            File::new("app/__init__.py", b"v = 1"),
            File::new("app/sub/x.py", b"x = 1"),
        );
        let files = [&init, &sub];
        let first = unpack_files(temp.path(), &files).unwrap();
        assert_eq!(fs::read(first.join("app/sub/x.py")).unwrap(), b"x = 1");
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
        let before = inode(&first);
        assert_eq!(unpack_files(temp.path(), &files).unwrap(), first);
        assert_eq!(inode(&first), before, "nothing was done twice");
        fs::write(first.join("app/__init__.py"), "evil").unwrap();
        unpack_files(temp.path(), &files).unwrap();
        assert_eq!(fs::read(first.join("app/__init__.py")).unwrap(), b"v = 1");
        assert_eq!(
            fs::read_dir(temp.path()).unwrap().count(),
            1,
            "no temporary directory stays"
        );
    }

    #[test]
    fn the_binary_holds_the_runtime_and_its_stubs_for_editors() {
        let temp = tempfile::tempdir().unwrap();
        let unpacked = unpack_files(temp.path(), &sources(&FILES)).unwrap();
        for name in [
            "app/worker_main.py",
            "app/cli/secrets.py",
            "stubs/fastmcp-stubs/py.typed",
            "stubs/fastmcp-stubs/tools/__init__.pyi",
        ] {
            assert!(unpacked.join(name).is_file(), "{name}");
        }
    }

    #[test]
    fn another_content_goes_beside_the_old_one_until_it_is_garbage() {
        let temp = tempfile::tempdir().unwrap();
        let (one, two) = (File::new("app/a.py", b"1"), File::new("app/a.py", b"2"));
        let old = unpack_files(temp.path(), &[&one]).unwrap();
        let new = unpack_files(temp.path(), &[&two]).unwrap();
        assert_ne!(old, new);
        assert!(old.is_dir());
        collect_garbage(temp.path(), &new);
        assert!(!old.exists() && new.is_dir());
    }
}
