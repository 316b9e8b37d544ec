//! Packages that a namespace folder lists elsewhere than in `requirements.txt`: in `pyproject.toml`, or in the inline metadata of
//! a script (PEP 723).

use std::path::PathBuf;

use toml::{Table, Value};
use tooldock_process::requirements::Requirements;

/// Returns the dependencies that a `pyproject.toml` lists, without `python` itself. Poetry's dependencies are returned as names
/// without versions; [`project_packages`] returns requirements that can be installed.
pub(super) fn project_dependencies(text: &str) -> Vec<String> {
    let Ok(table) = text.parse::<Table>() else {
        return Vec::new();
    };
    let listed = table.get("project").map(dependencies_of);
    let poetry = table
        .get("tool")
        .and_then(|it| it.get("poetry")?.get("dependencies"));
    let poetry = poetry.and_then(Value::as_table).into_iter().flatten();
    let poetry = poetry
        .map(|(name, _)| name.clone())
        .filter(|it| it != "python");
    listed.into_iter().flatten().chain(poetry).collect()
}

/// Returns the dependencies in the inline metadata of a script (PEP 723).
pub(super) fn script_dependencies(text: &str) -> Vec<String> {
    let table = script_metadata(text).unwrap_or_default();
    dependencies_of(&Value::Table(table))
}

/// Returns the table in the inline metadata of a script; `None` if the script has no such metadata, or if it is not valid TOML.
fn script_metadata(text: &str) -> Option<Table> {
    let mut lines = text.lines().map(str::trim_end);
    lines.find(|line| *line == "# /// script")?;
    let block = lines.take_while(|line| line.starts_with('#') && *line != "# ///");
    let block = block.map(|line| line.strip_prefix("# ").unwrap_or_default());
    block.collect::<Vec<_>>().join("\n").parse().ok()
}

fn dependencies_of(table: &Value) -> Vec<String> {
    let listed = table.get("dependencies").and_then(Value::as_array);
    let listed = listed.into_iter().flatten().filter_map(Value::as_str);
    listed.map(str::to_owned).collect()
}

/// Returns the requirements in a `pyproject.toml`, for the installer.
///
/// # Errors
///
/// When the file names a source of packages other than the installer's package index, or a version that only Poetry understands.
/// Installing by name alone could then install another author's package, or another version.
pub(super) fn project_packages(text: &str) -> Result<Vec<String>, String> {
    let table: Table = text.parse().unwrap_or_default();
    let tool = |name: &str| table.get("tool")?.get(name);
    let poetry = tool("poetry").and_then(|it| it.get("dependencies")?.as_table());
    let mut packages = table.get("project").map_or_else(Vec::new, dependencies_of);
    for (name, entry) in poetry.into_iter().flatten() {
        if name != "python" {
            packages.push(poetry_requirement(name, entry)?);
        }
    }
    checked(packages, table.get("tool"))
}

/// Returns the requirements in the inline metadata of a script, for the installer.
///
/// # Errors
///
/// The errors of [`project_packages`].
pub(super) fn script_packages(text: &str) -> Result<Vec<String>, String> {
    let table = script_metadata(text).unwrap_or_default();
    let packages = dependencies_of(&Value::Table(table.clone()));
    checked(packages, table.get("tool"))
}

/// Tables below `tool`, each with the keys that make an installer look for packages elsewhere than in the default package index.
const PLACES: [(&[&str], &[&str]); 4] = [
    (&["uv"], UV_PLACES),
    (&["uv", "pip"], UV_PLACES),
    (&["poetry"], &["source"]),
    (&["pdm"], &["source"]),
];
const UV_PLACES: &[&str] = &[
    "sources",
    "index",
    "index-url",
    "default-index",
    "extra-index-url",
    "find-links",
    "no-index",
];

fn checked(packages: Vec<String>, tool: Option<&Value>) -> Result<Vec<String>, String> {
    if packages.is_empty() {
        return Ok(packages);
    }
    for (path, keys) in PLACES {
        let table = path
            .iter()
            .try_fold(tool, |at, name| Some(at?.get(*name)))
            .flatten();
        if let Some(key) = keys
            .iter()
            .find(|key| table.is_some_and(|it| it.get(**key).is_some()))
        {
            return Err(unreadable(&format!("tool.{}.{key}", path.join("."))));
        }
    }
    match packages.iter().find(|it| !is_of_index(it)) {
        Some(odd) => Err(format!(
            "{odd:?} is no package of an index: write it into requirements.txt"
        )),
        None => Ok(packages),
    }
}

/// Returns true if a requirement names a package, with or without the URL of another host; false for options of the installer and
/// for local files.
fn is_of_index(requirement: &str) -> bool {
    let alone = Requirements {
        path: PathBuf::new(),
        text: requirement.into(),
    };
    requirement.starts_with(|sign: char| sign.is_ascii_alphanumeric())
        && !requirement.contains(char::is_control)
        && !requirement.contains(" -")
        && !requirement.ends_with('\\')
        && !alone.refers_to_files()
}

