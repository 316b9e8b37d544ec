//! Reads the files of an nginx configuration, within bounds: FILE, which the operator names, and the files that it includes.
//!
//! A relative `include` is resolved against the folder of FILE, as nginx uses the folder of nginx.conf. If the result does not
//! exist, the `include` is resolved against the folder of the including file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use globset::GlobBuilder;

use crate::report::Report;
use crate::tree::{self, Directive, DirectivePosition, Failure, Includes};

/// Maximum size of all files together, in bytes. It is far above the size of configurations that are written by hand.
const BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Maximum number of files. A file counts as often as it is included.
const FILES_MAX: usize = 1_000;
/// Maximum depth of nested includes.
const DEPTH_MAX: usize = 16;
/// Maximum number of directives in all files.
const DIRECTIVES_MAX: usize = 200_000;

/// Files that come with nginx and contain nothing to import.
#[rustfmt::skip]
const HARMLESS: [&str; 5] = ["mime.types", "fastcgi_params", "fastcgi.conf", "scgi_params", "uwsgi_params"];

/// Reads the directives of FILE (`-` is standard input), with each `include` replaced by the directives of its files.
///
/// # Errors
///
/// When a file cannot be read, has a syntax error or includes itself, or when a bound is exceeded.
pub(crate) fn read(file: &Path, report: &mut Report) -> Result<Vec<Directive>, Failure> {
    let is_stdin = file.as_os_str() == "-";
    let shown: Arc<str> = if is_stdin {
        "standard input".into()
    } else {
        shown_path(file)
    };
    let place = DirectivePosition {
        file: Arc::clone(&shown),
        line: 0,
    };
    let folder = file
        .parent()
        .filter(|_| !is_stdin)
        .map(Path::to_owned)
        .unwrap_or_default();
    let mut reader = IncludeReader {
        folder: folder.clone(),
        report,
        bytes: BYTES_MAX,
        files: FILES_MAX,
        directives: DIRECTIVES_MAX,
        open: Vec::new(),
    };
    let text = match is_stdin {
        true => reader.text(io::stdin().lock()),
        false => reader.text_of(file),
    };
    let text = text.map_err(|what| Failure::at(&place, what))?;
    let known_by = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    reader.open.push(OpenFile {
        known_by,
        folder,
        shown: Arc::clone(&shown),
    });
    tree::parse(&text, &shown, 0, &mut reader)
}

/// The path of a file for display, on one line.
fn shown_path(file: &Path) -> Arc<str> {
    let text = file.display().to_string();
    text.replace(char::is_control, "\u{fffd}").into()
}

/// A file that is being read, for detecting files that include themselves.
struct OpenFile {
    known_by: PathBuf,
    folder: PathBuf,
    shown: Arc<str>,
}

struct IncludeReader<'r> {
    /// The folder against which relative includes are resolved first.
    folder: PathBuf,
    report: &'r mut Report,
    /// Remaining amount of each bound: bytes, files and directives.
    bytes: u64,
    files: usize,
    directives: usize,
    /// The files that are being read: FILE, and the chain of includes to the current file.
    open: Vec<OpenFile>,
}

