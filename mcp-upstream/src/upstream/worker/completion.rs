//! `completion/complete`.

use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_workers::worker::Operation;

use super::{WorkerUpstream, string_member};
use crate::jsonrpc::{self, Members, RequestError};
use crate::upstream::{CallContext, Prepared};

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, default, deserialize_with = "jsonrpc::present", rename = "ref")]
    reference: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    argument: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    context: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Argument<'a> {
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    name: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    value: Option<&'a RawValue>,
}

impl WorkerUpstream {
    /// Shapes are checked here; what there is to complete, the worker knows.
    pub(super) fn complete(
        &self,
        cx: &CallContext<'_>,
        members: &Members<'_>,
    ) -> Result<Prepared, RequestError> {
        let fields: Params<'_> = jsonrpc::fields(members.params(), "params")?;
        if fields.reference.is_none() {
            return Err(RequestError::InvalidParams("params.ref is missing".into()));
        }
        jsonrpc::object(fields.reference, "params.ref")?;
        jsonrpc::object(fields.context, "params.context")?;
        let argument: Argument<'_> = jsonrpc::fields(fields.argument, "params.argument")?;
        string_member(argument.name, "params.argument.name")?;
        string_member(argument.value, "params.argument.value")?;
        let operation = Operation::Complete {
            params: cx.own_object(members.params()),
        };
        self.function_call(cx, operation, members, false)
    }
}
