//! A `requirements.txt`, as far as its text says what else decides about what is installed: other lists, local packages,
//! wheels, folders of wheels. What a line means beyond that is for the installer to say.

use std::path::PathBuf;

/// A `requirements.txt` as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    /// The file, in its folder: relative lines in it are relative to that.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
}

/// Something on this machine that a line of requirements names, as it is spelled there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// Another list of requirements or constraints; relative to the list that names it.
    List(String),
    /// A package's folder, a wheel, an archive, a folder of those; relative to the namespace's folder.
    Package(String),
}

impl Requirements {
    /// Whether any line asks for something.
    pub fn asks_for_packages(&self) -> bool {
        let text = self.text.trim_start_matches('\u{feff}');
        let mut lines = text.lines().map(str::trim);
        lines.any(|line| !line.is_empty() && !line.starts_with('#'))
    }

    /// Whether a line names other files, so that the text alone does not say what will be installed.
    pub fn refers_to_files(&self) -> bool {
        !named(&self.text).is_empty()
    }
}

/// What the lines of a list name on this machine, in their order.
pub(super) fn named(text: &str) -> Vec<Named> {
    let text = text.trim_start_matches('\u{feff}');
    let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
    joined.lines().filter_map(named_by).collect()
}

fn named_by(line: &str) -> Option<Named> {
    const LISTS: [&str; 4] = ["--requirement", "--constraint", "-r", "-c"];
    const PACKAGES: [&str; 4] = ["--editable", "--find-links", "-e", "-f"];
    let line = line.split(" #").next().unwrap_or(line).trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    if !line.starts_with('-') {
        return package(line, false);
    }
    let value_of = |options: &[&str]| options.iter().find_map(|option| value(line, option));
    match value_of(&LISTS) {
        Some(list) => local(list).map(Named::List),
        None => package(value_of(&PACKAGES)?, true),
    }
}

/// The value of an option: `-r base.txt`, `-rbase.txt`, `--requirement=base.txt`.
fn value<'a>(line: &'a str, option: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(option)?;
    let is_long = option.starts_with("--");
    let ends_there = rest.starts_with(['=', ' ', '\t']);
    (!is_long || ends_there).then(|| unquoted(rest.trim_start_matches(['=', ' ', '\t'])))
}

/// A requirement or the value of an option. A bare word is a package of the index, unless it `is_a_place`.
fn package(text: &str, is_a_place: bool) -> Option<Named> {
    let text = text.split(" --").next().unwrap_or(text);
    let text = text.split(';').next().unwrap_or(text).trim();
    let (text, is_a_place) = match text.split_once('@') {
        Some((name, reference)) if is_name(name) => (reference.trim(), true),
        _ => (text, is_a_place),
    };
    let text = unquoted(text);
    let text = match text.strip_suffix(']').and_then(|it| it.rsplit_once('[')) {
        Some((path, _extras)) => path.trim_end(),
        None => text,
    };
    let is_path = is_a_place
        || text.starts_with(['.', '/'])
        || text.starts_with("file:")
        || text.contains('/')
        || is_archive(text);
    is_path.then(|| local(text).map(Named::Package))?
}

/// The path in what is a path or a URL; `None` for what is fetched from elsewhere.
fn local(text: &str) -> Option<String> {
    let Some(url) = text.strip_prefix("file:") else {
        return (!text.is_empty() && !text.contains("://")).then(|| text.to_owned());
    };
    let url = url.split(['#', '?']).next().unwrap_or(url);
    let path = url.strip_prefix("//localhost").unwrap_or(url);
    Some(decoded(path.strip_prefix("//").unwrap_or(path)))
}

/// A URL's path without `%20` and the like.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = (first == b'%').then(|| after.get(..2)).flatten();
        let byte = hex
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A package's name, with extras or without: what stands before the `@` of a direct reference.
fn is_name(text: &str) -> bool {
    let text = text.trim();
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-[], ".contains(&byte))
}

fn is_archive(text: &str) -> bool {
    const ENDINGS: [&str; 7] = [
        ".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz",
    ];
    ENDINGS.iter().any(|ending| text.ends_with(ending))
}

fn unquoted(text: &str) -> &str {
    text.trim().trim_matches(['"', '\''])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirements(text: &str) -> Requirements {
        Requirements {
            path: PathBuf::new(),
            text: text.into(),
        }
    }

    #[test]
    fn requirements_tell_whether_they_ask_for_anything() {
        assert!(!requirements("\n# nothing\n").asks_for_packages());
        assert!(requirements("httpx>=0.28.0\n").asks_for_packages());
    }

    #[test]
    fn local_packages_wheels_and_lists_are_named_with_or_without_a_leading_dot() {
        let list = |path: &str| Some(Named::List(path.into()));
        let package = |path: &str| Some(Named::Package(path.into()));
        for (line, expected) in [
            ("-r base.txt", list("base.txt")),
            ("-rbase.txt", list("base.txt")),
            ("--requirement=base.txt", list("base.txt")),
            ("--constraint lists/c.txt  # pins", list("lists/c.txt")),
            ("-e .", package(".")),
            ("-e mine[extra]", package("mine")),
            ("--find-links w", package("w")),
            ("./wheels/x.whl", package("./wheels/x.whl")),
            ("wheels/x.whl --hash=sha256:00", package("wheels/x.whl")),
            ("x-1.0-py3-none-any.whl", package("x-1.0-py3-none-any.whl")),
            (
                "libs/mine[fast]; python_version > '3'",
                package("libs/mine"),
            ),
            (
                "x @ file:///tmp/my%20x.whl#sha256=0",
                package("/tmp/my x.whl"),
            ),
            ("x[y]@./x", package("./x")),
            ("../shared/lib", package("../shared/lib")),
            ("httpx>=0.28.0", None),
            ("httpx[http2]==0.28 ; sys_platform == 'linux'", None),
            ("x @ https://host/x.whl", None),
            ("https://host/x.whl", None),
            ("-e git+ssh://git@host/x.git", None),
            ("-f https://host/wheels/", None),
            ("--index-url https://host/", None),
            ("--extra-index-url https://host/", None),
            ("--require-hashes", None),
            ("# ./x", None),
        ] {
            assert_eq!(named_by(line), expected, "{line}");
        }
        assert!(requirements("httpx\n-r \\\n  base.txt\n").refers_to_files());
        assert!(!requirements("httpx>=0.28.0\n--index-url https://x/\n").refers_to_files());
    }
}
