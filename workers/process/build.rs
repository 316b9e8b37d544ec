//! Copies the Python runtime's sources and its stubs for editors to `$OUT_DIR/runtime`, from where `environment/runtime.rs`
//! embeds them into the binary. The original folder cannot be embedded: running the runtime from there creates `__pycache__`
//! folders, which would become part of the binary and cause a rebuild of this crate after each test run.

use std::path::Path;
use std::{env, fs, io};

/// Folders below `../python` that workers and editors read.
const FOLDERS: [&str; 2] = ["app", "stubs"];

fn main() -> io::Result<()> {
    let target = Path::new(&env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("runtime");
    match fs::remove_dir_all(&target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    FOLDERS
        .iter()
        .try_for_each(|name| copy_sources(&Path::new("../python").join(name), &target.join(name)))
}

/// Copies each source (`.py`, `.pyi`, `py.typed`) below `from`, and tells cargo to watch it. Folders are not watched, since
/// `__pycache__` changes them.
fn copy_sources(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() && entry.file_name() != "__pycache__" {
            copy_sources(&path, &copy)?;
        } else if path
            .extension()
            .is_some_and(|extension| ["py", "pyi", "typed"].iter().any(|it| extension == *it))
        {
            println!("cargo:rerun-if-changed={}", path.display());
            fs::copy(&path, &copy)?;
        }
    }
    Ok(())
}
