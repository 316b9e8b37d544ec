//! `TOOLDOCK_DEBUG`: the namespace whose worker waits for a debugger. Only `serve --dev` has it, since whoever reaches the
//! debugger's port runs code as the gateway's user.

use std::path::Path;

use super::{ConfigError, LoadOptions, Purpose, Settings};

/// Name of the variable.
const VARIABLE: &str = "TOOLDOCK_DEBUG";

/// Checks that the gateway runs with `--dev` if a namespace is to be debugged, and that the namespace has a folder. Commands beside
/// a gateway debug nothing: the variable may be set in their shell.
///
/// # Errors
///
/// If the variable is set for a gateway without `--dev`.
pub(super) fn settle(
    settings: &mut Settings,
    options: &LoadOptions,
    data_dir: &Path,
    warnings: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let debugged = &mut settings.config.namespaces.debugged;
    match (debugged.as_ref(), options.dev, options.purpose) {
        (None, _, _) => {}
        (Some(_), false, Purpose::Serve) => {
            let reason = "is for `tooldock serve --dev`: whoever reaches the debugger's port runs code as the gateway's \
                          user";
            return Err(ConfigError::variable(VARIABLE.to_owned(), reason));
        }
        (Some(_), false, _) => *debugged = None,
        (Some(name), true, _) => {
            let tools = data_dir.join("tools");
            if !tools.join(name.as_str()).is_dir() {
                warnings.push(format!(
                    "{VARIABLE} names {name}, which is no folder in {}",
                    tools.display()
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::Role;
    use crate::config::tests_support::{checked, served, served_dev, write};

    #[test]
    fn a_debugger_is_for_dev_mode_and_for_a_namespace_by_its_name() {
        let (dir, file) = write("");
        let variables = |value| [("TOOLDOCK_DEBUG", value), ("BEARER_TOKEN", "b")];
        let effective = served_dev(&file, &variables("my-tools")).expect("valid");
        let debugged = effective.config.namespaces.debugged.as_ref();
        assert_eq!(debugged.expect("set").as_str(), "my-tools");
        let warned = |warnings: &[String]| warnings.iter().any(|it| it.contains("TOOLDOCK_DEBUG"));
        assert!(warned(&effective.warnings), "{:?}", effective.warnings);
        std::fs::create_dir_all(dir.path().join("data/tools/my-tools")).expect("made");
        let effective = served_dev(&file, &variables("my-tools")).expect("valid");
        assert!(!warned(&effective.warnings), "{:?}", effective.warnings);

        for value in ["*", "a,b", "a b", "my-tools:5678", "0.0.0.0"] {
            let error = served_dev(&file, &variables(value))
                .expect_err(value)
                .to_string();
            assert!(error.starts_with("TOOLDOCK_DEBUG: "), "{error}");
        }
        let error = served(&file, Role::All, &variables("my-tools")).expect_err("no --dev");
        assert!(error.to_string().contains("serve --dev"), "{error}");
        let effective = checked(&file, &variables("my-tools")).expect("valid");
        assert_eq!(effective.config.namespaces.debugged, None);
    }
}
