//! The configuration for display in the web UI: every key with its value, credentials masked, and the source of the value; and
//! the keys that a reload would change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tooldock_base::mask;
use tooldock_base::yaml;
use tooldock_credentials::keys::KeyTables;
use tooldock_upstream::{ConfigurationChange, ConfigurationView, ConfiguredValue};

use crate::check;
use crate::config::{Config, Effective};
use crate::rules;

/// The configuration in force. Each successful reload replaces it.
pub(crate) struct ConfigurationInForce {
    current: ArcSwap<Effective>,
    keys: KeyTables,
}

impl ConfigurationInForce {
    /// Creates the view with the configuration of the start. `keys` are the API keys, which are needed to check the rules of a
    /// reload.
    pub(crate) fn new(current: Effective, keys: KeyTables) -> Self {
        Self {
            current: ArcSwap::from_pointee(current),
            keys,
        }
    }

    /// Replaces the configuration in force after a successful reload.
    pub(crate) fn set(&self, next: Effective) {
        self.current.store(Arc::new(next));
    }
}

impl fmt::Debug for ConfigurationInForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigurationInForce")
            .finish_non_exhaustive()
    }
}

impl ConfigurationView for ConfigurationInForce {
    fn in_force(&self) -> Result<Vec<ConfiguredValue>, String> {
        let current = self.current.load();
        let values = values(&current.config)?.into_iter();
        let values = values.map(|(key, value)| ConfiguredValue {
            source: current.source_of(&key),
            key,
            value,
        });
        Ok(values.collect())
    }

    fn problem(&self) -> Option<String> {
        self.current.load().data_file_problem().map(str::to_owned)
    }

    fn after_reload(&self) -> Result<Vec<ConfigurationChange>, String> {
        let current = self.current.load();
        let (next, written) = current.preview().map_err(|error| error.to_string())?;
        rules::admission(&next, self.keys.clone())?;
        let now = values(&current.config)?;
        let (next, written) = (values(&next.config)?, values(&written)?);
        let keys = now.keys().chain(written.keys());
        let keys: BTreeSet<_> = keys.collect();
        let changed = keys
            .into_iter()
            .filter(|key| now.get(*key) != written.get(*key));
        let changes = changed.map(|key| ConfigurationChange {
            key: key.clone(),
            now: now.get(key).cloned(),
            then: written.get(key).cloned(),
            waits_for_start: next.get(key) != written.get(key),
        });
        Ok(changes.collect())
    }
}

/// Returns all keys of a configuration with their values, credentials masked.
fn values(config: &Config) -> Result<BTreeMap<String, serde_json::Value>, String> {
    let tree = check::masked_tree(config).map_err(|error| error.to_string())?;
    let mut values = BTreeMap::new();
    for (key, value) in crate::config::leaves(&tree) {
        values.insert(key, masked_json(value));
    }
    Ok(values)
}

/// Converts a value to JSON. Texts that look like credentials are masked, whatever their key.
fn masked_json(value: &yaml::Value) -> serde_json::Value {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => mask::text(&text).into(),
        Ok(serde_json::Value::Array(all)) => {
            let all = all.into_iter().map(|it| match it {
                serde_json::Value::String(text) => mask::text(&text).into(),
                other => other,
            });
            all.collect()
        }
        Ok(other) => other,
        Err(_) => mask::MASK.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Role;
    use crate::config::tests_support::{served, write};

    const CANARY: &str = "canary-7f3a";

    fn in_force(
        yaml: &str,
        variables: &[(&str, &str)],
    ) -> (tempfile::TempDir, std::path::PathBuf, ConfigurationInForce) {
        let (dir, file) = write(yaml);
        let effective = served(&file, Role::All, variables).expect("valid");
        let view = ConfigurationInForce::new(effective, KeyTables::default());
        (dir, file, view)
    }

    #[test]
    fn each_value_has_its_source_and_no_credential_is_shown() {
        let yaml = format!(
            "namespaces: {{ defaults: {{ timeout: 7s }} }}\n\
             upstreams: {{ stdio: {{ db: {{ command: x, args: [--password, {CANARY}], env: {{ API_KEY: {CANARY} }} }} }} }}\n"
        );
        let variables = [("BEARER_TOKEN", CANARY), ("LOG_LEVEL", "debug")];
        let (_dir, file, view) = in_force(&yaml, &variables);
        let values = view.in_force().expect("shown");
        let source = |key: &str| {
            let found = values.iter().find(|it| it.key == key);
            found
                .unwrap_or_else(|| panic!("{key} is missing"))
                .source
                .clone()
        };
        assert_eq!(
            source("namespaces.defaults.timeout"),
            file.display().to_string()
        );
        assert_eq!(source("observability.log.level"), "LOG_LEVEL");
        assert_eq!(source("admission.limits.body"), "default");
        assert_eq!(
            source("upstreams.stdio.db.env.API_KEY"),
            file.display().to_string()
        );
        let shown: String = values
            .iter()
            .map(|it| format!("{} {}\n", it.key, it.value))
            .collect();
        assert!(!shown.contains(CANARY), "{shown}");
        assert!(view.after_reload().expect("valid").is_empty());
    }

    #[test]
    fn changes_of_the_file_are_told_with_those_that_wait_for_a_start() {
        let (_dir, file, view) = in_force("threads: 1\n", &[("BEARER_TOKEN", "b")]);
        std::fs::write(
            &file,
            "threads: 2\nnamespaces: { defaults: { timeout: 7s } }\n",
        )
        .expect("written");
        let changes = view.after_reload().expect("valid");
        let told: Vec<_> = changes
            .iter()
            .map(|it| (&*it.key, it.then.clone(), it.waits_for_start))
            .collect();
        assert_eq!(
            told,
            [
                ("namespaces.defaults.timeout", Some("7s".into()), false),
                ("threads", Some(2.into()), true)
            ]
        );
        std::fs::write(&file, "threads: many\n").expect("written");
        let reason = view.after_reload().expect_err("invalid");
        assert!(reason.contains("threads"), "{reason}");
    }
}
