//! The REST surface: tools as plain HTTP, the namespaces, OpenAPI, health and reload. REST uses the same engine as MCP, and
//! sends bare JSON values.

use std::sync::Arc;

use http::StatusCode;
use tooldock_engine::engine::not_shown;
use tooldock_engine::upstream::global;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::View;
use tooldock_workers::registry::{Namespace, startup};

use crate::error;
use crate::mcp::Core;
use crate::reply::Reply;

mod answer;
mod arguments;
pub(crate) mod condition;
pub(crate) mod explain;
pub(crate) mod failing;
pub(crate) mod info;
pub(crate) mod namespaces;
pub(crate) mod openapi;
pub(crate) mod output;
pub(crate) mod pins;
pub(crate) mod public;
pub(crate) mod reload;
mod shape;
pub(crate) mod tools;
pub(crate) mod vault;

/// Reply to a request that is refused before its handler starts. The reply is boxed, since results use it as their error type.
struct EarlyReply(Box<Reply>);

impl EarlyReply {
    fn new(status: StatusCode, code: &'static str, message: &str) -> Self {
        Self(Box::new(error::rest_plain(status, code, message)))
    }
}

/// Returns the response for unknown paths. It is also sent for OAuth discovery below `/.well-known/`, so that clients fall back
/// to their static token.
pub(crate) fn not_found() -> Reply {
    error::rest_plain(StatusCode::NOT_FOUND, "not_found", "No such path")
}

/// A caller with the namespace that its request names, from the current snapshot.
struct InNamespace {
    caller: Caller,
    namespace: Arc<Namespace>,
}

impl InNamespace {
    fn of(core: &Core, caller: Caller) -> Result<Self, EarlyReply> {
        let Some(name) = caller.namespace.clone() else {
            return Err(EarlyReply::new(
                StatusCode::BAD_REQUEST,
                "namespace_required",
                "The request names no namespace: send the header X-Namespace, or use a path below /namespaces/<name>/tools",
            ));
        };
        match core.registry.admitted(&name) {
            Some(namespace) => Ok(Self { caller, namespace }),
            None if core.registry.awaits(&name) => {
                let refused = error::rest_starting(&startup::starting(&name));
                Err(EarlyReply(Box::new(refused)))
            }
            None => Err(EarlyReply(Box::new(unknown_namespace(name.as_str())))),
        }
    }

    /// Returns true if the request concerns all namespaces together.
    fn is_global(&self) -> bool {
        self.namespace.name.is_global()
    }

    /// Finds the namespace of a tool, and the tool's name in that namespace. A request that concerns all namespaces searches all
    /// of them.
    async fn of_tool(mut self, core: &Core, name: &str) -> Result<(Self, Box<str>), EarlyReply> {
        if !self.is_global() {
            return Ok((self, name.into()));
        }
        let snapshot = core.registry.snapshot();
        let found = global::find(&core.upstreams, &snapshot, &self.caller, name).await;
        let Some((namespace, own)) = found else {
            let unknown = error::rest_call(
                &not_shown(&self.caller, &self.namespace, name),
                &self.caller,
            );
            return Err(EarlyReply(Box::new(unknown)));
        };
        self.caller.namespace = Some(namespace.name.clone());
        self.namespace = namespace;
        Ok((self, own))
    }

    /// Returns the tools of the namespace that the caller may see.
    fn view(&self) -> View<'_> {
        View::of(&self.caller, &self.namespace)
    }
}

/// Returns the number of a namespace's tools that the caller may see; 0 for a server whose tools are not known yet.
pub(crate) fn tool_count(core: &Core, caller: &Caller, namespace: &Arc<Namespace>) -> usize {
    let known = core
        .upstreams
        .of(namespace)
        .tool_lists()
        .listed_now(namespace, caller);
    let view = View::of(caller, namespace);
    known.map_or(0, |tools| view.tools(&tools).count())
}

fn unknown_namespace(name: &str) -> Reply {
    let message = format!("Unknown namespace: {name}. GET /namespaces lists the ones there are.");
    error::rest_plain(StatusCode::NOT_FOUND, "namespace_not_found", &message)
}

/// Creates a reply with a JSON value, whose serialization cannot fail.
fn json(value: &impl serde::Serialize) -> Reply {
    let body = serde_json::to_vec(value).expect("plain data with string keys serializes");
    Reply::json(StatusCode::OK, body)
}

#[cfg(test)]
mod tests;
