//! What the client of a session said about itself.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The most a session remembers of it, in bytes.
pub const CLIENT_FACTS_MAX: usize = 64 * 1024;

/// A client's capabilities and name, as it wrote them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientFacts {
    /// The `capabilities` object.
    pub capabilities: Arc<RawValue>,
    /// The `clientInfo` object, where there was one.
    pub info: Option<Arc<RawValue>>,
}

/// The client said more about itself than a session remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("capabilities and clientInfo may hold {CLIENT_FACTS_MAX} bytes together")]
pub struct TooMuch;

impl ClientFacts {
    /// Nothing: what a client that has not said anything can do.
    pub(super) fn none() -> &'static Self {
        static NONE: LazyLock<ClientFacts> = LazyLock::new(|| ClientFacts {
            capabilities: RawValue::from_string("{}".into())
                .expect("an empty object is JSON")
                .into(),
            info: None,
        });
        &NONE
    }

    /// What a session that remembers them holds for it, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        length(Some(&self.capabilities), self.info.as_deref())
    }
}

/// Refuses what no client needs to say about itself.
///
/// # Errors
///
/// [`TooMuch`] beyond [`CLIENT_FACTS_MAX`].
pub(crate) fn check(
    capabilities: Option<&RawValue>,
    info: Option<&RawValue>,
) -> Result<(), TooMuch> {
    match length(capabilities, info) {
        0..=CLIENT_FACTS_MAX => Ok(()),
        _ => Err(TooMuch),
    }
}

fn length(capabilities: Option<&RawValue>, info: Option<&RawValue>) -> usize {
    let parts = capabilities.into_iter().chain(info);
    parts.map(|raw| raw.get().len()).sum()
}
