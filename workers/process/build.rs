//! Copies the Python runtime's sources to `$OUT_DIR/app`, from where `environment/runtime.rs` embeds them into the binary. The
//! original folder cannot be embedded: running the runtime from there creates `__pycache__` folders, which would become part of
//! the binary and cause a rebuild of this crate after each test run.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let target = Path::new(&env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("app");
    match fs::remove_dir_all(&target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => copy_sources(Path::new("../python/app"), &target),
    }
}

/// Copies each `.py` file below `from`, and tells cargo to watch it. Folders are not watched, since `__pycache__` changes them.
fn copy_sources(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() && entry.file_name() != "__pycache__" {
            copy_sources(&path, &copy)?;
        } else if path.extension().is_some_and(|extension| extension == "py") {
            println!("cargo:rerun-if-changed={}", path.display());
            fs::copy(&path, &copy)?;
        }
    }
    Ok(())
}
