//! `tools/call`.

use std::sync::Arc;

use tooldock_workers::worker::Operation;

use super::{Named, WorkerUpstream};
use crate::jsonrpc::{Members, RequestError};
use crate::upstream::{CallContext, Prepared};

impl WorkerUpstream {
    /// Wrong parameters are a JSON-RPC error. Whatever happens to the call after that is a result, even that there is no
    /// such tool.
    pub(super) fn tool_call(
        &self,
        cx: &CallContext<'_>,
        members: &Members<'_>,
    ) -> Result<Prepared, RequestError> {
        let Named { name, arguments } = Named::read(members)?;
        let mut tools = cx.namespace.tools.iter();
        let declared = tools.find(|tool| *tool.name == *name);
        let operation = Operation::CallTool {
            // The tool's own name where there is one: a shared string instead of a new one.
            tool: declared.map_or_else(|| name.into(), |tool| Arc::clone(&tool.name)),
            arguments: cx.own_object(arguments),
        };
        let talks = declared.is_some_and(|tool| tool.context);
        self.function_call(cx, operation, members, talks)
    }
}
