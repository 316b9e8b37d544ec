//! Conversion of documents of version 2.0 (Swagger) to version 3.0. Only members that tools need are converted.

use serde_json::{Map, Value, json};

use crate::budget::{Budget, Spent};

/// Methods of operations in a path item.
const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];
/// Keys that are members of a parameter in version 2.0, and members of the parameter's schema in version 3.0.
const SCHEMA_KEYS: [&str; 18] = [
    "type",
    "format",
    "items",
    "default",
    "enum",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "x-example",
    "example",
];

/// Maximum size of all values that are copied during the conversion of a document, in bytes. Shared parameters, and the schemas
/// of several media types, are copied more than once.
const COPIES_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of media types of a body or a response. Further ones are left out.
const MEDIA_TYPES_MAX: usize = 8;
/// Maximum length of a media type, in bytes. Longer ones are left out.
const MEDIA_TYPE_MAX: usize = 200;

/// Converts a document of version 2.0 to version 3.0. Malformed members are left out.
///
/// # Errors
///
/// When the copied values would be larger than [`COPIES_MAX`].
pub(crate) fn converted(mut root: Value) -> Result<Value, Spent> {
    let copies = Budget::new(COPIES_MAX);
    let consumes = media_types(root.get("consumes"), None);
    let produces = media_types(root.get("produces"), None);
    let servers = servers(&root);
    let mut responses = taken(&mut root, "responses");
    for response in responses.values_mut() {
        *response = converted_response(response.take(), &produces, &copies)?;
    }
    let originals = taken(&mut root, "parameters");
    let mut paths = taken(&mut root, "paths");
    for item in paths.values_mut() {
        let shared = item.as_object_mut().and_then(|it| it.remove("parameters"));
        let shared = shared.as_ref().and_then(Value::as_array);
        for method in METHODS {
            let Some(operation) = item.get_mut(method).filter(|it| it.is_object()) else {
                continue;
            };
            let own = operation.get_mut("parameters").map(Value::take);
            let own = own.as_ref().and_then(Value::as_array);
            let all = shared.into_iter().chain(own).flatten();
            let all: Vec<_> = all.map(|it| original(it, &originals)).collect();
            let consumes = media_types(operation.get("consumes"), Some(&consumes));
            let produces = media_types(operation.get("produces"), Some(&produces));
            convert_parameters(operation, &all, &consumes, &copies)?;
            if let Some(responses) = operation
                .get_mut("responses")
                .and_then(Value::as_object_mut)
            {
                for response in responses.values_mut() {
                    *response = converted_response(response.take(), &produces, &copies)?;
                }
            }
        }
    }
    let schemas = taken(&mut root, "definitions");
    let mut root = json!({
        "openapi": "3.0.0",
        "info": root.get_mut("info").map(Value::take),
        "servers": servers,
        "paths": paths,
        "components": { "schemas": schemas, "responses": responses },
    });
    move_references(&mut root);
    Ok(root)
}

/// Returns the list `servers` of version 3.0, with a single URL from `schemes`, `host` and `basePath`. The URL is relative if
/// there is no host.
fn servers(root: &Value) -> Value {
    let text = |key: &str| root.get(key).and_then(Value::as_str);
    let base = text("basePath").unwrap_or("/");
    let schemes = root.get("schemes").and_then(Value::as_array);
    let has = |name: &str| schemes.is_some_and(|it| it.iter().any(|it| it == name));
    let url = match text("host") {
        None => base.to_owned(),
        Some(host) if has("http") && !has("https") => format!("http://{host}{base}"),
        Some(host) => format!("https://{host}{base}"),
    };
    json!([{ "url": url }])
}

/// Takes the map at `key` out of the document. Returns an empty map if there is none.
fn taken(root: &mut Value, key: &str) -> Map<String, Value> {
    match root.get_mut(key).map(Value::take) {
        Some(Value::Object(members)) => members,
        _ => Map::new(),
    }
}

/// Returns the media types in `value`, the list `consumes` or `produces` of an operation or the document. `default`: the media
/// types of the document, for an operation without media types; JSON if there are none at all.
fn media_types(value: Option<&Value>, default: Option<&[String]>) -> Vec<String> {
    let own = value.and_then(Value::as_array).into_iter().flatten();
    let own = own
        .filter_map(Value::as_str)
        .filter(|it| it.len() <= MEDIA_TYPE_MAX);
    let own: Vec<_> = own.take(MEDIA_TYPES_MAX).map(str::to_owned).collect();
    match (own.is_empty(), default) {
        (false, _) => own,
        (true, Some(default)) => default.to_vec(),
        (true, None) => vec!["application/json".to_owned()],
    }
}

/// Returns the parameter that a reference to the document's shared parameters (`originals`) leads to, or `parameter` itself.
fn original<'a>(parameter: &'a Value, originals: &'a Map<String, Value>) -> &'a Value {
    let name = parameter.get("$ref").and_then(Value::as_str);
    let name = name.and_then(|it| it.strip_prefix("#/parameters/"));
    name.and_then(|name| originals.get(name))
        .unwrap_or(parameter)
}