/// Converts an entry of Poetry's dependencies into a requirement.
///
/// # Errors
///
/// When the entry has a key other than `version` and `extras`, or a version that cannot be converted.
fn poetry_requirement(name: &str, entry: &Value) -> Result<String, String> {
    let keys = entry.as_table().into_iter().flatten();
    let (mut version, mut extras) = (entry.as_str(), String::new());
    for (key, value) in keys {
        match (&**key, value.as_array()) {
            ("version", None) => version = value.as_str(),
            ("extras", Some(list)) => {
                let list: Vec<_> = list.iter().filter_map(Value::as_str).collect();
                extras = format!("[{}]", list.join(","));
            }
            _ => return Err(unreadable(&format!("Poetry's entry of {name}"))),
        }
    }
    let bounds = version.and_then(poetry_version);
    let bounds = bounds.ok_or_else(|| {
        format!("Poetry's entry of {name} has a version that only Poetry reads: write it into requirements.txt")
    })?;
    Ok(format!("{name}{extras}{bounds}"))
}

/// Converts a version in Poetry's notation into the bounds of a requirement: `^1.2` becomes `>=1.2,<2`, `~1.2` becomes
/// `>=1.2,<1.3`, and `1.2` becomes `==1.2`. `None` for versions that cannot be converted, such as `>=1 || <0.5`.
fn poetry_version(text: &str) -> Option<String> {
    let text = text.trim();
    if text == "*" {
        return Some(String::new());
    }
    if text.starts_with(['<', '>', '=', '!']) {
        return (!text.contains('|')).then(|| text.to_owned());
    }
    let digits = text.trim_start_matches(['^', '~']);
    let numbers: Option<Vec<u64>> = digits.split('.').map(|part| part.parse().ok()).collect();
    let numbers = numbers?;
    let kept = match text.as_bytes().first()? {
        b'^' => numbers.iter().position(|it| *it != 0),
        b'~' => Some(numbers.len().min(2) - 1),
        _ => return Some(format!("=={text}")),
    };
    let kept = kept.unwrap_or(numbers.len() - 1);
    let mut end = numbers[..=kept].to_vec();
    end[kept] = end[kept].checked_add(1)?;
    let end: Vec<_> = end.iter().map(u64::to_string).collect();
    Some(format!(">={digits},<{}", end.join(".")))
}

/// Returns the error for an entry that names the source of a package in a form that the gateway does not read.
fn unreadable(entry: &str) -> String {
    format!(
        "{entry} says where packages come from in a way that only its own tool reads: write them into requirements.txt"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_an_index_are_taken_and_those_of_other_places_refused() {
        for (text, packages) in [
            (
                "[project]\ndependencies = ['mcp[cli]<2', 'httpx']\n",
                &["mcp[cli]<2", "httpx"][..],
            ),
            (
                "[tool.poetry.dependencies]\npython = '^3.11'\nmcp = '*'\nhttpx = '>=0.27'\n",
                &["mcp", "httpx>=0.27"],
            ),
            (
                "[tool.poetry.dependencies]\nmcp = { version = '^1.2', extras = ['cli'] }\na = '^0.3.1'\nb = '~1.2.3'\nc = '1.4'\n",
                &[
                    "mcp[cli]>=1.2,<2",
                    "a>=0.3.1,<0.4",
                    "b>=1.2.3,<1.3",
                    "c==1.4",
                ],
            ),
            ("[tool.uv.sources]\nlib = { path = 'lib' }\n", &[]),
            ("no table", &[]),
        ] {
            let mut found = project_packages(text).expect(text);
            let mut packages: Vec<_> = packages.iter().map(|it| (*it).to_owned()).collect();
            found.sort();
            packages.sort();
            assert_eq!(found, packages, "{text}");
        }
        for text in [
            "[tool.poetry.dependencies]\nlib = { path = '../lib' }\n",
            "[tool.poetry.dependencies]\nmcp = '>=1 || <0.5'\n",
            "[tool.poetry.dependencies]\nmcp = '*'\n[[tool.poetry.source]]\nname = 'own'\n",
            "[project]\ndependencies = ['lib']\n[tool.uv]\nindex-url = 'https://a.example/'\n",
            "[project]\ndependencies = ['lib']\n[tool.uv.pip]\nextra-index-url = ['https://a.example/']\n",
            "[project]\ndependencies = ['lib']\n[[tool.pdm.source]]\nurl = 'https://a.example/'\n",
            "[project]\ndependencies = ['lib']\n[tool.uv.sources]\nlib = { git = 'https://a.example/lib' }\n",
            "[project]\ndependencies = ['lib']\n[[tool.uv.index]]\nurl = 'https://a.example/'\n",
        ] {
            let refused = project_packages(text).expect_err(text);
            assert!(refused.contains("requirements.txt"), "{refused}");
        }
        for odd in [
            "--index-url=https://a.example",
            "-e .",
            "lib\n--pre",
            "",
            "lib --pre",
            "lib \\",
            "lib/pkg",
            "lib.whl",
            "lib @ file:///data/tools/other",
        ] {
            let text = format!("[project]\ndependencies = [{}]\n", Value::from(odd));
            let refused = project_packages(&text).expect_err(&text);
            assert!(refused.contains("no package of an index"), "{refused}");
        }
    }

    #[test]
    fn the_inline_metadata_of_a_script_is_read_like_a_pyproject_file() {
        let script = |lines: &str| format!("# /// script\n{lines}# ///\nimport mcp\n");
        let plain = script("# dependencies = ['mcp']\n");
        assert_eq!(script_packages(&plain), Ok(vec!["mcp".to_owned()]));
        let other =
            script("# dependencies = ['lib']\n# [tool.uv.sources]\n# lib = { path = 'lib' }\n");
        assert!(script_packages(&other).is_err());
        assert_eq!(script_packages("import mcp\n"), Ok(Vec::new()));
    }
}
