//! The services and tools that hooks ask, and the hooks of a configuration with them.
//!
//! An HTTP service is reached like a remote server: by the same rules for addresses, with pooled connections, and given up for
//! some seconds after several failures. A tool is called by the gateway itself, under the id of the request that the hook sees;
//! no hook sees that call.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, header};
use tooldock_base::key_maker::KeyMaker;
use tooldock_base::names::{GATEWAY, NamespaceName};
use tooldock_base::server_failure::InvalidServer;
use tooldock_credentials::secrets::Secrets;
use tooldock_sessions::caller::{Caller, Visibility};
use tooldock_sessions::profile::Profile;
use tooldock_workers::remote::RemoteServer;

use super::Service;
use crate::mcp::Core;
use crate::rest;
use tooldock_engine::hooks::{
    Hook, HookAddress, HookConfig, HookFailure, HookPath, HookQuery, HookTarget, InvalidHook,
};
use tooldock_engine::upstream::CallContext;
use tooldock_servers::http::port::{BackendRequest, Backends, SendErrorKind};
use tooldock_servers::http::{BodyReadError, body};

/// Maximum number of times that a request is sent, if the connection ends before the answer.
const ATTEMPTS_MAX: u32 = 2;

impl Service {
    /// Puts the hooks of a configuration in force, which must have passed its checks. Calls in flight end with the hooks before.
    /// A hook whose credentials cannot be resolved fails, by its rule, until they are set and the configuration is read again.
    /// Returns a message for each such hook, with its key and the reason.
    ///
    /// # Errors
    ///
    /// The index of an invalid hook, and its key with the reason. The hooks before then stay in force.
    pub fn set_hooks(
        &self,
        configured: &[HookConfig],
        secrets: &Secrets,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Vec<String>, (usize, InvalidHook)> {
        let mut hooks = Vec::with_capacity(configured.len());
        let mut unusable = Vec::new();
        for (index, config) in configured.iter().enumerate() {
            let mut hook = || {
                let target: Arc<dyn HookTarget> = match config.validate()? {
                    HookAddress::Tool { namespace, tool } => Arc::new(ToolTarget {
                        core: Arc::downgrade(&self.core),
                        namespace,
                        tool,
                    }),
                    HookAddress::Service(_) => {
                        let server = config.server(index, secrets, environment);
                        self.service_target(server).unwrap_or_else(|reason| {
                            unusable.push(format!("hooks[{index}].{reason}"));
                            Arc::new(NoTarget { reason })
                        })
                    }
                };
                Hook::new(config, target, self.core.metrics.hooks.clone())
            };
            hooks.push(hook().map_err(|invalid| (index, invalid))?);
        }
        self.core.engine.hooks.replace(hooks);
        Ok(unusable)
    }

    /// The target of a hook with an address. Fails with the key that cannot be used, and the reason.
    fn service_target(
        &self,
        resolved: Option<Result<RemoteServer, InvalidServer>>,
    ) -> Result<Arc<dyn HookTarget>, String> {
        match (resolved, &self.core.http_client) {
            (Some(Ok(server)), Some(client)) => {
                let backends = client.backends(&Arc::new(server));
                Ok(Arc::new(ServiceTarget { backends }))
            }
            (Some(Err(invalid)), _) => Err(format!("{}: {}", invalid.key, invalid.message)),
            (Some(Ok(_)) | None, _) => Err("url: this process reaches no HTTP services".to_owned()),
        }
    }
}

/// The target of a hook whose settings cannot be used. Every request fails.
struct NoTarget {
    reason: String,
}

impl HookTarget for NoTarget {
    fn ask<'a>(&'a self, _: HookQuery<'a>) -> BoxFuture<'a, Result<Bytes, HookFailure>> {
        let failure = HookFailure::Unreachable(self.reason.clone());
        Box::pin(std::future::ready(Err(failure)))
    }
}

/// An HTTP service.
struct ServiceTarget {
    backends: Arc<dyn Backends>,
}

impl HookTarget for ServiceTarget {
    fn ask<'a>(&'a self, query: HookQuery<'a>) -> BoxFuture<'a, Result<Bytes, HookFailure>> {
        Box::pin(self.post(query))
    }
}

impl ServiceTarget {
    async fn post(&self, query: HookQuery<'_>) -> Result<Bytes, HookFailure> {
        let unreachable = |reason: String| HookFailure::Unreachable(reason);
        let mut attempts = 0;
        let response = loop {
            attempts += 1;
            let backend = self.backends.pick(&[], 0).ok_or_else(|| {
                unreachable("its service did not answer before, and is tried again soon".to_owned())
            })?;
            match backend.send(request(&query)).await {
                Ok(response) => break response,
                // A service may close a kept connection at the moment of the request. Asking again is harmless.
                Err(error)
                    if attempts < ATTEMPTS_MAX
                        && (error.unsent || error.kind == SendErrorKind::Closed) => {}
                Err(error) => return Err(unreachable(error.message)),
            }
        };
        if !response.status.is_success() {
            let status = response.status.as_u16();
            return Err(HookFailure::Invalid(format!("it answered HTTP {status}")));
        }
        let max = query.answer_max;
        let body = body(response, |size| size as u64 <= max, Some(query.answers));
        body.await.map_err(|error| match error {
            BodyReadError::TooLarge(_) => too_large(max),
            BodyReadError::NoRoom(_) => HookFailure::Busy,
            BodyReadError::Cut(error) => unreachable(error.to_string()),
        })
    }
}

fn too_large(max: u64) -> HookFailure {
    HookFailure::Invalid(format!("its answer has more than {max} bytes"))
}

fn request(query: &HookQuery<'_>) -> BackendRequest {
    let headers = headers(query.request_id);
    BackendRequest {
        answers: Some(query.answers.clone()),
        ..BackendRequest::new(Method::POST, headers, query.message.clone())
    }
}

fn headers(request_id: &str) -> HeaderMap {
    let json = HeaderValue::from_static("application/json");
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, json.clone());
    headers.insert(header::ACCEPT, json);
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert("x-request-id", id);
    }
    headers
}

