//! Parameters of an operation in the path, query, headers and cookies of its requests.

use serde_json::{Value, json};

use crate::document::Document;
use crate::encode::Style;
use crate::names::{self, TakenNames};
use crate::schema::SchemaReader;

/// Headers that no argument sets, in lower case: OpenAPI reserves them for the HTTP client, or the gateway writes them.
const RESERVED_HEADERS: [&str; 18] = [
    "accept",
    "content-type",
    "authorization",
    "host",
    "content-length",
    "x-request-id",
    "traceparent",
    "tracestate",
    "connection",
    "proxy-connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
];
/// Maximum number of parameters that a document describes for an operation. Operations with more become no tools.
const PARAMETERS_MAX: usize = 500;
/// Maximum length of a parameter's name, in bytes. Parameters with longer names are left out.
const NAME_MAX: usize = 500;
/// Maximum number of schemas that are inspected for the type of a parameter.
const TYPES_MAX: usize = 8;

/// Place of a parameter in the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Path,
    Query,
    Header,
    Cookie,
}

/// A parameter of a request, and the argument of the tool that sets it.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    /// Name of the argument.
    pub(crate) argument: String,
    /// Name of the parameter in the request.
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) style: Style,
    pub(crate) explode: bool,
    pub(crate) may_be_reserved: bool,
    /// True if the value is sent as JSON; false if it is sent in the parameter's style.
    pub(crate) is_json: bool,
    pub(crate) is_required: bool,
    /// True if the parameter's schema permits objects, whose members may become parameters of their own in the request; false if
    /// an object is refused, unless the parameter has the style `deepObject` or is sent as JSON.
    pub(crate) takes_object: bool,
}

/// A parameter, and its definition in the document; `None` for a placeholder of the path that the document does not define.
pub(crate) type ReadParameter<'d> = (Parameter, Option<&'d Value>);

/// Returns the names in braces in a path. The document need not describe each of them as a parameter.
fn names_in(path: &str) -> impl Iterator<Item = &str> {
    let parts = path.split('{').skip(1);
    parts.filter_map(|part| Some(part.split_once('}')?.0))
}

/// Reads the parameters of an operation. `shared`: the parameters of its path item; `own`: the parameters of the operation, which
/// replace shared ones of the same name and place. Header parameters whose name is in `hidden` are left out, and all cookie
/// parameters if `hidden` contains `cookie`: the configuration decides about these headers.
///
/// # Errors
///
/// When there are too many parameters, or a reference to a parameter leads nowhere. The text is worded to follow the operation's method and path.
pub(crate) fn read<'d>(
    document: &'d Document,
    path: &str,
    shared: Option<&'d Value>,
    own: Option<&'d Value>,
    hidden: &[String],
    taken: &mut TakenNames,
) -> Result<Vec<ReadParameter<'d>>, String> {
    let lists = [shared, own]
        .into_iter()
        .flatten()
        .filter_map(Value::as_array);
    let is_hidden = |parameter: &Parameter| {
        let name = match parameter.place {
            Place::Header => parameter.name.to_ascii_lowercase(),
            Place::Cookie => "cookie".to_owned(),
            _ => return false,
        };
        RESERVED_HEADERS.contains(&&*name) || hidden.contains(&name)
    };
    let mut found: Vec<ReadParameter<'d>> = Vec::new();
    for listed in lists.flatten() {
        let Some(source) = document.resolve(listed) else {
            return Err(
                "has a parameter that refers to something outside of the document".to_owned(),
            );
        };
        let parameter = parameter_of(document, source);
        let Some(parameter) = parameter.filter(|it| !is_hidden(it)) else {
            continue;
        };
        let same =
            |(it, _): &ReadParameter<'_>| it.name == parameter.name && it.place == parameter.place;
        match found.iter().position(same) {
            Some(at) => found[at] = (parameter, Some(source)),
            None => found.push((parameter, Some(source))),
        }
        if found.len() > PARAMETERS_MAX {
            return Err(format!("has more than {PARAMETERS_MAX} parameters"));
        }
    }
    for name in names_in(path) {
        let is_it = |it: &Parameter| it.place == Place::Path && it.name == name;
        if !found.iter().any(|(it, _)| is_it(it)) {
            let source = json!({ "name": name, "in": "path" });
            found.extend(parameter_of(document, &source).map(|it| (it, None)));
        }
    }
    for (parameter, _) in &mut found {
        parameter.argument = taken.unique(&names::safe(&parameter.name));
    }
    Ok(found)
}

