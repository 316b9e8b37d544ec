//! TLS settings for connections to other replicas, from the files of `replicas.tls`.

use tooldock_workers::remote::TlsSpec;

use crate::config::{ConfigError, ReplicaTls};
use crate::remote::Material;

/// The certificates as last read from their files, with the settings that name these files.
pub(crate) struct ClientTls {
    pub(super) spec: TlsSpec,
    pub(super) material: Material,
}

impl ClientTls {
    /// Reads the certificates. Returns `None` if connections to other replicas do not use TLS.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] that names the key whose file cannot be used.
    pub(crate) fn read(config: &ReplicaTls) -> Result<Option<Self>, ConfigError> {
        let wrong = |key: &str, why: String| ConfigError::key(format!("replicas.{key}"), why);
        let spec = config.read();
        let Some(spec) = spec.map_err(|error| wrong(&error.key, error.message))? else {
            return Ok(None);
        };
        let material = Material::new(&spec).map_err(|(key, why)| wrong(key, why))?;
        Ok(Some(Self { spec, material }))
    }
}
