//! Ids of the purposes of requests. The edge determines a request's id from its path and method, and the service selects the
//! handler by the id. The two crates do not depend on each other, so the ids are defined in this crate.

/// Path of the pages on which principals give their personal credentials, before a listener's prefix.
pub const CONNECT_PATH: &str = "/connect";

/// Returns true if a tool's name can be written into the path of a URL, percent-encoded. It cannot if the name contains a
/// control character, a backslash, an empty segment or a dot segment, since URL parsers change or reject these.
pub fn can_stand_in_path(tool: &str) -> bool {
    let is_odd = |c: char| c.is_control() || c == '\\';
    !tool.contains(is_odd) && !tool.split('/').any(|part| matches!(part, "" | "." | ".."))
}

/// Purpose of an HTTP request; it determines the request's handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouteId {
    /// MCP over Streamable HTTP, in the legacy versions and in 2026-07-28.
    Mcp,
    /// Opens an event stream of the transport HTTP+SSE.
    Sse,
    /// Receives a client's messages of the transport HTTP+SSE.
    Messages,
    /// Lists the tools of a namespace.
    Tools,
    /// Calls the tool that the path names.
    Tool,
    /// Returns the input schema of one tool.
    ToolSchema,
    /// Lists the tools in the format of Tool Vault.
    ToolIndex,
    /// Calls the tool that the request's body names, in the format of Tool Vault.
    VaultCall,
    /// Lists the names of the namespaces in the format of ToolDock v1.
    McpNamespaces,
    /// Describes an MCP endpoint in the format of ToolDock v1.
    McpInfo,
    /// Returns a file of Tool Vault's single-page app.
    Ui,
    /// Lists the namespaces that the caller may access.
    Namespaces,
    /// Returns the tools of a namespace as an OpenAPI document.
    OpenApi,
    /// Reloads the namespaces.
    Reload,
    /// Explains the access of a principal to a namespace, with the reasons.
    Explain,
    /// Returns the last lines that the tools of a namespace printed.
    Output,
    /// Liveness probe: succeeds while the process runs.
    Health,
    /// Readiness probe: succeeds while the process accepts traffic.
    Ready,
    /// Returns metadata below `/.well-known/`.
    WellKnown,
    /// The Prometheus metrics; the edge itself answers the request.
    Metrics,
    /// The HTML page of the web UI; the edge itself answers the request.
    WebPage,
    /// A file that the page of the web UI loads; the edge itself answers the request.
    WebAsset,
    /// Login to the web UI with an issuer of access tokens; the edge itself answers the request.
    WebLogin,
    /// Pages on which principals give their personal credentials for servers; the edge (the crate `proxy`) answers the request.
    Connect,
    /// Management requests of the web UI and of similar programs: everything below `/api/`.
    Api,
    /// Request by which `tooldock doctor` tests the proxies in front of the gateway. It contains a nonce that the gateway issued;
    /// the edge itself answers the request.
    FrontProbe,
}

impl RouteId {
    /// The id as text, for labels of metrics and for the log.
    pub fn label(self) -> &'static str {
        match self {
            Self::Mcp => "/mcp",
            Self::Sse => "/sse",
            Self::Messages => "/messages",
            Self::Tools => "/tools",
            Self::Tool => "/tools/{name}",
            Self::ToolSchema => "/tools/{name}/schema",
            Self::ToolIndex => "/tools/list",
            Self::VaultCall => "/tools/call",
            Self::McpNamespaces => "/mcp/namespaces",
            Self::McpInfo => "/mcp/info",
            Self::Ui => "/ui",
            Self::Namespaces => "/namespaces",
            Self::OpenApi => "/openapi.json",
            Self::Reload => "/reload",
            Self::Explain => "/explain",
            Self::Output => "/output",
            Self::Health => "/health",
            Self::Ready => "/ready",
            Self::WellKnown => "/.well-known",
            Self::Metrics => "/metrics",
            Self::WebPage => "page",
            Self::WebAsset => "asset",
            Self::WebLogin => "/api/login/oauth",
            Self::Connect => CONNECT_PATH,
            Self::Api => "/api",
            Self::FrontProbe => "/mcp/_probe",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_slashes_can_stand_in_a_path_unless_it_leads_elsewhere() {
        for name in [
            "a",
            "user-profile/update",
            "a/b/c",
            "größe",
            "with space",
            "..a",
            "a:b",
        ] {
            assert!(can_stand_in_path(name), "{name}");
        }
        for name in [
            "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\\b", "a\0", "a\nb",
        ] {
            assert!(!can_stand_in_path(name), "{name}");
        }
    }
}
