//! The description of a session's client: its capabilities and its name.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Maximum length of a client's `capabilities` and `clientInfo` together, in bytes.
pub const CLIENT_FACTS_MAX: usize = 64 * 1024;

/// A client's capabilities and name in their original spelling.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientFacts {
    /// The `capabilities` object.
    pub capabilities: Arc<RawValue>,
    /// The `clientInfo` object, if the client sent one.
    pub info: Option<Arc<RawValue>>,
}

/// Error: the client's `capabilities` and `clientInfo` are longer than [`CLIENT_FACTS_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("capabilities and clientInfo may hold {CLIENT_FACTS_MAX} bytes together")]
pub struct ClientFactsTooLong;

impl ClientFacts {
    /// Description of a client that has not sent a description: no capabilities and no name.
    pub(super) fn none() -> &'static Self {
        static NONE: LazyLock<ClientFacts> = LazyLock::new(|| ClientFacts {
            capabilities: RawValue::from_string("{}".into())
                .expect("an empty object is JSON")
                .into(),
            info: None,
        });
        &NONE
    }

    /// The memory that a session holds for the description, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        length(Some(&self.capabilities), self.info.as_deref())
    }
}

/// Checks the length of a client's description.
///
/// # Errors
///
/// [`ClientFactsTooLong`] when both together are longer than [`CLIENT_FACTS_MAX`].
pub fn check(
    capabilities: Option<&RawValue>,
    info: Option<&RawValue>,
) -> Result<(), ClientFactsTooLong> {
    match length(capabilities, info) {
        0..=CLIENT_FACTS_MAX => Ok(()),
        _ => Err(ClientFactsTooLong),
    }
}

fn length(capabilities: Option<&RawValue>, info: Option<&RawValue>) -> usize {
    let parts = capabilities.into_iter().chain(info);
    parts.map(|raw| raw.get().len()).sum()
}
