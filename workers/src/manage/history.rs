//! Tool files of a namespace: their names, sizes, and earlier versions.

use std::collections::BTreeMap;
use std::fs;
use std::time::SystemTime;

use tooldock_base::names::NamespaceName;

use super::folder::Folder;
use super::tool_file::{FILES_MAX, HISTORY, KEPT_BYTES_MAX, bytes, no_file};
use super::{NotDone, ToolFileName, ToolFileVersion, Workspace, blocking};

/// The tool files of a namespace, existing and deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolFiles {
    /// Existing tool files, sorted by name; at most 1000.
    pub files: Vec<ListedFile>,
    /// Deleted tool files with stored earlier versions, each with the number of these versions.
    pub deleted: Vec<(ToolFileName, usize)>,
}

/// An existing tool file, as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// Name of the tool file.
    pub name: ToolFileName,
    /// Size of the tool file, in bytes.
    pub size: u64,
    /// Time of the last write to the tool file.
    pub modified: SystemTime,
    /// Number of stored earlier versions of the tool file.
    pub versions: usize,
}

/// A stored earlier version of a tool file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptVersion {
    /// Number of the version; a higher one is newer.
    pub number: u64,
    /// Size of the version, in bytes.
    pub size: u64,
    /// Time at which the version was stored, because its file was replaced or removed.
    pub kept: SystemTime,
}

impl Workspace {
    /// Lists the tool files of a namespace. Their content is not read.
    ///
    /// # Errors
    ///
    /// When the namespace does not exist, or its folder cannot be read.
    pub async fn files(&self, namespace: &NamespaceName) -> Result<ToolFiles, NotDone> {
        self.in_folder(namespace, |folder| {
            let mut kept: BTreeMap<ToolFileName, usize> = BTreeMap::new();
            if let Some(history) = folder.subfolder(HISTORY)? {
                for entry in entries(&history)? {
                    if let Some((file, _)) = version_of(&entry.name) {
                        *kept.entry(file).or_default() += 1;
                    }
                }
            }
            let mut files: Vec<_> = entries(folder)?
                .into_iter()
                .filter_map(|entry| {
                    let name: ToolFileName = entry.name.parse().ok()?;
                    Some(ListedFile {
                        versions: kept.remove(&name).unwrap_or_default(),
                        name,
                        size: entry.size,
                        modified: entry.modified,
                    })
                })
                .take(FILES_MAX)
                .collect();
            files.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(ToolFiles {
                files,
                deleted: kept.into_iter().collect(),
            })
        })
        .await
    }

    /// Lists the stored versions of a tool file, newest first.
    ///
    /// # Errors
    ///
    /// When the namespace does not exist, or its folder cannot be read.
    pub async fn versions(
        &self,
        namespace: &NamespaceName,
        file: &ToolFileName,
    ) -> Result<Vec<KeptVersion>, NotDone> {
        let file = file.clone();
        self.in_folder(namespace, move |folder| kept_of(folder, &file))
            .await
    }

    /// Reads the text of a tool file or of an earlier version; `None` if the file or version does not exist.
    ///
    /// # Errors
    ///
    /// When the namespace does not exist, or the file is not text.
    pub async fn source_of(
        &self,
        namespace: &NamespaceName,
        version: &ToolFileVersion,
    ) -> Result<Option<String>, NotDone> {
        let version = version.clone();
        self.in_folder(namespace, move |folder| text_of(folder, &version))
            .await
    }

