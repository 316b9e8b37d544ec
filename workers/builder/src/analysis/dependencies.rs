//! Packages that the sources depend on, read from the dependency files of each language.
//!
//! Only files of the repository's main language are read; files nearest to the repository's root take precedence.

use std::collections::BTreeMap;

use serde_json::Value;
use toml::Table;
use tooldock_base::regular_file;

use super::{Language, is_secondary, is_vendored};
use crate::tree::Tree;

/// Maximum number of dependency files that are read, and of packages that are listed.
const MANIFESTS_MAX: usize = 50;
const PACKAGES_MAX: usize = 1000;

/// Packages that the sources depend on, by name, with the required versions.
#[derive(Debug, Default)]
pub(super) struct Dependencies(BTreeMap<String, String>);

/// Returns true if a file lists the dependencies of its repository.
pub(super) fn is_manifest(path: &str) -> bool {
    language_of(path).is_some()
}

fn language_of(path: &str) -> Option<Language> {
    let name = path.rsplit('/').next()?;
    Some(match name {
        "package.json" => Language::TypeScript,
        "pyproject.toml" | "setup.cfg" | "requirements.txt" => Language::Python,
        "go.mod" => Language::Go,
        "Cargo.toml" => Language::Rust,
        _ => return None,
    })
}

impl Dependencies {
    pub(super) fn of(tree: &Tree, language: Option<Language>) -> Self {
        let family = |it: Language| match it {
            Language::JavaScript => Language::TypeScript,
            other => other,
        };
        let mut manifests: Vec<&str> = tree
            .files()
            .filter(|path| !is_vendored(path) && !is_secondary(path))
            .filter(|path| {
                let of = language_of(path);
                of.is_some() && language.is_none_or(|it| of == Some(family(it)))
            })
            .collect();
        manifests.sort_by_key(|path| (path.matches('/').count(), *path));
        let mut found = Self::default();
        for path in manifests.into_iter().take(MANIFESTS_MAX) {
            let bytes = regular_file::read(&tree.root().join(path), super::PARSED_FILE_MAX);
            if let Some(text) = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
                found.read(path, &text);
            }
        }
        found
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn into_map(self) -> BTreeMap<String, String> {
        self.0
    }

    fn add(&mut self, name: &str, version: &str) {
        let known = self.0.contains_key(name);
        if !known && !name.is_empty() && name.len() <= 256 && self.0.len() < PACKAGES_MAX {
            self.0
                .insert(name.to_owned(), version.chars().take(256).collect());
        }
    }

    pub(super) fn read(&mut self, path: &str, text: &str) {
        match path.rsplit('/').next().unwrap_or_default() {
            "package.json" => self.read_package_json(text),
            "pyproject.toml" => self.read_pyproject(text),
            "setup.cfg" => self.read_setup_cfg(text),
            "requirements.txt" => text.lines().for_each(|line| self.add_requirement(line)),
            "go.mod" => self.read_go_mod(text),
            "Cargo.toml" => self.read_cargo(text),
            _ => {}
        }
    }

    fn read_package_json(&mut self, text: &str) {
        let Ok(manifest) = serde_json::from_str::<Value>(text) else {
            return;
        };
        for key in ["dependencies", "peerDependencies", "optionalDependencies"] {
            for (name, version) in manifest[key].as_object().into_iter().flatten() {
                self.add(name, version.as_str().unwrap_or("*"));
            }
        }
    }

    fn read_pyproject(&mut self, text: &str) {
        let Ok(manifest) = text.parse::<Table>() else {
            return;
        };
        let listed = manifest
            .get("project")
            .and_then(|it| it.get("dependencies")?.as_array());
        for requirement in listed.into_iter().flatten().filter_map(|it| it.as_str()) {
            self.add_requirement(requirement);
        }
        let poetry = manifest
            .get("tool")
            .and_then(|it| it.get("poetry")?.get("dependencies")?.as_table());
        for (name, version) in poetry
            .into_iter()
            .flatten()
            .filter(|(name, _)| *name != "python")
        {
            self.add(name, version_of(version));
        }
    }

