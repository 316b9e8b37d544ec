//! What the client of a session said about itself.

use std::sync::{Arc, LazyLock};

use serde_json::value::RawValue;

/// The most a session remembers of it, in bytes.
pub const CLIENT_FACTS_MAX: usize = 64 * 1024;

/// A client's capabilities and name, as it wrote them.
#[derive(Debug, Clone)]
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

    pub(super) fn is_within(&self) -> bool {
        let info = self.info.as_ref().map_or(0, |info| info.get().len());
        self.capabilities.get().len() + info <= CLIENT_FACTS_MAX
    }
}
