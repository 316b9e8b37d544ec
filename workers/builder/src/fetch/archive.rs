//! Unpacks the archives of packages into a tree: only regular files, and not more than the tree's limits allow.

use std::io::{self, Cursor, Read};

use flate2::read::GzDecoder;
use tar::EntryType;
use tooldock_process::repositories::BuilderError;
use tooldock_process::repositories::store::FILE_MAX;
use zip::ZipArchive;

use crate::tree::{FILES_MAX, Tree};

/// Maximum number of unpacked bytes of an archive, including files that are skipped.
const UNPACKED_MAX: u64 = 1024 * 1024 * 1024;

/// Unpacks an archive into the tree. Its format (`.tgz`, `.tar.gz`, `.zip`, `.whl`) is determined by the end of its URL.
pub(super) fn unpack(address: &str, bytes: &[u8], tree: &mut Tree) -> Result<(), BuilderError> {
    let name = address.split(['?', '#']).next().unwrap_or(address);
    let is_zip = [".zip", ".whl"].iter().any(|it| name.ends_with(it));
    if is_zip {
        // A wheel has no outermost folder to strip from the paths, unlike other zip files.
        unpack_zip(bytes, !name.ends_with(".whl"), tree)
    } else {
        unpack_tar(bytes, tree)
    }
}

fn unpack_tar(bytes: &[u8], tree: &mut Tree) -> Result<(), BuilderError> {
    let unpacked = BoundedReader {
        inner: GzDecoder::new(bytes),
        left: UNPACKED_MAX,
    };
    let mut archive = tar::Archive::new(unpacked);
    for (index, entry) in archive.entries().map_err(damaged)?.enumerate() {
        let mut entry = entry.map_err(damaged)?;
        if index > 2 * FILES_MAX {
            return Err(damaged(io::Error::other("too many entries")));
        }
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::Directory | EntryType::XGlobalHeader) {
            continue;
        }
        let path = inner_path(&path);
        match kind {
            EntryType::Regular | EntryType::Continuous => {}
            EntryType::Symlink | EntryType::Link => {
                tree.leave_out(path, "is a link")?;
                continue;
            }
            _ => {
                tree.leave_out(path, "is no regular file")?;
                continue;
            }
        }
        let size = entry.size();
        if tree.admits(path, size)? {
            let mut content = Vec::new();
            let read = (&mut entry).take(FILE_MAX).read_to_end(&mut content);
            read.map_err(damaged)?;
            tree.write(path, &content)?;
        }
    }
    Ok(())
}

fn unpack_zip(bytes: &[u8], in_folder: bool, tree: &mut Tree) -> Result<(), BuilderError> {
    let broken = |error: zip::result::ZipError| damaged(io::Error::other(error));
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(broken)?;
    if archive.len() > 2 * FILES_MAX {
        return Err(damaged(io::Error::other("too many entries")));
    }
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(broken)?;
        if entry.is_dir() {
            continue;
        }
        let path = String::from_utf8_lossy(entry.name_raw()).into_owned();
        let path = if in_folder { inner_path(&path) } else { &path };
        if entry.is_symlink() {
            tree.leave_out(path, "is a link")?;
            continue;
        }
        let size = entry.size();
        if !tree.admits(path, size)? {
            continue;
        }
        // At most one byte more than the declared size is read, since the declared size may be wrong.
        let mut content = Vec::new();
        let read = (&mut entry).take(size + 1).read_to_end(&mut content);
        match read {
            Ok(_) if content.len() as u64 == size => tree.write(path, &content)?,
            Ok(_) => tree.leave_out(path, "is larger than the archive says")?,
            Err(error) => return Err(damaged(error)),
        }
    }
    Ok(())
}

/// Strips the outermost folder of an archive from a path: `package/` at npm, `NAME-VERSION/` at PyPI.
fn inner_path(path: &str) -> &str {
    let path = path.strip_prefix("./").unwrap_or(path);
    match path.split_once('/') {
        // A path that leads out of the archive is returned unchanged; the tree then refuses it with the right reason.
        Some(("" | ".." | ".", _)) | None => path,
        Some((_, rest)) => rest,
    }
}

fn damaged(error: io::Error) -> BuilderError {
    BuilderError::failed(format!("the package's archive cannot be read: {error}."))
}

/// A reader that fails after a maximum number of bytes.
struct BoundedReader<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self
            .left
            .checked_sub(read as u64)
            .ok_or_else(|| io::Error::other("it unpacks to more than 1 GiB"))?;
        Ok(read)
    }
}