impl IncludeReader<'_> {
    fn text_of(&mut self, file: &Path) -> Result<String, String> {
        self.text(File::open(file).map_err(|error| error.to_string())?)
    }

    fn text(&mut self, from: impl Read) -> Result<String, String> {
        let mut bytes = Vec::new();
        from.take(self.bytes + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| error.to_string())?;
        let length = bytes.len() as u64;
        if length > self.bytes {
            return Err("the configuration is larger than 4 MiB".to_owned());
        }
        self.bytes -= length;
        if bytes.contains(&0) {
            return Err("the file has a NUL byte: it is no text".to_owned());
        }
        String::from_utf8(bytes).map_err(|error| {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            format!("line {line} of the file is not UTF-8 text")
        })
    }

    /// The path by which an included file is known, and its text.
    fn opened(&mut self, file: &Path) -> Result<(PathBuf, String), String> {
        let shown = shown_path(file);
        let known_by = fs::canonicalize(file).map_err(|error| format!("{shown}: {error}"))?;
        if self.open.iter().any(|open| open.known_by == known_by) {
            let from = self.open.last().map_or("", |open| &open.shown);
            return Err(format!("{shown} leads to {from}, which includes it again"));
        }
        if self.open.len() > DEPTH_MAX {
            return Err(format!(
                "more than {DEPTH_MAX} includes stand in each other"
            ));
        }
        let left = self.files.checked_sub(1);
        self.files = left.ok_or_else(|| format!("more than {FILES_MAX} files"))?;
        // Only regular files are opened: opening a pipe would block until a process writes to it.
        if !fs::metadata(file).is_ok_and(|it| it.is_file()) {
            return Err(format!("{shown}: is no regular file"));
        }
        let text = self
            .text_of(file)
            .map_err(|what| format!("{shown}: {what}"))?;
        Ok((known_by, text))
    }

    /// The files that a pattern matches, sorted by name.
    fn matching(&self, pattern: &str) -> Vec<PathBuf> {
        let folders = self.folders().into_iter();
        let mut found = folders.map(|folder| expand(&folder, pattern));
        found.find(|files| !files.is_empty()).unwrap_or_default()
    }

    /// The folders against which relative includes are resolved, in order of preference.
    fn folders(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.folder.clone()];
        folders.extend(self.open.last().map(|open| open.folder.clone()));
        // Files in folders with these names are included by the nginx.conf in the parent folder. So their includes are relative
        // to the parent folder.
        let parts = ["sites-enabled", "sites-available", "conf.d", "http.d"];
        let name = self.folder.file_name().and_then(|it| it.to_str());
        if name.is_some_and(|it| parts.contains(&it)) {
            folders.extend(self.folder.parent().map(Path::to_owned));
        }
        folders
    }

    /// Returns true if the folder of a pattern exists. If it does not, the files that nginx would find there are unknown.
    fn has_folder(&self, pattern: &str) -> bool {
        let fixed: PathBuf = Path::new(pattern)
            .components()
            .take_while(|it| !it.as_os_str().to_str().is_some_and(is_glob))
            .collect();
        self.folders().iter().any(|it| {
            let folder = it.join(&fixed);
            folder.as_os_str().is_empty() || folder.is_dir()
        })
    }
}

impl Includes for IncludeReader<'_> {
    fn include(&mut self, include: &Directive, depth: usize) -> Result<Vec<Directive>, Failure> {
        let fails = |what| Failure::at(&include.place, format!("include: {what}"));
        let pattern = include.first();
        let files = self.matching(pattern);
        let name = Path::new(pattern).file_name().and_then(|it| it.to_str());
        let nothing_there = is_glob(pattern) && self.has_folder(pattern);
        if files.is_empty() && !nothing_there && !name.is_some_and(|it| HARMLESS.contains(&it)) {
            self.report.security(include, "there is no such file here, and it may refuse requests: run the command where the file is");
        }
        let mut directives = Vec::new();
        for file in files {
            let (known_by, text) = self.opened(&file).map_err(fails)?;
            let shown = shown_path(&file);
            let folder = file.parent().map(Path::to_owned).unwrap_or_default();
            self.open.push(OpenFile {
                known_by,
                folder,
                shown: Arc::clone(&shown),
            });
            let parsed = tree::parse(&text, &shown, depth, self);
            self.open.pop();
            directives.extend(parsed?);
        }
        Ok(directives)
    }

    fn left(&mut self) -> &mut usize {
        &mut self.directives
    }
}

fn is_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?', '['])
}

/// The files that a pattern matches below a folder, sorted by name.
fn expand(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    for component in Path::new(pattern).components() {
        let name = component.as_os_str().to_str().unwrap_or_default();
        let is_pattern = matches!(component, Component::Normal(_)) && is_glob(name);
        found = found
            .iter()
            .flat_map(|path| match is_pattern {
                true => matching_entries(path, name),
                false => vec![path.join(component)],
            })
            .take(FILES_MAX + 1)
            .collect();
    }
    found.retain(|path| path.exists());
    found
}

