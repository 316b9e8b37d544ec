//! The operator's settings for the secrets store: its key, or the permission to store values unencrypted.

use std::path::Path;

use tooldock_base::secret::Secret;
use tooldock_credentials::secrets::{Protection, SecretStore};

use super::dev_tokens;
use super::{ConfigError, Purpose, Role};

/// Name of the variable that contains the key.
pub(crate) const KEY: &str = "SECRETS_KEY";

/// The settings of the secrets store, which come from environment variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SecretsSettings {
    /// The key that encrypts the store.
    pub(crate) key: Option<Secret>,
    /// The key for `tooldock secrets rekey`.
    pub(crate) new_key: Option<Secret>,
    /// True when values may be stored unencrypted if there is no key.
    pub(crate) allow_insecure: bool,
    /// The container in which operators set values, if it has another name than usual.
    pub(crate) container: Option<String>,
}

impl SecretsSettings {
    /// The way in which stored values are protected.
    pub(crate) fn protection(&self) -> Protection {
        Protection::new(self.key.as_ref(), self.allow_insecure)
    }

    /// Uses the key that a run of `--dev` has stored in the data directory, if no variable configures a key.
    ///
    /// # Errors
    ///
    /// When the stored key cannot be used.
    pub(crate) fn find_dev_key(&mut self, data_dir: &Path) -> Result<(), ConfigError> {
        if self.key.is_none() && !self.allow_insecure {
            let found = dev_tokens::found_secrets_key(data_dir);
            self.key = found.map_err(|error| ConfigError::variable(KEY, format!("{error:#}")))?;
        }
        Ok(())
    }

    /// Generates a key for `--dev`, unless there is one or the store contains values already.
    ///
    /// # Errors
    ///
    /// When the file of the key cannot be created.
    pub(crate) fn make_dev_key(&mut self, data_dir: &Path) -> anyhow::Result<()> {
        let holds_values = || SecretStore::new(data_dir, Protection::Unset).has_values();
        if self.key.is_none() && !self.allow_insecure && !holds_values() {
            self.key = Some(dev_tokens::kept_secrets_key(data_dir)?);
        }
        Ok(())
    }

    /// Refuses to serve without a key if one is needed: if there are secrets, or if core and manager run in separate processes,
    /// as in production. A single process for a trial has no secrets and needs no key.
    ///
    /// # Errors
    ///
    /// The name of the variable, and the reason why it is needed.
    pub(super) fn settle(
        &mut self,
        data_dir: &Path,
        (role, dev, purpose): (Role, bool, Purpose),
        warnings: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        if self.key.is_some() {
            return Ok(());
        }
        if self.allow_insecure {
            warnings.push(
                "ALLOW_INSECURE_SECRETS is set and SECRETS_KEY is not: secrets are stored unencrypted; for local use only"
                    .to_owned(),
            );
            return Ok(());
        }
        if dev {
            self.find_dev_key(data_dir)?;
        }
        if self.key.is_some() {
            return Ok(());
        }
        if let Some(message) = self.missing_for(data_dir) {
            return match purpose {
                Purpose::Serve => Err(ConfigError::variable(KEY, message)),
                // The check of the data directory reports the missing key as an error.
                Purpose::Check => Ok(()),
                Purpose::Command => {
                    warnings.push(format!("{KEY} {message}"));
                    Ok(())
                }
            };
        }
        match purpose {
            Purpose::Serve if role != Role::All && !dev => Err(ConfigError::variable(
                KEY,
                required("the roles core and manager share a secrets store"),
            )),
            _ => Ok(()),
        }
    }

    /// The sentence about a missing key, if the store holds values and the key is needed.
    pub(crate) fn missing_for(&self, data_dir: &Path) -> Option<String> {
        let store = SecretStore::new(data_dir, Protection::Unset);
        let is_missing = self.key.is_none() && !self.allow_insecure && store.has_values();
        is_missing.then(|| required(&format!("{} holds secrets", store.values_file().display())))
    }
}

fn required(reason: &str) -> String {
    format!(
        "is required: {reason}, and neither SECRETS_KEY nor SECRETS_KEY_FILE is set; set one of them to the key that the \
             secrets were written with, or to a new one for a new store (`openssl rand -base64 32` makes a key), or \
             ALLOW_INSECURE_SECRETS=1 for local use without encryption. A store moves to another key by `tooldock secrets \
             rekey`, with the present key in SECRETS_KEY and the new one in SECRETS_KEY_NEW"
    )
}
