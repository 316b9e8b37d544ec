//! Calls of `token_create`, `token_list` and `token_revoke` on the relay, for keys with the scope `admin` (REL-09).
//!
//! These are the tools of the management server. A key can create keys with at most its own rights, and these keys end with it
//! ([`KeyStore::create_by`], SEC-18). On the relay, a key can see and revoke only keys whose namespaces are among its own.
//!
//! [`KeyStore::create_by`]: tooldock_credentials::keys::KeyStore::create_by

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::key_maker::KeyId;
use tooldock_credentials::keys::{ApiKey, KeyTables};
use tooldock_engine::engine::{
    CallFacts, CallMessages, CallTask, Peer, UpstreamCall, UpstreamReply, Work, insufficient_scope,
};
use tooldock_engine::upstream::system::KeyTools;
use tooldock_process::worker::ToolReply;
use tooldock_sessions::audit::Transport;
use tooldock_sessions::session::CancelNotice;
use tooldock_workers::registry::Namespace;

use super::frame::ToolCall;
use crate::protocol::Method;
use crate::protocol::method::TOOLS_CALL;

/// The names of the tools that create, list and revoke API keys. They take precedence over tools of the relay's namespace with
/// the same names.
const NAMES: [&str; 3] = ["token_create", "token_list", "token_revoke"];

/// Returns true if a tool with this name creates, lists or revokes API keys.
pub(super) fn is_token_tool(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Returns true if an API key may use the tools that create, list and revoke keys.
pub(super) fn may_use(key: &ApiKey) -> bool {
    key.grant().tools.is_admin()
}

/// A call of a tool that creates, lists or revokes API keys.
pub(super) struct TokenCall {
    facts: CallFacts,
    tools: KeyTools,
    tables: KeyTables,
    /// The API key of the caller.
    key: Arc<ApiKey>,
}

impl TokenCall {
    /// Creates the call from a frame. It is recorded as a call of the relay's namespace.
    pub(super) fn new(
        tools: KeyTools,
        tables: KeyTables,
        key: Arc<ApiKey>,
        namespace: Arc<Namespace>,
        call: &ToolCall,
    ) -> Self {
        Self {
            facts: CallFacts {
                namespace,
                method: Method::Known(TOOLS_CALL),
                subject: (*call.tool).into(),
                arguments: call.arguments.clone(),
                transport: Transport::Relay,
                version: None,
                session: None,
                talks: CallMessages::No,
                progress_token: None,
                asks_singly: false,
                task: CallTask::No,
            },
            tools,
            tables,
            key,
        }
    }

    async fn run(&self) -> Result<Bytes, CallError> {
        let tool = &*self.facts.subject;
        let arguments = match tool {
            "token_revoke" => self.own_key()?,
            _ => self.facts.arguments.clone(),
        };
        let answer = self.tools.call(tool, &arguments, self.key.record()).await;
        let answer = answer.ok_or_else(|| insufficient_scope(tool))??;
        match tool {
            "token_list" => Ok(self.own_keys(&answer)),
            _ => Ok(answer),
        }
    }

    /// Returns true if the caller's key gives access to all of these namespaces.
    fn covers(&self, namespaces: &[String]) -> bool {
        self.key.record().opens_all_of(namespaces)
    }

    /// Returns the arguments of `token_revoke` after checking that the caller may see the key that they name.
    fn own_key(&self) -> Result<Bytes, CallError> {
        let arguments = self.arguments()?;
        let id = arguments.get("id").and_then(Value::as_str);
        let id = id.and_then(|id| id.parse::<KeyId>().ok());
        let foreign = id.is_some_and(|id| {
            let table = self.tables.load();
            let key = table.get(id);
            key.is_some_and(|key| !self.covers(&key.record().namespaces))
        });
        match foreign {
            true => Err(CallError::new(
                CallErrorCode::ToolError,
                "The key opens other namespaces than the caller's: only the operator of the host can revoke it",
            )),
            false => Ok(self.facts.arguments.clone()),
        }
    }

    fn arguments(&self) -> Result<Map<String, Value>, CallError> {
        serde_json::from_slice(&self.facts.arguments).map_err(|_| {
            let reason = "The arguments cannot be read. Nothing was changed";
            CallError::new(CallErrorCode::InvalidArguments, reason)
        })
    }

    /// Removes from a list of keys those that the caller may not see.
    fn own_keys(&self, answer: &Bytes) -> Bytes {
        let Ok(mut answer) = serde_json::from_slice::<Value>(answer) else {
            return answer.clone();
        };
        if let Some(tokens) = answer["tokens"].as_array_mut() {
            tokens.retain(|token| {
                let namespaces = serde_json::from_value::<Vec<String>>(token["namespaces"].clone());
                namespaces.is_ok_and(|namespaces| self.covers(&namespaces))
            });
        }
        answer.to_string().into()
    }
}

impl CancelNotice for TokenCall {
    fn cancelled(&self, _: &str) {}
}

impl UpstreamCall for TokenCall {
    fn facts(&self) -> &CallFacts {
        &self.facts
    }

    /// Checks the rights of the caller's key itself. The key's scopes are not checked: they refer to the tools of the
    /// namespace, and the tools that manage keys are not among those.
    fn admit(&self) -> Result<(), CallError> {
        match may_use(&self.key) {
            true => Ok(()),
            false => Err(insufficient_scope(&self.facts.subject)),
        }
    }

    fn start(self: Arc<Self>, _: Peer) -> Work {
        Box::pin(async move {
            let value = self.run().await?;
            Ok(UpstreamReply::Value(ToolReply {
                value,
                content: None,
                meta: None,
            }))
        })
    }
}