    /// Reads the text of a tool file or of an earlier version.
    ///
    /// # Errors
    ///
    /// When the namespace, file or version does not exist (the message lists existing ones), or the file is not text.
    pub async fn tool_source(
        &self,
        namespace: &NamespaceName,
        version: &ToolFileVersion,
    ) -> Result<String, NotDone> {
        let (version, of) = (version.clone(), namespace.clone());
        self.in_folder(namespace, move |folder| {
            if let Some(text) = text_of(folder, &version)? {
                return Ok(text);
            }
            let file = &version.file;
            if version.version.is_none() {
                return Err(no_file(folder, &of, file));
            }
            let kept = kept_of(folder, file)?;
            let paths = kept
                .iter()
                .map(|it| format!("{HISTORY}/{}", version_name(file, it.number)));
            let paths: Vec<_> = paths.collect();
            Err(NotDone(match paths.is_empty() {
                true => format!("namespace {of} keeps no earlier version of {file}"),
                false => format!(
                    "namespace {of} keeps no version {version}; it keeps {}",
                    paths.join(", ")
                ),
            }))
        })
        .await
    }

    async fn in_folder<T: Send + 'static>(
        &self,
        namespace: &NamespaceName,
        look: impl FnOnce(&Folder) -> Result<T, NotDone> + Send + 'static,
    ) -> Result<T, NotDone> {
        let (tools, namespace) = (self.tools(), namespace.clone());
        blocking(move || look(&Folder::open(&tools, &namespace)?)).await
    }
}

fn text_of(folder: &Folder, version: &ToolFileVersion) -> Result<Option<String>, NotDone> {
    let (place, name) = match version.version {
        None => (None, version.file.to_string()),
        Some(number) => match folder.subfolder(HISTORY)? {
            None => return Ok(None),
            history => (history, version_name(&version.file, number)),
        },
    };
    let folder = place.as_ref().unwrap_or(folder);
    let Some(held) = bytes(folder, &name, KEPT_BYTES_MAX)? else {
        return Ok(None);
    };
    let text = String::from_utf8(held)
        .map_err(|_| NotDone(format!("{} is not UTF-8", folder.shown(&name).display())));
    text.map(Some)
}

/// The stored earlier versions of a file, newest first.
fn kept_of(folder: &Folder, file: &ToolFileName) -> Result<Vec<KeptVersion>, NotDone> {
    let Some(history) = folder.subfolder(HISTORY)? else {
        return Ok(Vec::new());
    };
    let mut versions: Vec<_> = entries(&history)?
        .into_iter()
        .filter_map(|entry| {
            let (of, number) = version_of(&entry.name)?;
            (of == *file).then_some(KeptVersion {
                number,
                size: entry.size,
                kept: entry.modified,
            })
        })
        .collect();
    versions.sort_by_key(|version| std::cmp::Reverse(version.number));
    Ok(versions)
}

/// A regular file in a namespace's folder.
pub(super) struct FolderEntry {
    pub(super) name: String,
    size: u64,
    modified: SystemTime,
}

/// The regular files of a folder, unsorted. Reading stops after 20,000 entries.
pub(super) fn entries(folder: &Folder) -> Result<Vec<FolderEntry>, NotDone> {
    const ENTRIES_MAX: usize = 20_000;
    let read = fs::read_dir(folder.entry("."));
    let read = read.map_err(|error| NotDone::io("read", &folder.path, &error))?;
    let entry = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        // The metadata is that of a symlink itself and not of its target, so that a symlink does not count as a regular file.
        let found = entry.metadata().ok()?;
        found.is_file().then(|| FolderEntry {
            name,
            size: found.len(),
            modified: found.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        })
    };
    Ok(read.flatten().take(ENTRIES_MAX).filter_map(entry).collect())
}

/// Returns the file name of an earlier version in the folder `.history`, such as `math_tools.py.7`. It is not a valid name of a
/// tool file.
pub(super) fn version_name(file: &ToolFileName, number: u64) -> String {
    format!("{file}.{number}")
}

/// Splits the file name of an earlier version in the folder `.history` into the tool file and the version's number.
pub(super) fn version_of(name: &str) -> Option<(ToolFileName, u64)> {
    let (file, number) = name.rsplit_once('.')?;
    let parsed: u64 = number.parse().ok()?;
    (parsed.to_string() == number).then_some((file.parse().ok()?, parsed))
}