    /// Reads the requirements of a `setup.cfg`: the indented lines below `install_requires =`.
    fn read_setup_cfg(&mut self, text: &str) {
        let mut inside = false;
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("install_requires") {
                inside = true;
                self.add_requirement(rest.trim_start().trim_start_matches('='));
            } else if inside && line.starts_with([' ', '\t']) {
                self.add_requirement(line);
            } else if !line.trim().is_empty() {
                inside = false;
            }
        }
    }

    /// Adds a requirement in the form of PEP 508, `name[extra]>=1; marker`.
    fn add_requirement(&mut self, line: &str) {
        let line = line.split(" #").next().unwrap_or_default();
        let line = line.split(';').next().unwrap_or_default().trim();
        if line.starts_with(['#', '-']) {
            return;
        }
        let end = line
            .find(|it: char| !(it.is_ascii_alphanumeric() || "._-".contains(it)))
            .unwrap_or(line.len());
        let (name, rest) = line.split_at(end);
        let rest = match rest
            .trim()
            .strip_prefix('[')
            .and_then(|it| it.split_once(']'))
        {
            Some((_, rest)) => rest,
            None => rest,
        };
        let version = rest.trim().trim_matches(['(', ')']);
        self.add(name, if version.is_empty() { "*" } else { version });
    }

    /// Reads a `go.mod`: lines `require NAME VERSION`, or a block of them. Indirect dependencies are not listed.
    fn read_go_mod(&mut self, text: &str) {
        let mut inside = false;
        for line in text.lines().map(str::trim) {
            let entry = match line.strip_prefix("require") {
                Some(rest) if rest.trim() == "(" => {
                    inside = true;
                    continue;
                }
                Some(rest) => rest,
                None if line == ")" => {
                    inside = false;
                    continue;
                }
                None if inside => line,
                None => continue,
            };
            let mut words = entry.split_ascii_whitespace();
            if let (Some(name), Some(version)) = (words.next(), words.next())
                && !entry.contains("// indirect")
            {
                self.add(name, version);
            }
        }
    }

    fn read_cargo(&mut self, text: &str) {
        let Ok(manifest) = text.parse::<Table>() else {
            return;
        };
        let own = manifest.get("dependencies");
        let workspace = manifest
            .get("workspace")
            .and_then(|it| it.get("dependencies"));
        // Members of a Cargo workspace may omit a version that the workspace specifies, so the workspace's dependencies are read
        // first.
        for table in [workspace, own].into_iter().flatten() {
            for (name, version) in table.as_table().into_iter().flatten() {
                self.add(name, version_of(version));
            }
        }
    }
}

/// The required version of a Cargo dependency: a text, or the version, git URL or path of a table; `*` if none is specified.
fn version_of(value: &toml::Value) -> &str {
    let version = value.as_str().or_else(|| value.get("version")?.as_str());
    let place = || value.get("git").or(value.get("path"))?.as_str();
    version.or_else(place).unwrap_or("*")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str, text: &str) -> Vec<(String, String)> {
        let mut found = Dependencies::default();
        found.read(path, text);
        found.into_map().into_iter().collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(a, b)| ((*a).into(), (*b).into()))
            .collect()
    }

    #[test]
    fn each_language_says_what_it_needs_in_its_own_file() {
        assert_eq!(
            read(
                "package.json",
                r#"{"dependencies":{"@octokit/rest":"^20.0.0"},"devDependencies":{"vitest":"1"}}"#
            ),
            pairs(&[("@octokit/rest", "^20.0.0")])
        );
        assert_eq!(
            read(
                "a/requirements.txt",
                "# list\n-r base.txt\nhttpx>=0.27,<1 # http\nmcp[cli]==1.2 ; python_version>'3'\nrequests\n"
            ),
            pairs(&[("httpx", ">=0.27,<1"), ("mcp", "==1.2"), ("requests", "*")])
        );
        assert_eq!(
            read(
                "pyproject.toml",
                "[project]\ndependencies=['fastmcp>=2']\n[tool.poetry.dependencies]\npython='^3'\nrich={version='^13'}"
            ),
            pairs(&[("fastmcp", ">=2"), ("rich", "^13")])
        );
        assert_eq!(
            read(
                "setup.cfg",
                "[options]\ninstall_requires =\n    httpx>=1\n    rich\npackages = find:\n"
            ),
            pairs(&[("httpx", ">=1"), ("rich", "*")])
        );
        assert_eq!(
            read(
                "go.mod",
                "module x\ngo 1.22\nrequire github.com/a/b v1.2.3\nrequire (\n\tgithub.com/c/d v0.1.0\n\tx.org/y v1 // indirect\n)\n"
            ),
            pairs(&[("github.com/a/b", "v1.2.3"), ("github.com/c/d", "v0.1.0")])
        );
        assert_eq!(
            read(
                "Cargo.toml",
                "[dependencies]\nrmcp={version='0.8',features=['server']}\nserde='1'\nown={path='../own'}"
            ),
            pairs(&[("own", "../own"), ("rmcp", "0.8"), ("serde", "1")])
        );
    }

    #[test]
    fn a_damaged_file_says_nothing() {
        for path in [
            "package.json",
            "pyproject.toml",
            "Cargo.toml",
            "go.mod",
            "setup.cfg",
        ] {
            assert!(read(path, "{\"a\": [").is_empty(), "{path}");
        }
    }
}
