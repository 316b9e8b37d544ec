//! Calls of the gateway's REST functions by its management tools, in the same process and without HTTP ([`CoreLink`]).

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use http::StatusCode;
use tooldock_base::key_maker::KeyMaker;
use tooldock_base::names::NamespaceName;
use tooldock_engine::upstream::system::core::{CoreAnswer, CoreLink, CoreRequest, Unreachable};
use tooldock_sessions::caller::{Caller, Visibility};
use tooldock_sessions::profile::{Profile, RestShape};
use tooldock_workers::registry::startup;

use super::Service;
use crate::error;
use crate::mcp::Core;
use crate::reply::Reply;
use crate::rest;

/// Principal of the management tools' requests, in the audit log and for limits.
const PRINCIPAL: &str = "manager";

/// Reference to the service for the management tools. It is set later, since the tools are created before the service.
#[derive(Default)]
pub struct OwnCore(OnceLock<Weak<Core>>);

impl OwnCore {
    /// Sets the service. The reference does not keep the service alive.
    pub fn bind(&self, service: &Service) {
        let _ = self.0.set(Arc::downgrade(&service.core));
    }
}

/// Returns the caller under which the management tools send requests.
fn caller(namespace: Option<NamespaceName>) -> Caller {
    Caller {
        namespace,
        principal: Some(PRINCIPAL.into()),
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        request_id: format!("manager-{:016x}", fastrand::u64(..)).into(),
        profile: Arc::new(Profile::core()),
        manager: true,
        headers: None,
        visibility: Visibility::All,
        grant: None,
        maker: KeyMaker::default(),
        relay: None,
        toolset: None,
        note: None,
        key_limits: None,
        budget: None,
        status_only: false,
        trace: None,
    }
}

#[async_trait]
impl CoreLink for OwnCore {
    async fn send(&self, request: CoreRequest) -> Result<CoreAnswer, Unreachable> {
        let core = self.0.get().and_then(Weak::upgrade);
        let core =
            core.ok_or_else(|| Unreachable("the server is starting or stopping".to_owned()))?;
        // A call waits for a namespace that is still starting, as the edge does for HTTP requests.
        let starting = match &request {
            CoreRequest::Call { namespace, .. } => core.registry.starting(namespace).await,
            CoreRequest::Namespaces if !core.registry.wait_for_scan().await => {
                Some(startup::starting(&NamespaceName::global()))
            }
            _ => None,
        };
        let reply = match (starting, request) {
            (Some(starting), _) => error::rest_starting(&starting),
            (None, CoreRequest::Health) => rest::public::health(&core, &caller(None)),
            (None, CoreRequest::Namespaces) => rest::namespaces::list(&core, &caller(None)),
            (None, CoreRequest::Reload) => rest::reload::reload(&core).await,
            (None, CoreRequest::Explain { question }) => {
                rest::explain::explain(&core, question).await
            }
            (None, CoreRequest::Output { wanted }) => rest::output::output(&core, wanted).await,
            (
                None,
                CoreRequest::Call {
                    namespace,
                    tool,
                    input,
                    toolset,
                },
            ) => {
                let shape = RestShape::V2;
                let caller = Caller {
                    toolset: toolset.map(Into::into),
                    ..caller(Some(namespace))
                };
                rest::tools::call(&core, caller, &tool, input, shape).await
            }
        };
        Ok(match reply {
            Reply::Full { head, body } => CoreAnswer {
                status: head.status,
                body,
            },
            // REST never answers these requests with a stream, so this arm is not reached.
            _ => CoreAnswer {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                body: bytes::Bytes::new(),
            },
        })
    }
}
