//! Local lists, packages and archives that the `requirements.txt` of a namespace names.
//!
//! An installer reads each list to its end. A named pipe would block it until its time limit, and a device never ends. So every
//! list is read by this module first, and only regular files of limited size are passed to an installer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tooldock_base::regular_file;

use super::{LocalRequirement, REQUIREMENTS_BYTES_MAX, named};
use crate::child::variables::installer_variables;

/// Maximum number of lists of requirements that one namespace may use; more are refused.
const LISTS_MAX: usize = 64;

/// Purpose for which an installer uses a local file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// The code of the package is used in place (`-e`).
    Editable,
    /// A package or an archive is built or unpacked into the environment.
    Installed,
    /// The folder is searched for packages (`--find-links`).
    Links,
}

/// The local files and folders that an installer reads for a list of requirements.
#[derive(Debug, Default)]
pub struct LocalFiles {
    /// The lists that the requirements name, with their content.
    pub lists: BTreeMap<PathBuf, String>,
    /// All other local files and folders that are named, with their purpose.
    pub places: BTreeMap<PathBuf, Use>,
}

impl LocalFiles {
    /// Reads the lists that `text` names, and the lists that those name in turn. `folder` is the installer's working directory.
    /// Blocking.
    ///
    /// # Errors
    ///
    /// Names a list that is too large, not a regular file, or not text.
    pub fn read(folder: &Path, text: &str) -> Result<Self, String> {
        let mut found = Self::default();
        // The resolved paths of the lists found so far: a list may include itself, also under another spelling of its path.
        let mut seen = BTreeSet::new();
        let mut lists = vec![(text.to_owned(), folder.to_owned())];
        while let Some((text, directory)) = lists.pop() {
            for named in named(&expanded(&text)) {
                let list = match named {
                    LocalRequirement::List(path) => directory.join(path),
                    LocalRequirement::Package(path) => {
                        found.place(folder.join(path), Use::Installed);
                        continue;
                    }
                    LocalRequirement::Editable(path) => {
                        found.place(folder.join(path), Use::Editable);
                        continue;
                    }
                    LocalRequirement::Links(path) => {
                        found.place(directory.join(&path), Use::Links);
                        found.place(folder.join(path), Use::Links);
                        continue;
                    }
                };
                let directory = list.parent().unwrap_or(folder).to_owned();
                let real = directory.canonicalize();
                let real = real.unwrap_or_else(|_| directory.clone());
                if !seen.insert(real.join(list.file_name().unwrap_or_default())) {
                    continue;
                }
                let shown = list.strip_prefix(folder).unwrap_or(&list).display();
                if found.lists.len() == LISTS_MAX {
                    return Err(format!("{shown}: more than {LISTS_MAX} lists are named"));
                }
                let content = regular_file::read_following(&list, REQUIREMENTS_BYTES_MAX)
                    .map_err(|error| format!("{shown}: cannot be read: {error}"))?;
                let content =
                    String::from_utf8(content).map_err(|_| format!("{shown}: not UTF-8"))?;
                found.lists.insert(list, content.clone());
                lists.push((content, directory));
            }
        }
        Ok(found)
    }

    /// Adds a local file or folder. If a package is both used in place and installed, it counts as installed.
    fn place(&mut self, path: PathBuf, how: Use) {
        let known = self.places.entry(path).or_insert(how);
        *known = how.max(*known);
    }

    /// Returns true if any package is local. A cache of the installer may then contain an outdated version of it.
    pub(crate) fn has_packages(&self) -> bool {
        !self.places.is_empty()
    }

    /// Paths of the local packages, installed or editable. An installer builds them in their own folders and may leave files
    /// there. Folders of `--find-links` are not included.
    pub(crate) fn built_in(&self) -> impl Iterator<Item = &Path> {
        let built = self.places.iter().filter(|(_, how)| **how != Use::Links);
        built.map(|(path, _)| path.as_path())
    }
}

/// Replaces each `${NAME}` in a text by the installer's environment variable, as installers do. Names without a value are kept.
fn expanded(text: &str) -> String {
    if !text.contains("${") {
        return text.to_owned();
    }
    let variables = installer_variables();
    let value_of = |name: &str| {
        let mut all = variables.iter();
        all.find(|(known, _)| known == name)
            .map(|(_, value)| value.expose().to_owned())
    };
    with_values(text, &value_of)
}

