//! What the service asks of the binary around it: a reload, and whether limits allow a tool call.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use tooldock_upstream::engine::ToolCallLimiter;
use tooldock_upstream::{Pages, ReloadControl};
use tooldock_workers::names::NamespaceName;
use tooldock_workers::reload::{ReloadReport, Reloader};

use crate::gateway::Rules;

/// The reloader as the service asks for it.
pub(super) struct Reload {
    pub(super) reloader: Arc<Reloader>,
    /// What `/ui/` serves is read again, too.
    pub(super) pages: Option<Arc<Pages>>,
}

#[async_trait]
impl ReloadControl for Reload {
    async fn reload(&self) -> Result<Arc<ReloadReport>, String> {
        if let Some(pages) = self.pages.clone() {
            // The reload goes on meanwhile; a directory that cannot be read says so in the log.
            let _ = tokio::task::spawn_blocking(move || pages.refresh()).await;
        }
        let reloaded = self.reloader.reload().await;
        reloaded.map_err(|error| error.to_string())
    }
}

/// Limits counted in tool calls; they live with the other limits, in the admission rules.
pub(super) struct ToolCalls(pub(super) Arc<ArcSwap<Rules>>);

impl ToolCallLimiter for ToolCalls {
    fn check(
        &self,
        principal: &str,
        namespace: &NamespaceName,
        tool: &str,
        client: IpAddr,
    ) -> Result<(), Duration> {
        self.0
            .load()
            .admission
            .check_tool_call(principal, namespace, tool, client)
            .map_err(|wait| wait.duration())
    }
}