/// The entries of a folder that a pattern matches. As in a shell, hidden entries match only patterns that begin with a dot.
fn matching_entries(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    let here = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let glob = GlobBuilder::new(pattern).backslash_escape(true).build();
    let (Ok(glob), Ok(entries)) = (glob, fs::read_dir(here)) else {
        return Vec::new();
    };
    let glob = glob.compile_matcher();
    let hidden = |name: &str| name.starts_with('.') && !pattern.starts_with('.');
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !hidden(name) && glob.is_match(name))
        .collect();
    names.sort();
    names.into_iter().map(|name| folder.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().expect("a parent")).expect("made");
            fs::write(file, text).expect("written");
        }
        folder
    }

    fn names(files: &[(&str, &str)]) -> Result<(Vec<String>, Report), String> {
        let folder = folder(files);
        let mut report = Report::default();
        let file = folder.path().join("nginx.conf");
        let tree = read(&file, &mut report).map_err(|error| error.to_string())?;
        let names = tree.iter().map(|it| it.name().to_owned()).collect();
        Ok((names, report))
    }

    #[test]
    fn includes_stand_where_they_are_named_and_globs_are_sorted() {
        let (names, report) = names(&[
            (
                "nginx.conf",
                "a; include conf.d/*.conf; include mime.types; z;",
            ),
            ("conf.d/2.conf", "c;"),
            ("conf.d/1.conf", "b; include snippets/x;"),
            ("conf.d/.hidden.conf", "no;"),
            ("conf.d/note.txt", "no;"),
            ("conf.d/snippets/x", "beside;"),
        ])
        .expect("readable");
        assert_eq!(names, ["a", "b", "beside", "c", "z"]);
        assert!(!report.has_security() && report.lines().next().is_none());
    }

    #[test]
    fn a_file_that_is_not_there_may_have_refused_requests() {
        let (_, report) = names(&[(
            "nginx.conf",
            "include auth.conf;\ninclude none/*.conf;\ninclude *.none;",
        )])
        .expect("readable");
        let lines: Vec<_> = report.lines().collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(report.has_security());
    }

    #[test]
    fn files_of_sites_enabled_include_from_the_folder_above() {
        let folder = folder(&[
            ("sites-enabled/mcp", "include snippets/tls.conf;"),
            ("snippets/tls.conf", "a;"),
        ]);
        let mut report = Report::default();
        let tree = read(&folder.path().join("sites-enabled/mcp"), &mut report).expect("readable");
        assert!(tree[0].is("a") && !report.has_security());
    }

    #[test]
    fn a_circle_names_both_files() {
        let error = names(&[
            ("nginx.conf", "include a.conf;"),
            ("a.conf", "include b.conf;"),
            ("b.conf", "\ninclude a.conf;"),
        ])
        .map(drop)
        .expect_err("a circle");
        assert!(
            error.contains("b.conf:2: include: ") && error.contains("a.conf leads to "),
            "{error}"
        );
    }

    #[test]
    fn files_that_are_no_text_or_too_large_are_refused() {
        let large = "#".repeat(BYTES_MAX as usize + 1);
        let many = "a;".repeat(DIRECTIVES_MAX + 1);
        let deep: Vec<_> = (0..20)
            .map(|n| (format!("{n}.conf"), format!("include {}.conf;", n + 1)))
            .collect();
        let mut chain: Vec<_> = deep.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        chain.push(("nginx.conf", "include 0.conf;"));
        for (files, said) in [
            (
                &[("nginx.conf", "a\0;")][..],
                "nginx.conf: the file has a NUL byte",
            ),
            (&[("nginx.conf", large.as_str())], "larger than 4 MiB"),
            (&[("nginx.conf", many.as_str())], "too many directives"),
            (
                &[("nginx.conf", "include x/;"), ("x/y", "")],
                "is no regular file",
            ),
            (&chain, "more than 16 includes"),
        ] {
            let error = names(files).map(drop).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
        let folder = folder(&[]);
        let file = folder.path().join("nginx.conf");
        fs::write(&file, b"a;\n\xff;").expect("written");
        let error = read(&file, &mut Report::default()).expect_err("no text");
        assert!(
            error.what.contains("line 2 of the file is not UTF-8"),
            "{error}"
        );
        assert!(read(&folder.path().join("none"), &mut Report::default()).is_err());
    }
}
