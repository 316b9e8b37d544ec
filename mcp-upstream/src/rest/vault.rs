//! `/tools/list` and `/tools/call` in the format of Tool Vault's clients (EX-31, EX-32).

use std::collections::HashSet;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::profile::RestShape;

use super::{EarlyReply, InNamespace, tools};
use crate::jsonrpc::{self, RequestError};
use crate::mcp::Core;
use crate::reply::Reply;

/// Maximum number of arguments that a client may send as a list of names and values.
const ARGUMENTS_MAX: usize = 1_000;

/// Answers with the list of tools, with their names, descriptions and schemas.
pub(crate) async fn index(core: &Core, caller: Caller) -> Reply {
    tools::list_as(core, caller, RestShape::Vault).await
}

/// Calls the tool that the body of the request names.
pub(crate) async fn call(core: &Core, caller: Caller, body: Bytes) -> Reply {
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(EarlyReply(reply)) => return *reply,
    };
    let (name, arguments) = match read(&body) {
        Ok(call) => call,
        Err(EarlyReply(reply)) => return *reply,
    };
    tools::run_named(core, scope, &name, arguments).await
}

#[derive(Deserialize)]
struct VaultCall<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

/// Reads the tool's name and its arguments from a body. The arguments are returned as a JSON object.
fn read(body: &Bytes) -> Result<(String, Bytes), EarlyReply> {
    let not_json = |reason: &str| EarlyReply::new(StatusCode::BAD_REQUEST, "invalid_json", reason);
    let text = jsonrpc::text(body).map_err(|failure| match failure {
        RequestError::Parse(reason) | RequestError::Shape(reason) => not_json(&reason),
        _ => not_json("the body is no JSON"),
    })?;
    let raw: &RawValue =
        serde_json::from_str(text).map_err(|error| not_json(&error.to_string()))?;
    let call: VaultCall<'_> = serde_json::from_str(raw.get())
        .ok()
        .filter(|_| raw.get().starts_with('{'))
        .ok_or_else(|| {
            invalid("The body must be an object with the members name and arguments, each once")
        })?;
    let name = call.name.and_then(jsonrpc::string);
    let name = name.ok_or_else(|| invalid("name must be a string: the tool to call"))?;
    let arguments = match call.arguments.map(RawValue::get) {
        None | Some("null") => Bytes::from_static(b"{}"),
        Some(object) if object.starts_with('{') => body.slice_ref(object.as_bytes()),
        Some(list) if list.starts_with('[') => listed(list)?.into(),
        Some(_) => {
            return Err(invalid(
                "arguments must be an object, or a list of {\"name\", \"value\"}",
            ));
        }
    };
    Ok((name.into_owned(), arguments))
}

/// Converts arguments given as a list of names and values to a JSON object.
fn listed(list: &str) -> Result<String, EarlyReply> {
    #[derive(Deserialize)]
    struct Argument<'a> {
        #[serde(borrow)]
        name: &'a RawValue,
        #[serde(borrow)]
        value: &'a RawValue,
    }
    let list: Vec<Argument<'_>> = serde_json::from_str(list)
        .map_err(|_| invalid("arguments must be an object, or a list of {\"name\", \"value\"}"))?;
    if list.len() > ARGUMENTS_MAX {
        return Err(invalid("arguments has more than 1000 entries"));
    }
    let mut names = HashSet::new();
    let mut members = Vec::with_capacity(list.len());
    for argument in &list {
        let name = jsonrpc::string(argument.name)
            .ok_or_else(|| invalid("the name of an argument must be a string"))?;
        members.push(format!("{}:{}", argument.name, argument.value));
        if !names.insert(name) {
            return Err(invalid("an argument is given twice"));
        }
    }
    Ok(format!("{{{}}}", members.join(",")))
}

fn invalid(message: &str) -> EarlyReply {
    EarlyReply::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_arguments",
        message,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(body: &'static str) -> Result<(String, String), u16> {
        match read(&Bytes::from_static(body.as_bytes())) {
            Ok((name, arguments)) => {
                Ok((name, String::from_utf8(arguments.to_vec()).expect("UTF-8")))
            }
            Err(EarlyReply(reply)) => Err(reply.head().status.as_u16()),
        }
    }

    #[test]
    fn arguments_come_as_an_object_or_as_a_list_of_names_and_values() {
        let expected = |arguments: &str| Ok(("t".to_owned(), arguments.to_owned()));
        for (body, arguments) in [
            (r#"{"name":"t","arguments":{"n":1.50}}"#, r#"{"n":1.50}"#),
            (
                r#"{"name":"t","arguments":[{"name":"a","value":"x"},{"value":[1.50],"name":"b"}]}"#,
                r#"{"a":"x","b":[1.50]}"#,
            ),
            (r#"{"name":"t"}"#, "{}"),
            (r#"{"name":"t","arguments":null}"#, "{}"),
            (r#"{"name":"t","arguments":[]}"#, "{}"),
        ] {
            assert_eq!(call(body), expected(arguments), "{body}");
        }
    }

    #[test]
    fn what_is_no_call_says_so() {
        for (body, status) in [
            ("", 400),
            ("nope", 400),
            ("[]", 422),
            ("{}", 422),
            (r#"{"name":1}"#, 422),
            (r#"{"name":"t","name":"u"}"#, 422),
            (r#"{"name":"t","arguments":5}"#, 422),
            (r#"{"name":"t","arguments":["a"]}"#, 422),
            (
                r#"{"name":"t","arguments":[{"name":"a","value":1},{"name":"\u0061","value":2}]}"#,
                422,
            ),
        ] {
            assert_eq!(call(body), Err(status), "{body}");
        }
    }
}
