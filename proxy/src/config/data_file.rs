//! Merges `$DATA/config.yaml` over the operator's configuration file, and chooses which of its content is in force.
//!
//! Tool code can write `$DATA/config.yaml`, so that a fault in it must not invalidate the operator's settings. The following
//! contents are tried, in this order:
//!
//! ```text
//! present content ─▶ last usable content ─▶ the same without entries that do not fit ─▶ operator's file alone
//!                    (in a running process) (at a start: the present content)
//! ```
//!
//! The operator's file alone comes last, since `$DATA/config.yaml` may have taken rights away. Such rights must not return
//! because the file is damaged, or because one of its entries no longer fits the operator's file.

use std::path::Path;

use tooldock_base::yaml::Value;
use tooldock_workers::narrow::{fit, narrow, narrow_aggregates};

use super::document::{self, DataFileTree};
use super::environment::blame;
use super::{
    Config, ConfigError, Effective, LoadOptions, Purpose, Role, Settings, WatcherConfig, live,
    unsupported, validate, web,
};

/// Contents of `$DATA/config.yaml` that a loaded configuration keeps: the last usable content, and the reason why the present
/// content is not in force.
#[derive(Debug, Clone, Default)]
pub(super) struct DataFile {
    /// The last usable content of `$DATA/config.yaml`. It is in force, unless it no longer fits the operator's file.
    usable: Option<DataFileTree>,
    /// The reason why the present content of `$DATA/config.yaml` is not in force; `None` if it is.
    pub(super) problem: Option<String>,
}

impl DataFile {
    /// Returns the keys that the last usable content of `$DATA/config.yaml` sets.
    pub(super) fn keys(&self) -> Vec<String> {
        self.usable
            .as_ref()
            .map_or_else(Vec::new, DataFileTree::keys)
    }
}

/// The entries of `$DATA/config.yaml` that are merged over the operator's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AppliedEntries {
    /// All entries; the configuration is refused if one of them does not fit.
    All,
    /// Only the entries that fit the operator's file.
    Fitting,
}

/// The sources of a configuration, before they are merged.
pub(super) struct Layers<'a> {
    pub(super) options: &'a LoadOptions,
    /// The configuration of the operator's file, with defaults for keys that it does not set.
    pub(super) operator: Config,
    /// The YAML tree of the operator's file, which contains only the keys that it sets.
    pub(super) tree: Value,
    /// The configuration in force, for a reload; `None` at a start.
    pub(super) before: Option<&'a Effective>,
}

