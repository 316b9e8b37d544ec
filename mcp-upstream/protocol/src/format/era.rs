//! Members of results that differ between eras and versions, in addition to the content.

use tooldock_base::names::NamespaceName;

use crate::jsonrpc::RequestError;
use crate::version::ProtocolVersion;

/// Format of results by the era and the version of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultFormat {
    /// Results without members of the era, for a client of this version.
    Legacy(ProtocolVersion),
    /// Results with `resultType`, `serverInfo`, and the time for which the result may be cached.
    Modern(ModernFormat),
}

/// The `serverInfo` in results of 2026-07-28.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModernFormat {
    namespace: NamespaceName,
}

impl ModernFormat {
    /// The format for results of this namespace.
    pub fn new(namespace: NamespaceName) -> Self {
        Self { namespace }
    }

    /// Appends the only member of `_meta`, without its braces.
    pub fn meta(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"io.modelcontextprotocol/serverInfo\":");
        server_info(out, &self.namespace);
    }
}

impl ResultFormat {
    /// Returns true if results may carry `structuredContent` and lists `outputSchema`.
    pub fn has_structured_content(&self) -> bool {
        match self {
            Self::Legacy(version) => version.has_structured_content(),
            Self::Modern(_) => true,
        }
    }

    /// A failure as the error object of this era.
    pub fn error(&self, id: Option<&str>, failure: &RequestError) -> Vec<u8> {
        match self {
            Self::Legacy(_) => failure.body(id),
            Self::Modern(_) => failure.modern_body(id),
        }
    }
}

/// Appends the `serverInfo` of a namespace. Names need no escaping.
pub fn server_info(out: &mut Vec<u8>, namespace: &NamespaceName) {
    out.extend_from_slice(b"{\"name\":\"tooldock/");
    out.extend_from_slice(namespace.as_str().as_bytes());
    out.extend_from_slice(b"\",\"version\":\"");
    out.extend_from_slice(env!("CARGO_PKG_VERSION").as_bytes());
    out.extend_from_slice(b"\"}");
}
