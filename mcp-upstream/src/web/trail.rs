//! Audit log entries for changes that are not made by a management tool. Arguments are not recorded, since some are secret.

use std::time::{Duration, SystemTime};

use tooldock_base::names::NamespaceName;
use tooldock_sessions::audit::{AuditRecord, Transport};
use tooldock_sessions::caller::Caller;

use super::answer::WebFailure;
use crate::mcp::Core;
use crate::protocol::method::TOOLS_CALL;

/// Records an operation of a caller in the audit log, with its success or its refusal.
pub(super) fn note<T>(
    core: &Core,
    caller: &Caller,
    operation: &str,
    outcome: &Result<T, WebFailure>,
) {
    let (status, http_status) = match outcome {
        Ok(_) => ("ok", 200),
        Err(_) => ("tool_error", 400),
    };
    let audit = &core.engine.audit;
    audit.send(AuditRecord {
        at: SystemTime::now(),
        request_id: caller.request_id.clone(),
        transport: Transport::Rest,
        namespace: NamespaceName::system(),
        via: None,
        method: TOOLS_CALL,
        subject: operation.into(),
        status,
        http_status,
        cause: None,
        latency: Duration::ZERO,
        protocol_version: None,
        session: None,
        client: caller.client,
        principal: caller.principal.clone(),
        token_id: caller.token_id(),
        relay: None,
        arguments: audit.keep(&bytes::Bytes::new()),
        coerced: false,
        hook: None,
    });
}
