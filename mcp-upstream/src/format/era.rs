//! What a result wears beside its content, which is what the eras and versions differ in.

use tooldock_workers::names::NamespaceName;

use crate::jsonrpc::RequestError;
use crate::protocol::ProtocolVersion;

/// The form of a conversation's results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResultFormat {
    /// Nothing beside the content.
    Legacy(ProtocolVersion),
    /// `resultType`, who answered, and for how long it may be kept.
    Modern(ModernFormat),
}

/// What results of 2026-07-28 say about who answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModernFormat {
    namespace: NamespaceName,
}

impl ModernFormat {
    /// Results of this namespace.
    pub(crate) fn new(namespace: NamespaceName) -> Self {
        Self { namespace }
    }

    /// Appends the one member that `_meta` has, without its braces.
    pub(crate) fn meta(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"io.modelcontextprotocol/serverInfo\":");
        server_info(out, &self.namespace);
    }
}

impl ResultFormat {
    /// Whether results may carry `structuredContent` and lists `outputSchema`.
    pub(crate) fn has_structured_content(&self) -> bool {
        match self {
            Self::Legacy(version) => version.has_structured_content(),
            Self::Modern(_) => true,
        }
    }

    /// A failure as the error object of this era.
    pub(crate) fn error(&self, id: Option<&str>, failure: &RequestError) -> Vec<u8> {
        match self {
            Self::Legacy(_) => failure.body(id),
            Self::Modern(_) => failure.modern_body(id),
        }
    }
}

/// Appends the `serverInfo` of a namespace. Names need no escaping.
pub(crate) fn server_info(out: &mut Vec<u8>, namespace: &NamespaceName) {
    out.extend_from_slice(b"{\"name\":\"tooldock/");
    out.extend_from_slice(namespace.as_str().as_bytes());
    out.extend_from_slice(b"\",\"version\":\"");
    out.extend_from_slice(env!("CARGO_PKG_VERSION").as_bytes());
    out.extend_from_slice(b"\"}");
}