/// Returns true if a schema permits objects. `left`: number of schemas that may still be inspected.
fn takes_object(document: &Document, schema: &Value, left: &mut usize) -> bool {
    let Some(less) = left.checked_sub(1) else {
        return false;
    };
    *left = less;
    let Some(schema) = document.resolve(schema) else {
        return false;
    };
    let parts = ["allOf", "anyOf", "oneOf"].into_iter();
    let mut parts = parts
        .filter_map(|key| schema.get(key)?.as_array())
        .flatten();
    match schema.get("type") {
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|it| it == "object"),
        _ if schema.get("properties").is_some() => true,
        _ => parts.any(|it| takes_object(document, it, left)),
    }
}

/// Returns true if a schema in the document permits objects; false if there is no schema.
pub(crate) fn is_object(document: &Document, schema: Option<&Value>) -> bool {
    let mut left = TYPES_MAX;
    schema.is_some_and(|it| takes_object(document, it, &mut left))
}

/// Reads a parameter, without the name of its argument; `None` for a malformed parameter, or one with too long a name.
fn parameter_of(document: &Document, source: &Value) -> Option<Parameter> {
    let place = match source.get("in")?.as_str()? {
        "path" => Place::Path,
        "query" => Place::Query,
        "header" => Place::Header,
        "cookie" => Place::Cookie,
        _ => return None,
    };
    let flag = |key: &str| source.get(key).and_then(Value::as_bool);
    let style = source
        .get("style")
        .and_then(Value::as_str)
        .and_then(Style::of);
    let style = style.unwrap_or(match place {
        Place::Path | Place::Header => Style::Simple,
        Place::Query | Place::Cookie => Style::Form,
    });
    let name = source.get("name")?.as_str()?;
    if name.len() > NAME_MAX {
        return None;
    }
    Some(Parameter {
        argument: String::new(),
        name: name.to_owned(),
        place,
        style,
        explode: flag("explode").unwrap_or(style == Style::Form),
        may_be_reserved: flag("allowReserved").unwrap_or_default(),
        is_json: source.get("schema").is_none() && source.get("content").is_some(),
        is_required: place == Place::Path || flag("required").unwrap_or_default(),
        takes_object: is_object(document, source.get("schema")),
    })
}

/// Returns the schema of a parameter's argument. `source`: the parameter's definition in the document; `None` for a placeholder
/// of the path that the document does not define.
pub(crate) fn schema(source: Option<&Value>, reader: &mut SchemaReader<'_>) -> Value {
    let Some(source) = source else {
        return json!({ "type": "string" });
    };
    let content = source.get("content").and_then(Value::as_object);
    let in_content = content.and_then(|it| it.values().next()?.get("schema"));
    let schema = source.get("schema").or(in_content);
    let mut schema = schema.map_or_else(|| json!({}), |it| reader.converted(it));
    let text = source.get("description").and_then(Value::as_str);
    if let (Some(text), Value::Object(members)) = (text, &mut schema)
        && reader.charge(text.len())
    {
        members.insert("description".into(), text.trim().into());
    }
    schema
}

/// Returns an example of a parameter or a body; `None` if the document has none. `source`: the parameter, or the body's media
/// type.
pub(crate) fn example<'d>(document: &'d Document, source: &'d Value) -> Option<&'d Value> {
    let first = |it: &'d Value| {
        document
            .resolve(it.as_object()?.values().next()?)?
            .get("value")
    };
    let own = source.get("example");
    own.or_else(|| source.get("examples").and_then(first))
}
