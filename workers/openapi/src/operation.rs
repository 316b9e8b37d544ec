//! An operation of a document that is served as a tool.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::body::OperationBody;
use crate::budget::{Budget, Spent};
use crate::document::Document;
use crate::encode;
use crate::names::TakenNames;
use crate::output::OutputSchema;
use crate::parameter::{self, Parameter};
use crate::schema::{Direction, SchemaError, SchemaReader};
use crate::tool::{self, ToolParts};

/// Cost of a listed parameter in the document's budget, in bytes: the references of its schema are followed.
const PARAMETER_COST: usize = 16 * 1024;
/// Cost of a media type of a body or a response in the budget of the document, in bytes.
const MEDIA_TYPE_COST: usize = 64;
/// Maximum size of a tool's input schema, in bytes.
const INPUT_MAX: usize = 256 * 1024;

/// An operation that is served as a tool.
#[derive(Debug)]
pub struct Operation {
    pub(crate) document: Arc<Document>,
    pub(crate) name: String,
    /// Method in upper case.
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) body: Option<OperationBody>,
    pub(crate) output: Option<OutputSchema>,
    tool: Value,
}

/// An operation in its document, before it is read.
pub(crate) struct Source<'d> {
    pub(crate) name: String,
    pub(crate) method: &'static str,
    pub(crate) path: &'d str,
    /// The path item: the value of the path in the document, which may have parameters for all operations of the path.
    pub(crate) item: &'d Value,
    pub(crate) operation: &'d Value,
}

impl Operation {
    /// Reads an operation. `hidden`: names of headers that are no arguments, in lower case.
    ///
    /// # Errors
    ///
    /// When the operation cannot be a tool. The text is worded to follow the operation's method and path.
    pub(crate) fn read(
        document: &Arc<Document>,
        source: Source<'_>,
        hidden: &[String],
        budget: &Budget,
    ) -> Result<Self, String> {
        let said = |error: SchemaError| error.to_string();
        let (shared, own) = (
            source.item.get("parameters"),
            source.operation.get("parameters"),
        );
        let spent = |_: Spent| SchemaError::Spent.to_string();
        let parts = [shared, Some(source.operation)].into_iter().flatten();
        parts
            .into_iter()
            .try_for_each(|it| budget.charge_value(it))
            .map_err(spent)?;
        let listed = [shared, own].into_iter().flatten();
        let listed: usize = listed.filter_map(|it| Some(it.as_array()?.len())).sum();
        budget.charge(listed * PARAMETER_COST).map_err(spent)?;
        for key in ["requestBody", "responses"] {
            let media_types = media_types(document, source.operation.get(key));
            budget
                .charge(media_types * MEDIA_TYPE_COST)
                .map_err(spent)?;
        }
        let mut taken = TakenNames::default();
        let parameters = parameter::read(document, source.path, shared, own, hidden, &mut taken)?;
        let (parameters, sources): (Vec<_>, Vec<_>) = parameters.into_iter().unzip();
        let method = source.method.to_ascii_lowercase();
        let mut body = OperationBody::read(document, source.path, &method, source.operation);
        let read = |reader: &mut SchemaReader<'_>| {
            let mut properties = Map::new();
            let mut required = Vec::new();
            for (parameter, source) in parameters.iter().zip(&sources) {
                let schema = parameter::schema(*source, reader);
                properties.insert(parameter.argument.clone(), schema);
                required.extend(parameter.is_required.then(|| parameter.argument.clone()));
            }
            let arguments = body.as_ref().map(|body| {
                let schemas = body.schemas(reader, &taken);
                properties.extend(schemas.properties);
                required.extend(schemas.required);
                schemas.arguments
            });
            let mut schema = json!({
                "type": "object", "properties": properties, "additionalProperties": false,
            });
            if !required.is_empty() {
                schema["required"] = json!(required);
            }
            (schema, arguments)
        };
        let read = SchemaReader::with(document, Direction::Request, budget, read);
        let ((mut input, arguments), definitions) = read.map_err(said)?;
        if !definitions.is_empty() {
            input["$defs"] = Value::Object(definitions);
        }
        let size = input.to_string().len();
        if size > INPUT_MAX {
            return Err(format!(
                "has an input schema of {size} bytes, more than {INPUT_MAX}"
            ));
        }
        if let (Some(body), Some(arguments)) = (&mut body, arguments) {
            body.arguments = arguments;
        }
        let output = output(document, source.operation, budget);
        let parts = ToolParts {
            document,
            name: &source.name,
            method: source.method,
            path: source.path,
            parameters: &parameters,
            sources: &sources,
            body: body.as_ref(),
            output: output.as_ref(),
        };
        let tool = tool::definition(&parts, source.operation, input);
        Ok(Self {
            document: Arc::clone(document),
            name: source.name,
            method: source.method.to_owned(),
            path: source.path.to_owned(),
            parameters,
            body,
            output,
            tool,
        })
    }

    /// Returns the name of the tool.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the definition of the tool for `tools/list`.
    pub fn tool(&self) -> &Value {
        &self.tool
    }
}

/// Returns the number of media types of a request body or of all responses. `value`: the member `requestBody` or `responses`.
fn media_types(document: &Document, value: Option<&Value>) -> usize {
    let Some(value) = value.and_then(|it| document.resolve(it)) else {
        return 0;
    };
    let content = |it: &Value| it.get("content")?.as_object().map(Map::len);
    let responses = value.as_object().into_iter().flat_map(Map::values);
    let responses = responses.filter_map(|it| content(document.resolve(it)?));
    content(value).unwrap_or_default() + responses.sum::<usize>()
}

/// Returns the output schema of an operation, from the first response with a status 2xx and a JSON schema. `None` if there is no
/// such response, or if the schema cannot be made self-contained.
fn output(document: &Document, operation: &Value, budget: &Budget) -> Option<OutputSchema> {
    let responses = operation.get("responses")?.as_object()?;
    let successful = responses
        .iter()
        .filter(|(status, _)| status.starts_with('2'));
    let schema = successful
        .filter_map(|(_, response)| document.resolve(response)?.get("content")?.as_object())
        .flat_map(|content| content.iter())
        .filter(|(media_type, _)| is_json(media_type))
        .find_map(|(_, media)| media.get("schema"))?;
    let read = SchemaReader::with(document, Direction::Response, budget, |it| {
        crate::schema::merged(it.opened(schema))
    });
    let (schema, definitions) = read.ok()?;
    Some(OutputSchema::new(&schema, &definitions))
}

/// Returns true for a media type whose content is read as JSON, including `*/*`.
pub(crate) fn is_json(media_type: &str) -> bool {
    let plain = encode::plain_type(media_type);
    plain == "application/json"
        || plain == "text/json"
        || plain.ends_with("+json")
        || plain == "*/*"
}
