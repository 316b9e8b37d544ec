//! Formats of REST responses. Each generation of clients gets the same values in its own format (K-21).

use std::borrow::Cow;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use tooldock_sessions::catalogue::ToolEntry;
use tooldock_sessions::profile::RestShape;
use tooldock_workers::registry::Namespace;

use super::json;
use crate::reply::Reply;

/// A tool in a list, before it is written in the format of the client.
pub(super) struct ShapedTool<'a> {
    /// The name under which the list shows the tool.
    pub(super) name: &'a str,
    pub(super) namespace: &'a Namespace,
    pub(super) entry: &'a ToolEntry,
}

/// A tool in the format of version 2. Absent values have no key.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tool<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<Cow<'a, str>>,
    description: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_schema: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<&'a RawValue>,
    filename: &'a str,
    /// The tool's namespace, if the list contains the tools of all namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
}

/// A tool in the format of version 1.
#[derive(Serialize)]
struct ToolV1<'a> {
    name: &'a str,
    description: Cow<'a, str>,
    input_schema: &'a RawValue,
    #[serde(rename = "inputSchema")]
    same_schema: &'a RawValue,
    r#type: &'static str,
    namespace: &'a str,
}

/// A tool in the format of Tool Vault.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IndexedTool<'a> {
    name: &'a str,
    description: Cow<'a, str>,
    input_schema: &'a RawValue,
}

/// Creates the reply with a list of tools. `namespace`: the namespace of all these tools; `None` if they come from several.
pub(super) fn list(shape: RestShape, namespace: Option<&str>, tools: &[ShapedTool<'_>]) -> Reply {
    match shape {
        RestShape::V2 => {
            let tools = tools.iter().map(|tool| Tool {
                name: tool.name,
                title: tool.entry.title(),
                description: tool.entry.description(),
                input_schema: tool.entry.input_schema(),
                output_schema: tool.entry.output_schema(),
                annotations: tool.entry.annotations(),
                filename: tool.entry.filename(),
                namespace: namespace.is_none().then_some(tool.namespace.name.as_str()),
            });
            json(&tools.collect::<Vec<_>>())
        }
        RestShape::V1 => {
            #[derive(Serialize)]
            struct List<'a> {
                namespace: &'a str,
                tools: Vec<ToolV1<'a>>,
            }
            let tools = tools.iter().map(|tool| {
                let schema = input_schema(tool.entry);
                ToolV1 {
                    name: tool.name,
                    description: tool.entry.description(),
                    input_schema: schema,
                    same_schema: schema,
                    r#type: match tool.namespace.is_server() {
                        true => "external",
                        false => "native",
                    },
                    namespace: tool.namespace.name.as_str(),
                }
            });
            json(&List {
                namespace: namespace.unwrap_or("default"),
                tools: tools.collect(),
            })
        }
        RestShape::Vault => index(tools),
    }
}

/// Creates the reply with a list of tools in the format of Tool Vault (EX-31).
pub(super) fn index(tools: &[ShapedTool<'_>]) -> Reply {
    #[derive(Serialize)]
    struct Index<'a> {
        tools: Vec<IndexedTool<'a>>,
    }
    let tools = tools.iter().map(|tool| IndexedTool {
        name: tool.name,
        description: tool.entry.description(),
        input_schema: input_schema(tool.entry),
    });
    json(&Index {
        tools: tools.collect(),
    })
}

/// Returns the response body with the value that a tool returned. `tool` is the tool's name in the client's request.
pub(super) fn value(shape: RestShape, tool: &str, value: Bytes) -> Bytes {
    match shape {
        RestShape::V2 => value,
        RestShape::V1 => {
            let tool = serde_json::Value::from(tool).to_string();
            let begin = [b"{\"tool\":", tool.as_bytes(), b",\"result\":"].concat();
            [&begin, or_null(&value), b"}"].concat().into()
        }
        RestShape::Vault => [b"{\"result\":", or_null(&value), b",\"isError\":false}"]
            .concat()
            .into(),
    }
}

fn or_null(value: &[u8]) -> &[u8] {
    match value.trim_ascii() {
        [] => b"null",
        value => value,
    }
}

fn input_schema(tool: &ToolEntry) -> &RawValue {
    let any = || serde_json::from_str(r#"{"type":"object"}"#).expect("an object is JSON");
    tool.input_schema().unwrap_or_else(any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_keeps_its_spelling_in_every_shape() {
        for (shape, expected) in [
            (RestShape::V2, "1.50"),
            (RestShape::V1, r#"{"tool":"a\"b","result":1.50}"#),
            (RestShape::Vault, r#"{"result":1.50,"isError":false}"#),
        ] {
            let shaped = value(shape, "a\"b", Bytes::from_static(b"1.50"));
            assert_eq!(shaped, expected.as_bytes());
        }
        let nothing = value(RestShape::V1, "t", Bytes::new());
        assert_eq!(&nothing[..], br#"{"tool":"t","result":null}"#);
    }
}
