//! Members of results that depend on the client's era and version, in addition to the content.

use tooldock_base::names::NamespaceName;

use crate::jsonrpc::RequestError;
use crate::version::ProtocolVersion;

/// Format of results, which depends on the client's era and version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultFormat {
    /// Legacy format, for a client of this version: results without additional members.
    Legacy(ProtocolVersion),
    /// Modern format: results with `resultType`, `serverInfo` and cache time.
    Modern(ModernFormat),
}

/// The modern format for a namespace, whose name is in the `serverInfo` of results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModernFormat {
    namespace: NamespaceName,
}

impl ModernFormat {
    /// Creates the modern format for results of this namespace.
    pub fn new(namespace: NamespaceName) -> Self {
        Self { namespace }
    }

    /// Appends the `serverInfo` member of `_meta`, without the braces around it.
    pub fn meta(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"io.modelcontextprotocol/serverInfo\":");
        server_info(out, &self.namespace);
    }
}

impl ResultFormat {
    /// Returns true if the client's version has `structuredContent` in results and `outputSchema` in lists of tools.
    pub fn has_structured_content(&self) -> bool {
        match self {
            Self::Legacy(version) => version.has_structured_content(),
            Self::Modern(_) => true,
        }
    }

    /// Returns true if lists of tools state which tools run as tasks.
    pub fn has_tasks(&self) -> bool {
        match self {
            Self::Legacy(version) => version.has_tasks(),
            Self::Modern(_) => false,
        }
    }

    /// Builds the error response for a failed request, in the format of the client's era.
    pub fn error(&self, id: Option<&str>, failure: &RequestError) -> Vec<u8> {
        match self {
            Self::Legacy(_) => failure.body(id),
            Self::Modern(_) => failure.modern_body(id),
        }
    }
}

/// Appends the `serverInfo` of a namespace. Its name is not escaped, since names contain no special characters.
pub fn server_info(out: &mut Vec<u8>, namespace: &NamespaceName) {
    out.extend_from_slice(b"{\"name\":\"tooldock/");
    out.extend_from_slice(namespace.as_str().as_bytes());
    out.extend_from_slice(b"\",\"version\":\"");
    out.extend_from_slice(env!("CARGO_PKG_VERSION").as_bytes());
    out.extend_from_slice(b"\"}");
}
