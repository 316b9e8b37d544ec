//! Finds the local files on which a `requirements.txt` depends: lists, packages, wheels, folders of wheels. The rest of a line is
//! left to the installer.

mod local;

use std::path::PathBuf;

pub use local::{LocalFiles, Use};

/// Name of the file with a namespace's dependencies.
pub const REQUIREMENTS_FILE: &str = "requirements.txt";

/// Maximum size of `requirements.txt`, in bytes; a larger file is refused.
pub const REQUIREMENTS_BYTES_MAX: u64 = 1024 * 1024;

/// Content of a `requirements.txt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    /// Path of the `requirements.txt`. Relative paths in the file are relative to its folder.
    pub path: PathBuf,
    /// Text of the `requirements.txt`.
    pub text: String,
}

/// A local file or folder that a line of requirements names; the path is as written there.
#[derive(Debug, PartialEq, Eq)]
enum LocalRequirement {
    /// Another list of requirements or constraints; relative to the list that names it.
    List(String),
    /// A package's folder, a wheel or an archive; relative to the namespace's folder.
    Package(String),
    /// The folder of a package whose code is used in place; relative to the namespace's folder.
    Editable(String),
    /// A folder of wheels and archives; relative to the list that names it, or to the namespace's folder.
    Links(String),
}

impl Requirements {
    /// Returns true if the file has any line other than comments and empty lines.
    pub fn asks_for_packages(&self) -> bool {
        let text = self.text.trim_start_matches('\u{feff}');
        let mut lines = text.lines().map(str::trim);
        lines.any(|line| !line.is_empty() && !line.starts_with('#'))
    }

    /// Returns true if a line names a local file. The text alone then does not determine the installed packages.
    pub fn refers_to_files(&self) -> bool {
        !named(&self.text).is_empty()
    }
}

/// Characters that end a line for installers.
const LINE_ENDS: [char; 10] = [
    '\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}',
];

/// The local files and folders that the lines of a list name, in their order.
fn named(text: &str) -> Vec<LocalRequirement> {
    let text = text.trim_start_matches('\u{feff}');
    let joined = text.replace("\\\r\n", "").replace("\\\n", "");
    joined.split(LINE_ENDS).flat_map(named_by).collect()
}

fn named_by(line: &str) -> Vec<LocalRequirement> {
    let line = without_comment(line).trim();
    match line.starts_with('-') {
        true => options(line).into_iter().filter_map(option).collect(),
        false => package(line, false)
            .map(LocalRequirement::Package)
            .into_iter()
            .collect(),
    }
}

/// Removes the comment from a line. A comment begins with a `#` at the start of the line or after white space.
fn without_comment(line: &str) -> &str {
    let begins = |at: &usize| {
        line[..*at]
            .chars()
            .next_back()
            .is_none_or(char::is_whitespace)
    };
    let mut signs = line.match_indices('#').map(|(at, _)| at);
    signs.find(begins).map_or(line, |at| &line[..at])
}

/// Splits a line into its options, each with its value. A dash within quotes does not begin an option.
fn options(line: &str) -> Vec<&str> {
    let mut options = Vec::new();
    let (mut start, mut quote, mut before) = (0, None, ' ');
    for (at, sign) in line.char_indices() {
        match quote {
            Some(open) if sign == open => quote = None,
            Some(_) => {}
            None if matches!(sign, '"' | '\'') => quote = Some(sign),
            None if sign == '-' && before.is_whitespace() && at > start => {
                options.push(line[start..at].trim());
                start = at;
            }
            None => {}
        }
        before = sign;
    }
    options.push(line[start..].trim());
    options
}

/// The local file or folder that a line's option names, such as `-r base.txt`; `None` for other options.
fn option(text: &str) -> Option<LocalRequirement> {
    const LISTS: [&str; 4] = ["--requirement", "--constraint", "-r", "-c"];
    let value_of = |options: &[&str]| options.iter().find_map(|option| value(text, option));
    if let Some(list) = value_of(&LISTS) {
        return local(list).map(LocalRequirement::List);
    }
    if let Some(editable) = value_of(&["--editable", "-e"]) {
        return package(editable, true).map(LocalRequirement::Editable);
    }
    package(value_of(&["--find-links", "-f"])?, true).map(LocalRequirement::Links)
}

