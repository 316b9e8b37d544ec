//! Check of a folder's Python files for `tooldock check`: errors that would prevent a reload from serving them, by file and
//! line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tooldock_base::config::WorkersConfig;
use tooldock_base::redactor::Redactor;
use tooldock_base::regular_file;
use tooldock_base::secret::Secret;
use tooldock_process::child::variables::worker_variables;

use super::trial;
use crate::manifest::Variables;
use crate::scan::NamespaceSource;
use crate::servers::Finding;

/// Maximum size of a parsed file, in bytes; workers have the same limit.
const SOURCE_MAX: u64 = 10 * 1024 * 1024;
/// Maximum size of all parsed files together, in bytes.
const SOURCES_MAX: usize = 64 * 1024 * 1024;

/// Settings for the check of a folder's Python files.
#[derive(Debug)]
pub struct PythonCheck<'a> {
    /// Settings of workers. Used are `python`, the interpreter that parses, and `ready_timeout`, the time limit of an import.
    pub workers: &'a WorkersConfig,
    /// The data directory of a gateway, which may contain an environment of the namespace.
    pub data_dir: &'a Path,
    /// Name of the only file to check; `None` for all files of the folder.
    pub only: Option<&'a str>,
}

impl PythonCheck<'_> {
    /// Returns the errors in the Python files of a folder. All files are parsed. If the namespace has an environment, they are
    /// first imported, as a reload does.
    pub(super) fn findings(
        &self,
        source: &NamespaceSource,
        variables: &Variables,
        secrets: &BTreeMap<String, Secret>,
    ) -> Vec<Finding> {
        if source.failure.is_some() || !source.needs_python() {
            return Vec::new();
        }
        // The worker's loader would complain about a file that makes a server, so such a file is only parsed.
        let environment = self
            .environment(source)
            .filter(|_| source.program.is_none());
        let mut findings = match &environment {
            Some(environment) => self.imported(source, environment, variables, secrets),
            None => Vec::new(),
        };
        // All files are parsed in addition to the import, since a helper module may be imported by no tool. They are parsed
        // by the environment's version of Python.
        let own = environment.map(|it| it.join("bin/python").display().to_string());
        let python = own.as_deref().unwrap_or(&self.workers.python);
        let parsed = parsed(source, python).into_iter();
        let told = |it: &Finding| findings.iter().any(|known| file_of(known) == file_of(it));
        let news: Vec<_> = parsed.filter(|it| !told(it)).collect();
        findings.extend(news);
        if let Some(only) = self.only {
            let place = source.dir.join(only).display().to_string();
            findings.retain(|it| file_of(it) == place);
        }
        findings
    }

    /// The environment that a gateway created for the namespace; `None` if the folder is not the one that the gateway serves.
    fn environment(&self, source: &NamespaceSource) -> Option<PathBuf> {
        let name = source.name.as_str();
        let served = self.data_dir.join("tools").join(name).canonicalize().ok()?;
        let environment = self.data_dir.join("venvs").join(name);
        let has_python = environment.join("bin/python").exists();
        (has_python && served == source.dir.canonicalize().ok()?).then_some(environment)
    }

    fn imported(
        &self,
        source: &NamespaceSource,
        environment: &Path,
        variables: &Variables,
        secrets: &BTreeMap<String, Secret>,
    ) -> Vec<Finding> {
        let redactor = Redactor::new(secrets.values().chain(&variables.hidden));
        let shown = |text: String| {
            let hidden = redactor.hide(text.into_bytes(), false);
            String::from_utf8_lossy(&hidden).into_owned()
        };
        let (all, _) = worker_variables(Some(environment), &variables.values, secrets.clone());
        let limit = self.workers.ready_timeout.max(Duration::from_secs(1));
        let imported = trial::import(source, environment, all, limit);
        match imported.and_then(trial::ImportReport::issues) {
            Ok(issues) => {
                let issues = issues.into_iter();
                let found = issues.map(|issue| {
                    let (file, line) = place_in(&issue.message);
                    let file = file.unwrap_or(&issue.subject);
                    error_at(&source.dir, file, line, shown(issue.message.clone()))
                });
                found.collect()
            }
            Err(reason) => vec![Finding {
                place: source.dir.display().to_string(),
                message: shown(format!("its files cannot be imported: {reason}")),
                is_error: true,
            }],
        }
    }
}

