//! The operator's settings for the secrets store: its key, or the permission to store values unencrypted.

use std::path::Path;

use tooldock_base::secret::Secret;
use tooldock_credentials::secrets::{Protection, SecretStore};

use super::dev_tokens;
use super::{ConfigError, Purpose, Role};

/// Name of the environment variable that contains the key of the secrets store.
pub(crate) const KEY: &str = "SECRETS_KEY";

/// Settings of the secrets store, which are set by environment variables only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SecretsSettings {
    /// The key that encrypts the secrets store; `None` if it is not set.
    pub(crate) key: Option<Secret>,
    /// The key to which `tooldock secrets rekey` changes the secrets store.
    pub(crate) new_key: Option<Secret>,
    /// True if secrets may be stored unencrypted while there is no key; false if they are refused then.
    pub(crate) allow_insecure: bool,
    /// Name of the container in which operators set secrets, for instructions; `None` for the usual name.
    pub(crate) container: Option<String>,
}

impl SecretsSettings {
    /// Returns how stored secrets are protected: encrypted with the key, unencrypted, or not configured.
    pub(crate) fn protection(&self) -> Protection {
        Protection::new(self.key.as_ref(), self.allow_insecure)
    }

    /// Uses the key that an earlier `serve --dev` stored in the data directory, if no variable sets a key.
    ///
    /// # Errors
    ///
    /// If the stored key is unreadable or invalid.
    pub(crate) fn find_dev_key(&mut self, data_dir: &Path) -> Result<(), ConfigError> {
        if self.key.is_none() && !self.allow_insecure {
            let found = dev_tokens::found_secrets_key(data_dir);
            self.key = found.map_err(|error| ConfigError::variable(KEY, format!("{error:#}")))?;
        }
        Ok(())
    }

    /// Generates and stores a key for `--dev`, unless a key is set or the store already contains secrets.
    ///
    /// # Errors
    ///
    /// If the key's file cannot be created.
    pub(crate) fn make_dev_key(&mut self, data_dir: &Path) -> anyhow::Result<()> {
        let holds_values = || SecretStore::new(data_dir, Protection::Unset).has_values();
        if self.key.is_none() && !self.allow_insecure && !holds_values() {
            self.key = Some(dev_tokens::kept_secrets_key(data_dir)?);
        }
        Ok(())
    }

    /// Refuses to serve without a key if one is needed: if the store contains secrets, or if core and manager run as separate
    /// processes, which share the store. A single process without secrets needs no key.
    ///
    /// # Errors
    ///
    /// The name of the missing variable, and the reason why it is needed.
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
                // For `tooldock check` this is no error here, since its check of the data directory reports the missing key.
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

    /// Returns an error message if the store contains secrets and no key is set; `None` if nothing is missing.
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