/// The value of an option: `-r base.txt`, `-rbase.txt`, `--requirement=base.txt`. A long option's name may be abbreviated.
fn value<'a>(text: &'a str, option: &str) -> Option<&'a str> {
    const ENDS: [char; 3] = ['=', ' ', '\t'];
    let rest = match option.starts_with("--") {
        true => {
            let end = text.find(ENDS)?;
            let name = &text[..end];
            (name.len() > "--x".len() && option.starts_with(name)).then(|| &text[end..])?
        }
        false => text.strip_prefix(option)?,
    };
    Some(unquoted(rest.trim_start_matches(ENDS)))
}

/// The path of a local package in a requirement or in the value of an option. A word without a slash or an archive's ending is
/// the name of a package of the index, unless `is_a_place` is true.
fn package(text: &str, is_a_place: bool) -> Option<String> {
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
    is_path.then(|| local(text))?
}

/// The local path in a path or a `file:` URL; `None` for other URLs.
fn local(text: &str) -> Option<String> {
    let Some(url) = text.strip_prefix("file:") else {
        return (!text.is_empty() && !text.contains("://")).then(|| text.to_owned());
    };
    let url = url.split(['#', '?']).next().unwrap_or(url);
    let path = url.strip_prefix("//localhost").unwrap_or(url);
    Some(decoded(path.strip_prefix("//").unwrap_or(path)))
}

/// Decodes the percent-encoding of a URL's path, such as `%20`.
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

/// Returns true if a text is the name of a package, with or without extras, as before the `@` of a direct reference.
fn is_name(text: &str) -> bool {
    let text = text.trim();
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-[], ".contains(&byte))
}

/// Returns true if a file of this name is a wheel or a source archive.
pub fn is_archive(text: &str) -> bool {
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
        let list = |path: &str| vec![LocalRequirement::List(path.into())];
        let package = |path: &str| vec![LocalRequirement::Package(path.into())];
        let editable = |path: &str| vec![LocalRequirement::Editable(path.into())];
        let links = |path: &str| vec![LocalRequirement::Links(path.into())];
        let none = Vec::new;
        for (line, expected) in [
            ("-r base.txt", list("base.txt")),
            ("-rbase.txt", list("base.txt")),
            ("--requirement=base.txt", list("base.txt")),
            ("--requirem base.txt", list("base.txt")),
            ("-r \"my list.txt\"\t# mine", list("my list.txt")),
            ("--pre -r base.txt", list("base.txt")),
            ("--constraint lists/c.txt  # pins", list("lists/c.txt")),
            ("-e .", editable(".")),
            ("-e mine[extra]", editable("mine")),
            ("-e file:///opt/mine#egg=mine", editable("/opt/mine")),
            ("--editable=./mine --no-deps", editable("./mine")),
            ("--find-links w", links("w")),
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
            ("httpx>=0.28.0", none()),
            ("httpx[http2]==0.28 ; sys_platform == 'linux'", none()),
            ("x @ https://host/x.whl", none()),
            ("https://host/x.whl", none()),
            ("-r https://host/base.txt", none()),
            ("-e git+ssh://git@host/x.git", none()),
            ("-f https://host/wheels/", none()),
            ("--index-url https://host/", none()),
            ("--extra-index-url https://host/", none()),
            ("--require-hashes", none()),
            ("# ./x", none()),
            ("", none()),
        ] {
            assert_eq!(named_by(line), expected, "{line}");
        }
        assert!(requirements("httpx\n-r \\\n  base.txt\n").refers_to_files());
        assert!(!requirements("httpx>=0.28.0\n--index-url https://x/\n").refers_to_files());
    }

    #[test]
    fn each_option_of_a_line_and_each_kind_of_line_end_counts() {
        let list = |path: &str| LocalRequirement::List(path.into());
        assert_eq!(
            named("-r a.txt -c b.txt\u{c}-r c.txt\r-r d\\\n.txt"),
            [list("a.txt"), list("b.txt"), list("c.txt"), list("d.txt")]
        );
    }
}