/// Returns the syntax errors in the folder's Python files.
fn parsed(source: &NamespaceSource, python: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut files = Vec::new();
    let mut bytes = 0;
    for name in names(&source.dir) {
        if bytes > SOURCES_MAX {
            let message =
                format!("is not read: the files before it have more than {SOURCES_MAX} bytes");
            findings.push(error_at(&source.dir, &name, None, message));
            break;
        }
        match regular_file::read(&source.dir.join(&name), SOURCE_MAX).map(String::from_utf8) {
            Ok(Ok(text)) => {
                bytes += text.len();
                files.push((name, text));
            }
            Ok(Err(_)) => findings.push(error_at(
                &source.dir,
                &name,
                None,
                "is not UTF-8".to_owned(),
            )),
            Err(error) => {
                findings.push(error_at(&source.dir, &name, None, error.to_string()));
            }
        }
    }
    if files.is_empty() {
        return findings;
    }
    let inspected = match trial::parse(python, &files) {
        Ok(inspected) => inspected,
        Err(reason) => {
            findings.push(Finding {
                place: source.dir.display().to_string(),
                message: format!("its Python files were not read: {reason}"),
                is_error: false,
            });
            return findings;
        }
    };
    for file in inspected {
        let is_helper = file.filename.starts_with('_');
        let issues = file.issues().into_iter().filter(|_| !is_helper);
        for said in file.error.iter().cloned().chain(issues) {
            let (line, what) = leading_line(&said);
            let what = match file.error.is_some() {
                true => format!("SyntaxError: {what}"),
                false => what.to_owned(),
            };
            findings.push(error_at(&source.dir, &file.filename, line, what));
        }
    }
    findings
}

/// The names of the Python files of a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names
        .filter(|name| name.ends_with(".py") && !name.starts_with('.'))
        .collect();
    names.sort_unstable();
    names
}

fn error_at(folder: &Path, file: &str, line: Option<u32>, message: String) -> Finding {
    let file = folder.join(file).display().to_string();
    Finding {
        place: match line {
            Some(line) => format!("{file}:{line}"),
            None => file,
        },
        message,
        is_error: true,
    }
}

/// The path of the file in a finding, without the line number.
fn file_of(finding: &Finding) -> &str {
    match finding.place.rsplit_once(':') {
        Some((file, line)) if line.parse::<u32>().is_ok() => file,
        _ => &finding.place,
    }
}

/// Returns the file and the line at the end of a worker's message: `(helper.py line 3)`, `(line 3)`.
fn place_in(message: &str) -> (Option<&str>, Option<u32>) {
    let place = || {
        let (_, place) = message.strip_suffix(')')?.rsplit_once('(')?;
        let (file, line) = place.rsplit_once("line ")?;
        Some((file.trim(), line.parse().ok()?))
    };
    match place() {
        Some((file, line)) => (Some(file).filter(|file| !file.is_empty()), Some(line)),
        None => (None, None),
    }
}

/// Splits a message such as `line 3: …` into the line number and the remaining text.
fn leading_line(message: &str) -> (Option<u32>, &str) {
    let rest = message.strip_prefix("line ");
    let parts = rest.and_then(|rest| rest.split_once(": "));
    match parts.and_then(|(line, what)| Some((line.parse().ok()?, what))) {
        Some((line, what)) => (Some(line), what),
        None => (None, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_their_file_and_line_at_the_beginning_or_the_end() {
        assert_eq!(leading_line("line 3: bad"), (Some(3), "bad"));
        assert_eq!(leading_line("too deep"), (None, "too deep"));
        let at = |file, line| (Some(file), Some(line));
        assert_eq!(place_in("no (x) y (a.py line 3)"), at("a.py", 3));
        assert_eq!(place_in("add: bad (line 12)"), (None, Some(12)));
        assert_eq!(place_in("cannot be read"), (None, None));
    }
}
