//! The plain HTTP side: tools as REST, the namespaces, OpenAPI, health and reload. Same engine, bare JSON values.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use tooldock_workers::registry::Namespace;

use crate::caller::Caller;
use crate::mcp;
use crate::mcp::head::McpHead;
use crate::reply::Reply;
use crate::state::Core;
use crate::{error, legacy};

mod arguments;
mod failing;
mod namespaces;
mod openapi;
mod public;
pub(crate) mod reload;
mod tools;

/// Every route of the core port.
pub(crate) fn router(core: Arc<Core>) -> Router {
    Router::new()
        .route("/mcp", get(mcp_get).post(mcp_post).delete(mcp_delete))
        .route(
            "/mcp/{namespace}",
            get(mcp_get).post(mcp_post).delete(mcp_delete),
        )
        .route("/sse", get(sse))
        .route("/messages", post(messages))
        .route("/tools", get(tools::list))
        .route("/tools/{name}", post(tools::call))
        .route("/tools/{name}/schema", get(tools::schema))
        .route("/namespaces", get(namespaces::list))
        .route("/openapi.json", get(openapi::document))
        .route("/namespaces/{namespace}/tools", get(tools::list))
        .route("/namespaces/{namespace}/tools/{name}", post(tools::call))
        .route(
            "/namespaces/{namespace}/tools/{name}/schema",
            get(tools::schema),
        )
        .route(
            "/namespaces/{namespace}/openapi.json",
            get(openapi::document_by_path),
        )
        .route("/reload", post(reload::reload))
        .route("/health", get(public::health))
        .route("/ready", get(public::ready))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(core)
}

async fn mcp_post(
    State(core): State<Arc<Core>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    match collect(body).await {
        Ok(body) => mcp::post(&core, &caller, &McpHead::from_headers(&headers), &body).await,
        Err(Refused(reply)) => *reply,
    }
}

async fn mcp_get(
    State(core): State<Arc<Core>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Reply {
    mcp::get(&core, &caller, &McpHead::from_headers(&headers)).await
}

async fn sse(State(core): State<Arc<Core>>, Extension(caller): Extension<Caller>) -> Reply {
    legacy::open(&core, &caller).await
}

/// The query of `POST /messages`.
#[derive(serde::Deserialize)]
struct Addressed {
    session_id: Option<String>,
}

async fn messages(
    State(core): State<Arc<Core>>,
    Extension(caller): Extension<Caller>,
    Query(addressed): Query<Addressed>,
    headers: HeaderMap,
    body: Body,
) -> Reply {
    let head = McpHead::from_headers(&headers);
    match collect(body).await {
        Ok(body) => {
            let id = addressed.session_id.as_deref();
            legacy::post(&core, &caller, id, &head, &body).await
        }
        Err(Refused(reply)) => *reply,
    }
}

async fn mcp_delete(
    State(core): State<Arc<Core>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Reply {
    mcp::delete(&core, &caller, &McpHead::from_headers(&headers)).await
}

/// The body, which the edge has bounded and read: this only takes it out of its box.
async fn collect(body: Body) -> Result<Bytes, Refused> {
    match body.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(_) => Err(Refused::new(
            StatusCode::BAD_REQUEST,
            "invalid_body",
            "The body could not be read",
        )),
    }
}

/// A request that is answered before its handler gets to work. Boxed: it travels in the error side of results.
struct Refused(Box<Reply>);

impl Refused {
    fn new(status: StatusCode, code: &str, message: &str) -> Self {
        Self(Box::new(error::rest_plain(status, code, message)))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

/// Also what OAuth discovery below `/.well-known/` gets, so that clients fall back to their static token.
async fn not_found() -> Reply {
    error::rest_plain(StatusCode::NOT_FOUND, "not_found", "No such path")
}

async fn method_not_allowed() -> Reply {
    error::rest_plain(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "The path does not take this method",
    )
}

/// The namespace of a request, out of the current snapshot.
struct InNamespace {
    caller: Caller,
    namespace: Arc<Namespace>,
}

impl FromRequestParts<Arc<Core>> for InNamespace {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, core: &Arc<Core>) -> Result<Self, Refused> {
        let Some(caller) = parts.extensions.get::<Caller>().cloned() else {
            tracing::error!("a request came to the router without its caller");
            return Err(Refused::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal_error",
                "Internal error",
            ));
        };
        let Some(name) = caller.namespace.clone() else {
            return Err(Refused::new(
                StatusCode::BAD_REQUEST,
                "namespace_required",
                "The request names no namespace: send the header X-Namespace, or use a path below /namespaces/<name>/tools",
            ));
        };
        match core.registry.namespace(name.as_str()) {
            Some(namespace) => Ok(Self { caller, namespace }),
            None => Err(Refused(Box::new(unknown_namespace(name.as_str())))),
        }
    }
}

fn unknown_namespace(name: &str) -> Reply {
    let message = format!("Unknown namespace: {name}. GET /namespaces lists the ones there are.");
    error::rest_plain(StatusCode::NOT_FOUND, "namespace_not_found", &message)
}

/// Bytes of a value that serializes into memory without failing.
fn json(value: &impl serde::Serialize) -> Reply {
    let body = serde_json::to_vec(value).expect("plain data with string keys serializes");
    Reply::json(StatusCode::OK, body)
}

#[cfg(test)]
mod tests;
