//! What the operator says about the secrets store: its key, or that there is none.

use std::path::Path;

use tooldock_workers::secrets::{Protection, Secret, SecretStore};

use super::{ConfigError, Purpose, Role};

/// The key's variable.
const KEY: &str = "SECRETS_KEY";

/// What variables say about the store of secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SecretsSettings {
    /// What the store is encrypted with.
    pub(crate) key: Option<Secret>,
    /// What `tooldock secrets rekey` encrypts with.
    pub(crate) new_key: Option<Secret>,
    /// Whether values may be stored unencrypted where there is no key.
    pub(crate) allow_insecure: bool,
    /// The container in which people set values, if it has another name than usual.
    pub(crate) container: Option<String>,
}

impl SecretsSettings {
    /// How values are protected.
    pub(crate) fn protection(&self) -> Protection {
        Protection::new(self.key.as_ref(), self.allow_insecure)
    }

    /// Refuses to serve without a key where one is needed: where there are secrets, and where the parts of the gateway run
    /// apart, as they do in production. One process that was only started to be tried out has no secrets and needs none.
    ///
    /// # Errors
    ///
    /// The variable, and why it is needed.
    pub(super) fn settle(
        &self,
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
        let store = SecretStore::new(data_dir, Protection::Unset);
        let reason = if store.has_values() {
            format!("{} holds secrets", store.values_file().display())
        } else if role != Role::All && !dev {
            "the roles core and manager share a secrets store".to_owned()
        } else {
            return Ok(());
        };
        let message = format!(
            "is required: {reason}; set SECRETS_KEY or SECRETS_KEY_FILE (`openssl rand -base64 32` makes a key), or \
             ALLOW_INSECURE_SECRETS=1 for local use without encryption"
        );
        match purpose {
            Purpose::Serve => Err(ConfigError::variable(KEY, message)),
            Purpose::Check => {
                warnings.push(format!("{KEY} {message}"));
                Ok(())
            }
        }
    }
}