/// A tool of this gateway.
struct ToolTarget {
    /// The service that runs the tool. It owns the hooks, and so the target does not keep it alive.
    core: Weak<Core>,
    namespace: NamespaceName,
    tool: String,
}

impl HookTarget for ToolTarget {
    fn ask<'a>(&'a self, query: HookQuery<'a>) -> BoxFuture<'a, Result<Bytes, HookFailure>> {
        Box::pin(self.call(query))
    }
}

impl ToolTarget {
    async fn call(&self, query: HookQuery<'_>) -> Result<Bytes, HookFailure> {
        let gone = |reason: &str| HookFailure::Unreachable(reason.to_owned());
        let core = self.core.upgrade();
        let core = core.ok_or_else(|| gone("the gateway is stopping"))?;
        let (registry, name) = (&core.registry, &self.namespace);
        if let Some(starting) = registry.starting(name).await {
            return Err(HookFailure::Unreachable(starting.message));
        }
        let namespace = registry.namespace(name.as_str());
        let namespace = namespace.ok_or_else(|| gone("there is no such namespace"))?;
        let upstream = core.upstreams.of(&namespace);
        let caller = caller(name.clone(), Arc::clone(query.request_id));
        let cx = CallContext::plain(&caller, &query.message, &namespace, upstream);
        let answered = async {
            let call = upstream.call_tool(&cx, &self.tool, query.message.clone())?;
            rest::tools::value_of_call(&core, &cx, &self.tool, &call, HookPath::Unhooked).await
        };
        let answered = answered.await;
        // The message of a tool may repeat the arguments, so the log contains the code alone.
        let told = |code: &str| HookFailure::Unreachable(format!("its tool failed: {code}"));
        let value = answered.map_err(|error| told(error.code.as_str()))?;
        match value.len() as u64 > query.answer_max {
            true => Err(too_large(query.answer_max)),
            false => Ok(value),
        }
    }
}

/// Returns the caller under which hooks call tools.
fn caller(namespace: NamespaceName, request_id: Arc<str>) -> Caller {
    Caller {
        namespace: Some(namespace),
        principal: Some(GATEWAY.into()),
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        request_id,
        profile: Arc::new(Profile::core()),
        manager: false,
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