fn with_values(text: &str, value_of: &dyn Fn(&str) -> Option<String>) -> String {
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        bytes.all(|it| it.is_ascii_uppercase() || it.is_ascii_digit() || it == b'_')
    };
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        whole.push_str(before);
        let known = after.split_once('}').filter(|(name, _)| is_name(name));
        match known.and_then(|(name, behind)| Some((value_of(name)?, behind))) {
            Some((value, behind)) => {
                whole.push_str(&value);
                rest = behind;
            }
            None => {
                whole.push_str("${");
                rest = after;
            }
        }
    }
    whole.push_str(rest);
    whole
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tooldock_base::tree_file::{make_pipe, without_waiting};

    use super::*;

    fn refused(folder: &Path, text: &str) -> String {
        let (folder, text) = (folder.to_owned(), text.to_owned());
        without_waiting(move || LocalFiles::read(&folder, &text)).unwrap_err()
    }

    #[test]
    fn a_list_that_is_no_regular_file_of_bounded_size_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        make_pipe(&at("pipe"));
        fs::create_dir(at("directory")).unwrap();
        symlink("/dev/zero", at("zero.txt")).unwrap();
        fs::write(at("large.txt"), vec![b'#'; 1024 * 1024 + 1]).unwrap();
        fs::write(at("bytes.txt"), b"\xff\xfe-\0r\0").unwrap();
        fs::write(at("nested.txt"), "-c pipe\n").unwrap();
        for (text, expected) in [
            ("-r pipe", "pipe: cannot be read: a named pipe"),
            ("-c pipe", "pipe: cannot be read: a named pipe"),
            (
                "--pre --requirement=pipe",
                "pipe: cannot be read: a named pipe",
            ),
            ("-r nested.txt", "pipe: cannot be read: a named pipe"),
            ("-r /dev/zero", "/dev/zero: cannot be read: a device"),
            ("-r zero.txt", "zero.txt: cannot be read: a device"),
            ("-r directory", "directory: cannot be read: a directory"),
            (
                "-r large.txt",
                "large.txt: cannot be read: larger than 1024 KiB",
            ),
            ("-r bytes.txt", "bytes.txt: not UTF-8"),
            ("-r none.txt", "none.txt: cannot be read: No such file"),
        ] {
            let error = refused(folder.path(), text);
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn lists_name_others_beside_them_and_packages_from_the_folder_of_the_namespace() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("ns");
        fs::create_dir_all(folder.join("lists")).unwrap();
        fs::write(root.path().join("common.txt"), "-e ./both\nboth/\n").unwrap();
        fs::write(folder.join("lists/a.txt"), "-r b.txt\n./lib\n-f wheels\n").unwrap();
        fs::write(
            folder.join("lists/b.txt"),
            "-r a.txt\n-r ../requirements.txt\n",
        )
        .unwrap();
        let text = "-r lists/a.txt\n-c ../common.txt\n";
        fs::write(folder.join("requirements.txt"), text).unwrap();
        let found = LocalFiles::read(&folder, text).unwrap();
        let places = found.places.iter();
        let places = places.map(|(path, how)| (path.strip_prefix(&folder).unwrap(), *how));
        let places: Vec<_> = places
            .map(|(path, how)| (path.to_str().unwrap().trim_end_matches('/').to_owned(), how))
            .collect();
        let expected = [
            ("both", Use::Installed),
            ("lib", Use::Installed),
            ("lists/wheels", Use::Links),
            ("wheels", Use::Links),
        ];
        for (path, how) in expected {
            let named = |(found, as_that): &(String, Use)| found.ends_with(path) && *as_that == how;
            assert!(places.iter().any(named), "{path}: {places:?}");
        }
        assert_eq!(places.len(), 4, "{places:?}");
        assert!(found.has_packages());
        assert_eq!(found.built_in().count(), 2);
    }

    #[test]
    fn a_circle_of_lists_ends_and_a_long_chain_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..=LISTS_MAX {
            let next = format!("-r {}.txt\n", number + 1);
            fs::write(folder.path().join(format!("{number}.txt")), next).unwrap();
        }
        let error = refused(folder.path(), "-r 0.txt");
        assert_eq!(error, "64.txt: more than 64 lists are named");
        fs::write(folder.path().join("63.txt"), "-r 0.txt\n").unwrap();
        let found = LocalFiles::read(folder.path(), "-r 0.txt").unwrap();
        assert_eq!(found.lists.len(), LISTS_MAX);
    }

    #[test]
    fn variables_of_the_installer_are_part_of_a_path() {
        let value_of = |name: &str| (name == "HOME").then(|| "/home/me".to_owned());
        assert_eq!(
            with_values("-r ${HOME}/a.txt\n${NONE}/b ${home} ${HOME", &value_of),
            "-r /home/me/a.txt\n${NONE}/b ${home} ${HOME"
        );
    }
}
