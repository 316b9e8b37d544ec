//! Resolution of the values in a manifest's `env`: every `${NAME}` is replaced by its value.

use std::collections::BTreeMap;

use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::secret::Secret;
use tooldock_base::template::{NoValue, Sources};
use tooldock_credentials::secrets::NamespaceSecrets;

use super::{MANIFEST_FILE, Manifest};

/// The code of an [`Issue`] about a variable without a value.
const MISSING: &str = "missing_variable";
/// The code of an [`Issue`] about a variable whose value is invalid.
pub(crate) const INVALID_VARIABLE: &str = "invalid_variable";

/// The code of an [`Issue`] about a declared secret without a value.
pub(crate) const MISSING_SECRET: &str = "missing_secret";

/// The variables of a manifest's `env`, with every `${NAME}` replaced.
#[derive(Debug, Default)]
pub(crate) struct Variables {
    /// The variables that have a value, by name.
    pub(crate) values: BTreeMap<String, Secret>,
    /// Values that are masked in the log.
    pub(crate) hidden: Vec<Secret>,
    /// Issues about variables without a value, with the reasons. The namespace runs without these variables.
    pub(crate) issues: Vec<Issue>,
}

impl Manifest {
    /// Resolves the environment variables of the namespace's processes.
    pub(crate) fn variables(&self, sources: &Sources<'_>) -> Variables {
        let mut variables = Variables::default();
        for (name, template) in &self.env {
            match template.fill(sources) {
                Ok(value) if value.expose().contains('\0') => {
                    let message = "its value has a NUL, which no variable may have".to_owned();
                    variables
                        .issues
                        .push(issue(INVALID_VARIABLE, name, message));
                }
                Ok(value) => {
                    // A text without a reference is a plain setting and not a secret, so it is not masked.
                    if !template.names().is_empty() {
                        variables.hidden.extend(template.hidden(sources));
                    }
                    variables.values.insert(name.clone(), value);
                }
                Err(reason) => {
                    let code = match reason {
                        NoValue::Missing(_) | NoValue::NotAllowed(_) => MISSING,
                        NoValue::Own(_) | NoValue::Malformed => INVALID_VARIABLE,
                    };
                    let message = format!("{reason}; {name} is left out");
                    variables.issues.push(issue(code, name, message));
                }
            }
        }
        variables
    }
}

impl Manifest {
    /// Returns an issue for each declared secret without a value. The namespace is served nevertheless.
    pub(crate) fn missing_secrets(
        &self,
        namespace: &NamespaceName,
        secrets: &NamespaceSecrets,
        variables: &Variables,
    ) -> Vec<Issue> {
        let has_value =
            |name: &str| secrets.values.contains_key(name) || variables.values.contains_key(name);
        let missing = self.secrets.iter().filter(|name| !has_value(name));
        let issues = missing.map(|name| {
            let is_prepared = secrets.placeholders.contains(name);
            let prepared = if is_prepared { "is prepared and " } else { "" };
            Issue {
                code: MISSING_SECRET,
                subject: format!("{MANIFEST_FILE}: secrets.{name}"),
                message: format!(
                    "the secret {name} {prepared}has no value; set it with: tooldock secrets set --key {name} --scope {namespace}"
                ),
            }
        });
        issues.collect()
    }
}

fn issue(code: &'static str, name: &str, message: String) -> Issue {
    Issue {
        code,
        subject: format!("{MANIFEST_FILE}: env.{name}"),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(manifest: &str) -> Variables {
        let manifest = Manifest::parse(manifest.as_bytes()).expect("valid");
        let secrets = BTreeMap::from([("KEY".to_owned(), Secret::new("stored"))]);
        let environment = |name: &str| (name == "REGION").then(|| "eu-central".to_owned());
        manifest.variables(&Sources {
            secrets: &secrets,
            environment: &environment,
            allowed: Some(&["REGION".to_owned(), "UNSET".to_owned()]),
        })
    }

    #[test]
    fn references_have_values_that_stay_out_of_the_log_and_settings_are_as_they_are_written() {
        let found = variables("env: { A: 'https://api.example', B: 'x-${KEY}', C: '${REGION}' }");
        let values: Vec<_> = found.values.values().map(Secret::expose).collect();
        assert_eq!(values, ["https://api.example", "x-stored", "eu-central"]);
        let hidden: Vec<_> = found.hidden.iter().map(Secret::expose).collect();
        assert_eq!(hidden, ["stored", "x-stored", "eu-central", "eu-central"]);
        assert!(found.issues.is_empty());
    }

    #[test]
    fn a_variable_without_a_value_is_left_out_and_named() {
        let found =
            variables("env: { A: '${UNSET}', B: '${OTHER}', C: '${BEARER_TOKEN}', D: '${' }");
        assert!(found.values.is_empty());
        let issues: Vec<_> = found
            .issues
            .iter()
            .map(|it| (it.code, &*it.subject))
            .collect();
        assert_eq!(
            issues,
            [
                (MISSING, "tooldock.yaml: env.A"),
                (MISSING, "tooldock.yaml: env.B"),
                ("invalid_variable", "tooldock.yaml: env.C"),
                ("invalid_variable", "tooldock.yaml: env.D"),
            ]
        );
        assert!(found.issues[0].message.contains("${UNSET} is set neither"));
        assert!(found.issues[1].message.contains("namespaces.env_allowed"));
    }
}
