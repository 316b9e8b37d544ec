//! Ids of the purposes of requests. The edge determines the id by path and method, and the service answers by it; the two
//! crates do not depend on each other, so the ids are defined in this crate.

/// Returns true if the path of a request can name a tool of this name, percent-encoded. It cannot if the name has a control
/// character, a backslash, an empty part or a dot segment, which readers of paths interpret in another way.
pub fn can_stand_in_path(tool: &str) -> bool {
    let is_odd = |c: char| c.is_control() || c == '\\';
    !tool.contains(is_odd) && !tool.split('/').any(|part| matches!(part, "" | "." | ".."))
}

/// Purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouteId {
    /// MCP over Streamable HTTP, and 2026-07-28.
    Mcp,
    /// Opens a session of HTTP+SSE.
    Sse,
    /// Messages of a client in a session of HTTP+SSE.
    Messages,
    /// The tools of a namespace.
    Tools,
    /// A call of one tool.
    Tool,
    /// The input schema of one tool.
    ToolSchema,
    /// The tools as Tool Vault lists them.
    ToolIndex,
    /// A call of the tool that the body names, as Tool Vault makes it.
    VaultCall,
    /// The names of the namespaces, as ToolDock v1 lists them.
    McpNamespaces,
    /// Description of an MCP endpoint of ToolDock v1.
    McpInfo,
    /// A file of Tool Vault's single-page app.
    Ui,
    /// The namespaces that are open to the caller.
    Namespaces,
    /// A namespace as an OpenAPI document.
    OpenApi,
    /// Reloads the namespaces.
    Reload,
    /// Access of a principal in a namespace, with the reasons.
    Explain,
    /// The last lines that the tools of a namespace printed.
    Output,
    /// Liveness: the process is up.
    Health,
    /// Readiness: the process accepts traffic.
    Ready,
    /// Metadata below `/.well-known/`.
    WellKnown,
    /// The metrics, which the edge itself writes.
    Metrics,
    /// The page of the web UI, which the edge itself has.
    WebPage,
    /// A file that the page needs, which the edge itself has.
    WebAsset,
    /// Logins at the web UI by an issuer of access tokens, which the edge itself answers.
    WebLogin,
    /// Requests of the page, and of programs like it: everything below `/api/`.
    Api,
    /// A probe of the servers in front of the gateway, by a nonce that `tooldock doctor` got from it. The edge itself answers.
    FrontProbe,
}

impl RouteId {
    /// The id as a label of metrics and of the log.
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
