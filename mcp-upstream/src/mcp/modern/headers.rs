//! Checks that headers that mirror a message's body agree with the body (SEP-2243).
//!
//! An intermediary may have routed or limited by these headers, so a difference is refused, not corrected. Headers for
//! parameters that the called tool's schema does not mark are ignored.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_sessions::catalogue::ToolEntry;

use crate::jsonrpc::{self, Key, Members};
use crate::mcp::head::{Carrier, McpHead, MirroredHeaders};
use crate::protocol::mirrored::decode;

mod number;

/// Maximum depth of nested `properties` that are searched for mirrored parameters.
const MAX_DEPTH: usize = 16;

/// Keys of a property's schema that concern headers.
#[derive(Default, Deserialize)]
struct Property<'a> {
    #[serde(
        borrow,
        default,
        rename = "x-mcp-header",
        deserialize_with = "jsonrpc::present"
    )]
    header: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    properties: Option<&'a RawValue>,
}

/// Compares a version header, if sent, with the version in the body. Returns the difference; `None` if they agree.
pub(super) fn version_fault(head: &McpHead, version: &str) -> Option<Cow<'static, str>> {
    let sent = head.version.as_deref()?;
    (trim(sent) != version)
        .then(|| "MCP-Protocol-Version is not the version in params._meta".into())
}

/// Compares the mirrored headers of a request, except the version header, with its body. Headers of a tool's parameters are found
/// by the tool's input schema, if the caller may see the tool. Returns the first difference; `None` if headers and body agree, or
/// if the message arrived without HTTP headers.
pub(super) fn fault(
    head: &McpHead,
    tool: Option<&ToolEntry>,
    method: &str,
    members: &Members<'_>,
) -> Option<Cow<'static, str>> {
    if head.carrier == Carrier::Lines {
        return None;
    }
    let none = MirroredHeaders::default();
    let headers = head.mirrored.as_deref().unwrap_or(&none);
    if let Some(name) = &headers.duplicate {
        return Some(format!("{name} is there more than once").into());
    }
    match headers.method.as_deref().map(trim) {
        None => return Some("Mcp-Method is missing".into()),
        Some(sent) if sent != method => {
            return Some("Mcp-Method is not the method of the body".into());
        }
        Some(_) => {}
    }
    let named = match method {
        "tools/call" | "prompts/get" => members.get(Key::Name),
        "resources/read" => members.get(Key::Uri),
        "tasks/get" | "tasks/update" | "tasks/cancel" => members.get(Key::TaskId),
        _ => None,
    };
    // A name that is not a string is refused later, by the handler of the method.
    let named = named.and_then(jsonrpc::string)?;
    match &headers.name {
        None => return Some("Mcp-Name is missing".into()),
        Some(sent) if decode(trim(sent)).as_deref() != Some(&*named) => {
            return Some("Mcp-Name is not the name in the body".into());
        }
        Some(_) => {}
    }
    if method != "tools/call" {
        return None;
    }
    let schema = tool?.input_schema()?.get();
    // Few tools mirror parameters: a schema without this text is not parsed.
    memchr::memmem::find(schema.as_bytes(), b"x-mcp-header")?;
    let schema: Property<'_> = serde_json::from_str(schema).ok()?;
    parameter_fault(
        headers,
        schema.properties?,
        members.get(Key::Arguments),
        MAX_DEPTH,
    )
}

/// Walks the `properties` of a schema and the arguments that they describe in parallel.
fn parameter_fault(
    headers: &MirroredHeaders,
    properties: &RawValue,
    arguments: Option<&RawValue>,
    depth: usize,
) -> Option<Cow<'static, str>> {
    let depth = depth.checked_sub(1)?;
    let given = arguments.and_then(jsonrpc::entries);
    // If the object has a key twice or cannot be parsed, the server might read another value than an intermediary did.
    let unclear = given.is_none() && arguments.is_some_and(|it| it.get().starts_with('{'));
    let given = given.unwrap_or_default();
    for (key, property) in jsonrpc::entries(properties)? {
        let Ok(property) = serde_json::from_str::<Property<'_>>(property.get()) else {
            continue;
        };
        let value = given.iter().find(|(own, _)| *own == key);
        let value = match unclear {
            true => arguments,
            false => value.map(|(_, value)| *value),
        };
        if let Some(header) = property.header.and_then(jsonrpc::string) {
            if unclear {
                return Some(
                    format!(
                        "Mcp-Param-{header} cannot be compared: the arguments have a key twice, or one that is no text"
                    )
                    .into(),
                );
            }
            let lower = header.to_ascii_lowercase();
            let sent = headers.params.iter().find(|(name, _)| *name == lower);
            if let Some(reason) = value_fault(value, sent.map(|(_, sent)| sent.as_str())) {
                return Some(format!("Mcp-Param-{header} {reason}").into());
            }
        }
        if let Some(nested) = property.properties
            && let Some(reason) = parameter_fault(headers, nested, value, depth)
        {
            return Some(reason);
        }
    }
    None
}

/// Compares a parameter's value with its header. Returns the difference; `None` if they agree.
fn value_fault(value: Option<&RawValue>, sent: Option<&str>) -> Option<&'static str> {
    let value = value.map(RawValue::get).filter(|value| *value != "null");
    let (value, sent) = match (value, sent) {
        (None, None) => return None,
        (None, Some(_)) => return Some("has no value in the body"),
        (Some(_), None) => return Some("is missing"),
        (Some(value), Some(sent)) => (value, trim(sent)),
    };
    let Some(sent) = decode(sent) else {
        return Some("is not encoded correctly");
    };
    let equal = match value.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<Cow<'_, str>>(value).is_ok_and(|own| own == sent),
        Some(b't' | b'f') => value == sent,
        Some(b'-' | b'0'..=b'9') => number::equal(value, &sent),
        _ => false,
    };
    (!equal).then_some("is not the value in the body")
}

/// Removes the white space around a header's value, which is not part of the value (RFC 9110 §5.5).
fn trim(value: &str) -> &str {
    value.trim_matches([' ', '\t'])
}

#[cfg(test)]
mod tests;