/// Replaces the parameters of an operation by parameters of version 3.0. Parameters in the body or a form become the request
/// body.
fn convert_parameters(
    operation: &mut Value,
    all: &[&Value],
    consumes: &[String],
    copies: &Budget,
) -> Result<(), Spent> {
    let (mut parameters, mut required) = (Vec::new(), Vec::new());
    let (mut fields, mut encoding) = (Map::new(), Map::new());
    let mut body = None;
    let mut has_file = false;
    for parameter in all {
        let name = parameter
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let is_required = parameter.get("required") == Some(&Value::Bool(true));
        match parameter.get("in").and_then(Value::as_str) {
            Some("body") => body = Some(parameter),
            Some("formData") => {
                copies.charge(name.len())?;
                has_file |= parameter.get("type").is_some_and(|it| it == "file");
                let mut field = schema(parameter, copies)?;
                if let (Some(text), Some(field)) =
                    (parameter.get("description"), field.as_object_mut())
                {
                    field.insert("description".into(), copies.copied(text)?);
                }
                fields.insert(name.to_owned(), field);
                if parameter.get("type").is_some_and(|it| it == "array") {
                    let (style, explode) = style(parameter, true);
                    let style = json!({ "style": style, "explode": explode });
                    encoding.insert(name.to_owned(), style);
                }
                if is_required {
                    required.push(Value::from(name));
                }
            }
            _ => parameters.push(converted_parameter(parameter, copies)?),
        }
    }
    let Some(operation) = operation.as_object_mut() else {
        return Ok(());
    };
    operation.insert("parameters".into(), parameters.into());
    if let Some(body) = body {
        let mut content = Map::new();
        for media_type in consumes {
            let schema = body.get("schema").map(|it| copies.copied(it)).transpose()?;
            content.insert(media_type.clone(), json!({ "schema": schema }));
        }
        let text = body.get("description").map(|it| copies.copied(it));
        let request = json!({
            "description": text.transpose()?,
            "required": body.get("required") == Some(&Value::Bool(true)),
            "content": content,
        });
        operation.insert("requestBody".into(), request);
    } else if !fields.is_empty() {
        let has_parts = has_file || consumes.iter().any(|it| it == "multipart/form-data");
        let media_type = match has_parts {
            true => "multipart/form-data",
            false => "application/x-www-form-urlencoded",
        };
        let is_required = !required.is_empty();
        let schema = json!({ "type": "object", "properties": fields, "required": required });
        let request = json!({
            "required": is_required,
            "content": { media_type: { "schema": schema, "encoding": encoding } },
        });
        operation.insert("requestBody".into(), request);
    }
    Ok(())
}

/// Returns the schema of a parameter: the members of the parameter that belong to a schema in version 3.0.
fn schema(parameter: &Value, copies: &Budget) -> Result<Value, Spent> {
    let mut found = Map::new();
    for key in SCHEMA_KEYS {
        if let Some(value) = parameter.get(key) {
            found.insert(key.to_owned(), copies.copied(value)?);
        }
    }
    if found.get("type").is_some_and(|it| it == "file") {
        found.insert("type".into(), "string".into());
        found.insert("format".into(), "binary".into());
    }
    Ok(Value::Object(found))
}

/// Returns the style of a parameter, and true if a list becomes a pair for each item, false if the items are joined. `is_pair`:
/// true in queries and forms, false in paths and headers.
fn style(parameter: &Value, is_pair: bool) -> (&'static str, bool) {
    let format = parameter.get("collectionFormat").and_then(Value::as_str);
    match format {
        Some("multi") => ("form", true),
        Some("ssv") if is_pair => ("spaceDelimited", false),
        Some("pipes") if is_pair => ("pipeDelimited", false),
        _ if is_pair => ("form", false),
        _ => ("simple", false),
    }
}

/// Converts a parameter in a path, query or header.
fn converted_parameter(parameter: &Value, copies: &Budget) -> Result<Value, Spent> {
    let is_query = parameter.get("in").is_some_and(|it| it == "query");
    let (style, explode) = style(parameter, is_query);
    let schema = schema(parameter, copies)?;
    let mut converted = json!({ "schema": schema, "style": style, "explode": explode });
    for key in ["name", "in", "description", "required"] {
        if let Some(value) = parameter.get(key) {
            converted[key] = copies.copied(value)?;
        }
    }
    Ok(converted)
}

/// Converts a response: its schema becomes the schema of each media type in `produces`.
fn converted_response(
    response: Value,
    produces: &[String],
    copies: &Budget,
) -> Result<Value, Spent> {
    let Some(schema) = response.get("schema") else {
        return Ok(response);
    };
    let mut content = Map::new();
    for media_type in produces {
        let schema = copies.copied(schema)?;
        content.insert(media_type.clone(), json!({ "schema": schema }));
    }
    Ok(json!({ "content": content }))
}

/// Rewrites the references of a version 2.0 document to their places in version 3.0.
fn move_references(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                match member {
                    Value::String(text) if key == "$ref" => {
                        for (old, new) in [
                            ("#/definitions/", "#/components/schemas/"),
                            ("#/responses/", "#/components/responses/"),
                        ] {
                            if let Some(rest) = text.strip_prefix(old) {
                                *text = format!("{new}{rest}");
                            }
                        }
                    }
                    member => move_references(member),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(move_references),
        _ => {}
    }
}
