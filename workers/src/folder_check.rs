//! Namespace folders for `tooldock check`: the problems that a scan finds and, if a single folder is checked, those that a
//! worker finds when it loads the folder.

mod author_tests;
mod python;
mod trial;

use std::path::Path;

use tooldock_base::config::NamespacesConfig;
use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::template::Sources;
use tooldock_credentials::secrets::{NamespaceSecrets, Secrets};

use crate::manifest::{INVALID_VARIABLE, Variables};
use crate::scan::{NamespaceSource, ignored, look_at, scan};
use crate::servers::Finding;

pub use author_tests::command as test_command;
pub use python::PythonCheck;

/// Checks every folder under `tools/`. If the directory does not exist, there are no namespaces. `secrets` are the secrets
/// that the gateway would use.
pub fn check(tools_dir: &Path, namespaces: &NamespacesConfig, secrets: &Secrets) -> Vec<Finding> {
    match scan(tools_dir) {
        Ok(sources) => {
            let found = sources
                .iter()
                .flat_map(|source| findings(source, namespaces, secrets, None));
            let ignored = ignored::entries(tools_dir).into_iter();
            let ignored = ignored.map(|(name, issue)| Finding {
                place: tools_dir.join(name).display().to_string(),
                message: issue.message,
                is_error: false,
            });
            found.chain(ignored).collect()
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => vec![error_at(tools_dir, error.to_string())],
    }
}

/// Returns warnings about namespaces under `tools/` that are served incompletely or not at all, because a variable or a secret
/// has no value, or a file cannot be read.
pub fn lacking(tools_dir: &Path, namespaces: &NamespacesConfig, secrets: &Secrets) -> Vec<Finding> {
    let sources = scan(tools_dir).unwrap_or_default();
    let found = sources.iter().flat_map(|source| {
        let secrets = source.secrets(namespaces, secrets);
        let (_, issues) = variables(source, namespaces, &secrets);
        let lacking = issues.into_iter().map(|issue| Finding {
            place: source.dir.join(&issue.subject).display().to_string(),
            message: issue.message,
            is_error: false,
        });
        let folder = source.dir.display();
        let unread = source.failure.iter().map(|failure| Finding {
            place: folder.to_string(),
            message: format!(
                "{}; mend it and run `tooldock check {folder}`: until then the namespace {} is not loaded",
                failure.message, source.name
            ),
            is_error: false,
        });
        let unread: Vec<_> = unread.collect();
        lacking.chain(unread).collect::<Vec<_>>()
    });
    found.collect()
}

/// Returns the variables of a namespace, and issues for variables and declared secrets that have no value.
fn variables(
    source: &NamespaceSource,
    namespaces: &NamespacesConfig,
    secrets: &NamespaceSecrets,
) -> (Variables, Vec<Issue>) {
    let variables = source.manifest.variables(&Sources {
        secrets: &secrets.values,
        environment: &|name| std::env::var(name).ok(),
        allowed: Some(&namespaces.env_allowed),
    });
    let missing = source
        .manifest
        .missing_secrets(&source.name, secrets, &variables);
    let issues = variables.issues.iter().cloned().chain(missing).collect();
    (variables, issues)
}

/// Checks one namespace folder, including its Python files.
pub fn check_folder(
    folder: &Path,
    namespaces: &NamespacesConfig,
    secrets: &Secrets,
    python: &PythonCheck<'_>,
) -> Vec<Finding> {
    let real = match folder.canonicalize() {
        Ok(real) => real,
        Err(error) => return vec![error_at(folder, error.to_string())],
    };
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let name = match name.parse::<NamespaceName>() {
        Ok(name) => name,
        Err(error) => return vec![error_at(&real, format!("not a namespace name: {error}"))],
    };
    let source = look_at(name, real.clone(), &real, &real);
    findings(&source, namespaces, secrets, Some(python))
}

fn findings(
    source: &NamespaceSource,
    namespaces: &NamespacesConfig,
    secrets: &Secrets,
    python: Option<&PythonCheck<'_>>,
) -> Vec<Finding> {
    let (.., clamped) = source.manifest.effective_limits(&source.name, namespaces);
    let failure = source.failure.iter();
    let failure = failure.map(|failure| error_at(&source.dir, failure.message.clone()));
    let secrets = source.secrets(namespaces, secrets);
    let (variables, lacking) = variables(source, namespaces, &secrets);
    let issues = source.issues.iter().chain(&clamped);
    let issues = issues.chain(&lacking).map(|issue| Finding {
        place: source.dir.join(&issue.subject).display().to_string(),
        message: issue.message.clone(),
        // A missing variable may be set where the gateway runs, so it is only a warning; an invalid variable is always an error.
        is_error: issue.code == INVALID_VARIABLE,
    });
    let python = python.map(|python| python.findings(source, &variables, &secrets.values));
    let python = python.into_iter().flatten();
    failure.chain(issues).chain(python).collect()
}

fn error_at(path: &Path, message: String) -> Finding {
    Finding {
        place: path.display().to_string(),
        message,
        is_error: true,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tooldock_base::config::WorkersConfig;
    use tooldock_base::secret::Secret;

    use super::*;

    #[test]
    fn a_wrong_manifest_is_an_error_and_a_limit_above_its_ceiling_a_warning() {
        let data = tempfile::tempdir().unwrap();
        for (name, manifest) in [
            ("wrong", "timeout: soon"),
            ("slow", "timeout: 2days\nstrange: 1"),
            ("good", "timeout: 10s\nenv: { A: 'x', B: '${KEY}' }"),
            ("needs", "secrets: [KEY, ABSENT]"),
            (
                "gaps",
                "env: { A: '${BEARER_TOKEN}', B: '${KEY}', C: '${NOT_SET_ANYWHERE}' }",
            ),
        ] {
            let folder = data.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("tooldock.yaml"), manifest).unwrap();
            fs::write(folder.join("tool.py"), "").unwrap();
        }
        let config = NamespacesConfig::default();
        let secrets = Secrets::global([("KEY", Secret::new("value"))]);
        let all = check(data.path(), &config, &secrets);
        assert_eq!(all.len(), 6, "{all:?}");
        let lacking = lacking(data.path(), &config, &secrets);
        let mut places: Vec<_> = lacking.iter().map(|it| &*it.place).collect();
        places.sort_unstable();
        assert!(
            matches!(&places[..], [own, missing, secret, wrong] if own.ends_with("env.A")
                && missing.ends_with("env.C") && secret.ends_with("secrets.ABSENT") && wrong.ends_with("/wrong")),
            "{places:?}"
        );
        let unread = lacking.iter().find(|it| it.place.ends_with("/wrong"));
        let unread = &unread.expect("a warning").message;
        assert!(
            unread.starts_with("tooldock.yaml: timeout: ") && unread.contains("mend it"),
            "{unread}"
        );
        assert!(lacking.iter().all(|it| !it.is_error), "{lacking:?}");
        let workers = WorkersConfig::default();
        let python = PythonCheck {
            workers: &workers,
            data_dir: data.path(),
            only: None,
        };
        let of = |name: &str| check_folder(&data.path().join(name), &config, &secrets, &python);
        assert!(of("good").is_empty());
        let wrong = of("wrong");
        assert!(
            wrong[0].is_error && wrong[0].message.contains("timeout"),
            "{wrong:?}"
        );
        let slow = of("slow");
        assert!(
            slow.len() == 2 && slow.iter().all(|it| !it.is_error),
            "{slow:?}"
        );
        let gaps = of("gaps");
        let gaps: Vec<_> = gaps.iter().map(|it| (&*it.place, it.is_error)).collect();
        let [(own, true), (missing, false)] = gaps[..] else {
            panic!("{gaps:?}")
        };
        assert!(own.ends_with("tooldock.yaml: env.A"), "{own}");
        assert!(missing.ends_with("tooldock.yaml: env.C"), "{missing}");
        let missing = of("needs");
        let [missing] = &missing[..] else {
            panic!("{missing:?}")
        };
        assert!(
            !missing.is_error && missing.message.contains("--key ABSENT"),
            "{missing:?}"
        );
        fs::write(data.path().join("stray.py"), "").unwrap();
        fs::create_dir(data.path().join("Bad.Name")).unwrap();
        fs::create_dir(data.path().join("empty")).unwrap();
        let all = check(data.path(), &config, &secrets);
        for place in ["stray.py", "Bad.Name", "empty/."] {
            let found = all.iter().find(|it| it.place.ends_with(place));
            assert!(found.is_some_and(|it| !it.is_error), "{place}: {all:?}");
        }
        assert!(check(&data.path().join("none"), &config, &secrets).is_empty());
        assert!(of("none")[0].is_error);
    }
}