impl Layers<'_> {
    /// Merges and checks the settings, with the first usable content of `$DATA/config.yaml`.
    ///
    /// # Errors
    ///
    /// A fault in the operator's file or in an environment variable. For `tooldock check`, faults in `$DATA/config.yaml` are
    /// errors, too.
    pub(super) fn settle(&self, data_dir: &Path) -> Result<(Settings, DataFile), ConfigError> {
        let file = document::data_file(data_dir);
        let read = document::read_data_file(data_dir);
        let content = |over: &DataFileTree, entries| self.settings(&file, Some((over, entries)));
        let all = read
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|over| match over {
                Some(over) => content(over, AppliedEntries::All),
                None => self.settings(&file, None),
            });
        let read = read.ok().flatten();
        let error = match all {
            Ok(settings) => {
                let data_file = DataFile {
                    usable: read,
                    problem: None,
                };
                return Ok((settings, data_file));
            }
            Err(error) => error,
        };
        // If the operator's file is faulty without `$DATA/config.yaml`, its own fault is returned.
        let alone = self.settings(&file, None)?;
        let error = ConfigError::of_file(&file, error);
        if self.options.purpose == Purpose::Check {
            return Err(error);
        }
        let last = self.before.and_then(|it| it.data_file.usable.clone());
        let fitted = last.as_ref().or(read.as_ref());
        let in_last = last
            .as_ref()
            .and_then(|it| content(it, AppliedEntries::All).ok());
        let in_fitted = || fitted.and_then(|it| content(it, AppliedEntries::Fitting).ok());
        let (settings, instead) = if let Some(settings) = in_last {
            (
                settings,
                "the content of the file that was used last stays in force",
            )
        } else if let Some(settings) = in_fitted() {
            (
                settings,
                "the rest of the file is in force without the entries that cannot be used",
            )
        } else {
            (
                alone,
                "the operator's configuration is in force without this file and without the file's restrictions",
            )
        };
        let data_file = DataFile {
            usable: last,
            problem: Some(format!(
                "{error}; {instead}. Repair or remove the file and send SIGHUP"
            )),
        };
        Ok((settings, data_file))
    }

    fn settings(
        &self,
        file: &Path,
        over: Option<(&DataFileTree, AppliedEntries)>,
    ) -> Result<Settings, ConfigError> {
        let options = self.options;
        let mut config = self.operator.clone();
        let mut in_vain = Vec::new();
        if let Some((over, entries)) = over {
            let operator = &self.operator;
            config = document::merged(file, &self.tree, over)?;
            let ignored = narrow(
                &mut config.namespaces,
                &mut config.upstreams,
                &operator.namespaces,
                (&operator.upstreams, &operator.toolman),
            );
            let kept = narrow_aggregates(&mut config.toolman, &operator.toolman);
            let unfit = match entries {
                AppliedEntries::All => Vec::new(),
                AppliedEntries::Fitting => fit(
                    &config.namespaces,
                    &mut config.upstreams,
                    &operator.namespaces,
                    &operator.upstreams,
                ),
            };
            let ignored = ignored.iter().chain(&kept).chain(&unfit);
            in_vain.extend(ignored.map(|it| format!("{}: {it}", file.display())));
        }
        if options.dev && options.role == Role::All && self.tree.get("listeners").is_none() {
            config.listeners.push(web::trial_listener(self.before));
        }
        let debounce = self.tree.get("watcher").and_then(|it| it.get("debounce"));
        if options.dev && debounce.is_none() {
            config.watcher.debounce = WatcherConfig::DEV_DEBOUNCE;
        }
        let mut settings = Settings::new(config, options.role);
        settings.warnings = in_vain;
        options.environment.apply(&mut settings)?;
        let check = |config: &Config| validate::check(config, options.role, options.dev);
        unsupported::refuse(&settings.config)
            .and_then(|()| check(&settings.config))
            .and_then(|()| match self.before {
                // Keys that are read only at a start keep their present values, so that the new values of all other keys are
                // checked with these.
                Some(before) => {
                    let mut running = settings.config.clone();
                    live::keep_unreloadable(&before.config, &mut running);
                    check(&running)
                }
                None => Ok(()),
            })
            .map_err(|error| blame(error, &settings.said_by))?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tempfile::TempDir;

    use crate::config::tests_support::{checked, commanded, served, write};
    use crate::config::{Effective, Role};

    const DIGEST: &str = "abababababababababababababababababababababababababababababababab";

    struct Files {
        dir: TempDir,
        operator: PathBuf,
        second: PathBuf,
    }

    impl Files {
        fn new(operator: &str) -> Self {
            let (dir, operator) = write(operator);
            let data = dir.path().join("data");
            std::fs::create_dir(&data).expect("create");
            let second = data.join("config.yaml");
            Self {
                dir,
                operator,
                second,
            }
        }

        fn start(&self) -> Effective {
            served(&self.operator, Role::All, &[("BEARER_TOKEN", "b")]).expect("valid")
        }

        /// Puts each kind of file that cannot be used in the place of the second one, and calls `test` with it.
        fn break_it(&self, test: impl Fn(&str)) {
            let elsewhere = self.dir.path().join("elsewhere");
            std::fs::write(&elsewhere, "namespaces: {}").expect("write");
            let write = |text: &str| std::fs::write(&self.second, text).expect("write");
            let kinds: [(&str, &dyn Fn()); 9] = [
                ("garbage", &|| write("]{ not yaml")),
                ("bytes", &|| {
                    std::fs::write(&self.second, [0xff, 0, 0xfe]).expect("write");
                }),
                ("an unknown key", &|| write("admission: { tokens: [] }")),
                ("a wrong value", &|| {
                    write("namespaces: { defaults: { timeout: soon } }");
                }),
                ("a value out of bounds", &|| {
                    write("namespaces: { defaults: { max_concurrency: 0 } }");
                }),
                ("too much", &|| write(&"#".repeat(2 * 1024 * 1024))),
                ("a directory", &|| {
                    std::fs::create_dir(&self.second).expect("create");
                }),
                ("a link", &|| {
                    symlink(&elsewhere, &self.second).expect("link");
                }),
                ("a pipe", &|| {
                    let mode = Mode::from_raw_mode(0o600);
                    mknodat(CWD, &self.second, FileType::Fifo, mode, 0).expect("pipe");
                }),
            ];
            for (kind, make) in kinds {
                let _ = std::fs::remove_file(&self.second);
                make();
                test(kind);
                let _ = std::fs::remove_dir(&self.second);
                let _ = std::fs::remove_file(&self.second);
            }
        }
    }

    fn tokens(names: &[&str]) -> String {
        let token = |name| format!("{{ name: {name}, sha256: {DIGEST}, namespaces: ['*'] }}");
        let tokens: Vec<_> = names.iter().map(token).collect();
        format!("admission: {{ tokens: [{}] }}\n", tokens.join(", "))
    }

    #[test]
    fn a_broken_second_file_refuses_no_start_and_no_command_and_check_names_it() {
        let files = Files::new(&tokens(&["ci"]));
        files.break_it(|kind| {
            let started = files.start();
            let problem = started.data_file_problem().expect(kind);
            let begins = format!("{}: ", files.second.display());
            assert!(problem.starts_with(&begins), "{kind}: {problem}");
            assert!(
                problem.contains("without the file's restrictions"),
                "{problem}"
            );
            assert_eq!(started.config.admission.tokens.len(), 1, "{kind}");
            let command = commanded(&files.operator).expect(kind);
            assert!(command.data_file_problem().is_some(), "{kind}");
            let error = checked(&files.operator, &[]).expect_err(kind).to_string();
            assert!(error.starts_with(&begins), "{kind}: {error}");
        });
        std::fs::write(&files.second, "namespaces: {}").expect("write");
        assert_eq!(files.start().data_file_problem(), None);
    }

    #[test]
    fn a_reload_beside_a_broken_second_file_takes_the_operators_file_and_keeps_restrictions() {
        let files = Files::new(&tokens(&["ci"]));
        let restricts = "namespaces: { overrides: { vault: { principals: [admin] } } }\n\
             upstreams: { stdio: { own: { command: x } } }";
        std::fs::write(&files.second, restricts).expect("write");
        std::fs::write(
            &files.operator,
            tokens(&["ci"]) + "upstreams: { stdio: { mine: { command: y } } }",
        )
        .expect("write");
        let before = files.start();
        assert_eq!(before.data_file_problem(), None);
        std::fs::write(&files.operator, tokens(&[])).expect("write");
        files.break_it(|kind| {
            // Twice: the kept content is kept for the next reload, too.
            let next = before.reload().expect(kind).reload().expect(kind);
            assert!(next.config.admission.tokens.is_empty(), "{kind}");
            let servers = next.config.upstreams.stdio.keys().map(|it| it.as_str());
            assert_eq!(servers.collect::<Vec<_>>(), ["own"], "{kind}");
            let limits = &next.config.namespaces.overrides["vault"];
            assert_eq!(limits.principals, Some(vec!["admin".to_owned()]), "{kind}");
            let problem = next.data_file_problem().expect(kind);
            assert!(
                problem.contains("was used last stays in force"),
                "{kind}: {problem}"
            );
        });
        // A file that is gone restricts nothing, as before.
        let without = before.reload().expect("valid");
        assert_eq!(without.data_file_problem(), None);
        assert!(without.config.namespaces.overrides.is_empty());
    }

    #[test]
    fn a_mistake_of_the_operator_is_told_as_such_beside_a_broken_second_file() {
        let files = Files::new("");
        std::fs::write(&files.second, "]").expect("write");
        let before = files.start();
        std::fs::write(
            &files.operator,
            "namespaces: { defaults: { max_concurrency: 0 } }",
        )
        .expect("write");
        let error = before.reload().expect_err("refused").to_string();
        assert!(
            error.starts_with("namespaces.defaults.max_concurrency: "),
            "{error}"
        );
    }

    #[test]
    fn entries_that_were_about_a_server_of_the_operator_do_not_keep_it() {
        let files = Files::new("upstreams: { stdio: { mine: { command: x } } }");
        let about = "upstreams: { stdio: { mine: { limits: { tools_deny: ['*'] } } } }\n\
             namespaces: { overrides: { far: { tools_deny: [drop] }, vault: { principals: [] } } }";
        std::fs::write(&files.second, about).expect("write");
        let before = files.start();
        std::fs::write(
            &files.operator,
            "upstreams: { remote: { far: { backends: ['https://a.example/mcp'], mode: pass_through } } }",
        )
        .expect("write");
        for next in [before.reload().expect("valid"), files.start()] {
            let problem = next.data_file_problem().expect("told");
            assert!(problem.contains("the rest of the file"), "{problem}");
            assert!(next.config.upstreams.stdio.is_empty());
            assert!(!next.config.upstreams.remote["far"].enabled);
            let vault = &next.config.namespaces.overrides["vault"];
            assert_eq!(vault.principals, Some(Vec::new()));
            assert_eq!(next.warnings.len(), 2, "{:?}", next.warnings);
        }
    }
}
