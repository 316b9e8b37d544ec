//! The body of an operation's requests, and the arguments that make it up.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::budget::Budget;
use crate::document::Document;
use crate::encode::{self, BoundedText, Field, Style};
use crate::multipart::{self, FormPart};
use crate::names::{self, TakenNames};
use crate::parameter;
use crate::schema::{SchemaReader, is_file, merged};

/// Name of the argument for a whole body, if its members are no arguments of their own.
const BODY: &str = "body";
/// Maximum length of a body's description, in characters. Longer ones are cut.
const DESCRIPTION_MAX: usize = 2_000;
/// Maximum size of a body in `application/x-www-form-urlencoded`, and of the heads of all parts in `multipart/form-data`, in
/// bytes.
const FORM_MAX: usize = 4 * 1024 * 1024;
/// Estimated size of the head of a part in `multipart/form-data`, without the part's name, in bytes.
const PART_COST: usize = 64;
const TOO_LARGE: &str = "the body is too large";
/// Maximum length of a media type, in bytes. Longer media types are ignored.
const MEDIA_TYPE_MAX: usize = 200;

/// Encoding of a body, chosen by its media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Json,
    Form,
    Multipart,
    /// A string, sent as it is.
    Text,
    /// Bytes, given as base64.
    Bytes,
}

/// The body of an operation's requests.
#[derive(Debug, Clone)]
pub(crate) struct OperationBody {
    media_type: String,
    encoding: Encoding,
    pub(crate) is_required: bool,
    /// Path of the operation, key of the operation in its path item, and key of the media type in the body's `content`. They lead
    /// to the media type object in the document, which is not copied: many operations may refer to the same large object.
    place: [String; 3],
    description: Option<String>,
    pub(crate) arguments: BodyArguments,
}

/// Arguments that make up a body.
#[derive(Debug, Clone)]
pub(crate) enum BodyArguments {
    /// The members of the body by the names of their arguments: each member is an argument of its own.
    Members(BTreeMap<String, BodyMember>),
    /// Name of the single argument that is the whole body.
    Whole(String),
}

/// A member of a body that is an argument of its own.
#[derive(Debug, Clone)]
pub(crate) struct BodyMember {
    /// Name of the member.
    pub(crate) name: String,
    is_required: bool,
    /// True if `null` is sent as the member's value; false if a member that is `null` is left out.
    is_nullable: bool,
}

/// Schemas of the arguments that make up a body.
pub(crate) struct BodySchemas {
    pub(crate) properties: Map<String, Value>,
    pub(crate) required: Vec<String>,
    pub(crate) arguments: BodyArguments,
}

impl OperationBody {
    /// Reads the body of an operation; `None` if the operation has no body of a usable media type, or only an empty object as
    /// body. `method`: the key of the operation in its path item.
    pub(crate) fn read(
        document: &Document,
        path: &str,
        method: &str,
        operation: &Value,
    ) -> Option<Self> {
        let request = document.resolve(operation.get("requestBody")?)?;
        let content = request.get("content")?.as_object()?;
        let encoding = |media_type: &str| {
            let plain = encode::plain_type(media_type);
            match plain.as_str() {
                "application/json" | "*/*" | "application/*" => (0, Encoding::Json),
                json if json.ends_with("+json") || json == "text/json" => (1, Encoding::Json),
                "multipart/form-data" => (2, Encoding::Multipart),
                "application/x-www-form-urlencoded" => (3, Encoding::Form),
                text if text.starts_with("text/") || text.ends_with("xml") => (4, Encoding::Text),
                _ => (5, Encoding::Bytes),
            }
        };
        let usable = content.iter().filter(|(it, _)| it.len() <= MEDIA_TYPE_MAX);
        let (media_type, media) = usable.min_by_key(|(it, _)| encoding(it).0)?;
        let place = [path, method, media_type].map(str::to_owned);
        let encoding = encoding(media_type).1;
        if media.get("schema").is_some_and(is_empty) {
            return None;
        }
        let media_type = match media_type.contains('*') {
            true if encoding == Encoding::Json => "application/json".to_owned(),
            true => "application/octet-stream".to_owned(),
            false => media_type.clone(),
        };
        let text = request.get("description").and_then(Value::as_str);
        Some(Self {
            media_type,
            encoding,
            is_required: request
                .get("required")
                .and_then(Value::as_bool)
                .unwrap_or_default(),
            place,
            description: text.map(|it| it.trim().chars().take(DESCRIPTION_MAX).collect()),
            arguments: BodyArguments::Whole(BODY.to_owned()),
        })
    }

    /// Returns the media type object of the body in the document, with `schema` and `encoding`.
    fn media<'d>(&self, document: &'d Document) -> Option<&'d Value> {
        let [path, method, media_type] = &self.place;
        let item = document.resolve(document.member("paths")?.get(path)?)?;
        let request = document.resolve(item.get(method)?.get("requestBody")?)?;
        request.get("content")?.get(media_type)
    }

    /// Converts the schemas of the body's arguments. Members become arguments of their own if the body is an object without
    /// further members, no member has a name in `taken`, and an optional body has no required members.
    pub(crate) fn schemas(&self, reader: &mut SchemaReader<'_>, taken: &TakenNames) -> BodySchemas {
        let media = self.media(reader.document());
        let source = media.and_then(|it| it.get("schema"));
        reader.files_are_base64(self.encoding == Encoding::Multipart);
        let schema = source.map_or_else(|| json!({}), |it| merged(reader.opened(it)));
        if matches!(self.encoding, Encoding::Text | Encoding::Bytes) {
            let text = match self.encoding {
                Encoding::Text => format!("Text of the type {}.", self.media_type),
                _ => format!("Content of the type {}, as base64.", self.media_type),
            };
            return self.whole(json!({ "type": "string", "description": text }), taken);
        }
        self.members(&schema, taken)
            .unwrap_or_else(|| self.whole(schema, taken))
    }

    /// Returns the schemas for a body that is a single argument.
    fn whole(&self, mut schema: Value, taken: &TakenNames) -> BodySchemas {
        let name = taken.clone().unique(BODY);
        if let (Some(text), Value::Object(members)) = (&self.description, &mut schema) {
            members
                .entry("description")
                .or_insert_with(|| text.as_str().into());
        }
        BodySchemas {
            properties: Map::from_iter([(name.clone(), schema)]),
            required: self.is_required.then(|| name.clone()).into_iter().collect(),
            arguments: BodyArguments::Whole(name),
        }
    }

    /// Returns the schemas for a body whose members are arguments; `None` if the body must be a single argument.
    fn members(&self, schema: &Value, taken: &TakenNames) -> Option<BodySchemas> {
        let known = [
            "type",
            "properties",
            "required",
            "description",
            "title",
            "examples",
            "default",
            "deprecated",
            "additionalProperties",
            "minProperties",
        ];
        let members = schema.as_object()?;
        let is_plain = members.keys().all(|key| known.contains(&key.as_str()));
        let is_open = !matches!(
            members.get("additionalProperties"),
            None | Some(Value::Bool(false))
        );
        let properties = members.get("properties")?.as_object()?;
        let required = members.get("required").and_then(Value::as_array);
        let required: BTreeSet<_> = required
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        if !is_plain
            || is_open
            || properties.is_empty()
            || (!self.is_required && !required.is_empty())
        {
            return None;
        }
        let mut named = BTreeMap::new();
        let mut schemas = Map::new();
        for (name, schema) in properties {
            let argument = names::safe(name);
            if argument.is_empty() || taken.contains(&argument) || named.contains_key(&argument) {
                return None;
            }
            let member = BodyMember {
                name: name.clone(),
                is_required: required.contains(name.as_str()),
                is_nullable: self.encoding == Encoding::Json && is_nullable(schema),
            };
            schemas.insert(argument.clone(), schema.clone());
            named.insert(argument, member);
        }
        let required = named
            .iter()
            .filter(|(_, member)| member.is_required)
            .map(|(argument, _)| argument.clone());
        Some(BodySchemas {
            properties: schemas,
            required: required.collect(),
            arguments: BodyArguments::Members(named),
        })
    }

    /// Returns an example of the body; `None` if the document has none.
    pub(crate) fn example<'d>(&self, document: &'d Document) -> Option<&'d Value> {
        parameter::example(document, self.media(document)?)
    }

    /// Returns the body's value from the arguments of a call; `None` if no argument of the body is given, and the body
    /// is optional. An argument that is `null` counts as absent, unless it is a member of a JSON body that may be `null`.
    ///
    /// # Errors
    ///
    /// The name of a required argument that is missing.
    pub(crate) fn value(&self, arguments: &Map<String, Value>) -> Result<Option<Value>, String> {
        match &self.arguments {
            BodyArguments::Whole(name) => {
                let value = arguments.get(name).filter(|it| !it.is_null());
                match value {
                    None if self.is_required => Err(name.clone()),
                    value => Ok(value.cloned()),
                }
            }
            BodyArguments::Members(members) => {
                let mut given = Map::new();
                for (argument, member) in members {
                    let value = arguments.get(argument);
                    match value.filter(|it| member.is_nullable || !it.is_null()) {
                        Some(value) => drop(given.insert(member.name.clone(), value.clone())),
                        None if member.is_required => return Err(argument.clone()),
                        None => {}
                    }
                }
                let is_there = !given.is_empty() || self.is_required;
                Ok(is_there.then_some(Value::Object(given)))
            }
        }
    }

    /// Writes the body. Returns the value of `Content-Type`, and the bytes.
    ///
    /// # Errors
    ///
    /// When the value does not have the form that the media type needs.
    pub(crate) fn written(
        &self,
        value: &Value,
        document: &Document,
    ) -> Result<(String, Vec<u8>), String> {
        let own = || self.media_type.clone();
        let members = || {
            value
                .as_object()
                .ok_or_else(|| "the body must be an object".to_owned())
        };
        match self.encoding {
            Encoding::Json => Ok((own(), value.to_string().into_bytes())),
            Encoding::Text => Ok((own(), encode::text(value).into_bytes())),
            Encoding::Bytes => Ok((own(), bytes(value)?)),
            Encoding::Form => {
                let mut form = BoundedText::new(FORM_MAX);
                for (name, value) in members()?.iter().filter(|(_, it)| !it.is_null()) {
                    self.pairs(name, value, document, &mut form)?;
                }
                Ok((own(), form.into_string().into_bytes()))
            }
            Encoding::Multipart => {
                let mut parts = Vec::new();
                let heads = Budget::new(FORM_MAX);
                for (name, value) in members()?.iter().filter(|(_, it)| !it.is_null()) {
                    for part in self.parts(name, value, document) {
                        let head = heads.charge(name.len() + PART_COST);
                        head.map_err(|_| TOO_LARGE.to_owned())?;
                        parts.push(part?);
                    }
                }
                Ok(multipart::written(&parts))
            }
        }
    }

    /// Returns the style of a form field, `None` if the document declares none, and true if a list becomes a field for each item,
    /// false if the items are joined.
    fn style(&self, name: &str, document: &Document) -> (Option<Style>, bool) {
        let media = self.media(document);
        let encoding = media.and_then(|it| it.get("encoding")?.get(name));
        let style = encoding.and_then(|it| Style::of(it.get("style")?.as_str()?));
        let explode = encoding.and_then(|it| it.get("explode")?.as_bool());
        let explode = explode.unwrap_or(matches!(style, None | Some(Style::Form)));
        (style, explode)
    }

    /// Writes a member of the body as pairs of names and values of a form.
    fn pairs(
        &self,
        name: &str,
        value: &Value,
        document: &Document,
        out: &mut BoundedText,
    ) -> Result<(), String> {
        let (style, explode) = self.style(name, document);
        // In other styles, members of an object become fields of their own, which the document must permit.
        let stays_apart = matches!(style, None | Some(Style::DeepObject));
        if value.is_object()
            && !stays_apart
            && !parameter::is_object(document, self.property(name, document))
        {
            return Err(format!("the field {name:?} must not be an object"));
        }
        let json;
        let value = match (style, value) {
            // An object without a style is sent as JSON.
            (None, Value::Object(_)) => {
                json = Value::String(value.to_string());
                &json
            }
            _ => value,
        };
        let style = style.unwrap_or(Style::Form);
        let field = Field {
            name,
            style,
            explode,
            may_be_reserved: false,
        };
        let written = encode::pairs(&field, value, out);
        written.map_err(|_| TOO_LARGE.to_owned())
    }

    /// Returns the parts of a form for a member: a part for each item of a list that is not `null`, a single part for other
    /// values.
    fn parts<'a>(
        &self,
        name: &'a str,
        value: &'a Value,
        document: &'a Document,
    ) -> impl Iterator<Item = Result<FormPart, String>> + use<'a> {
        let property = self.property(name, document);
        let media = self.media(document);
        let encoding = media.and_then(|it| it.get("encoding")?.get(name));
        let declared = encoding.and_then(|it| it.get("contentType")?.as_str());
        let (values, schema) = match value {
            Value::Array(values) => {
                let items = property.and_then(|it| document.resolve(it.get("items")?));
                (values.as_slice(), items)
            }
            value => (std::slice::from_ref(value), property),
        };
        let is_file = schema.is_some_and(is_file);
        let values = values.iter().filter(|it| !it.is_null());
        values.map(move |it| part(name, it, is_file, declared))
    }

    /// Returns the schema of a member, from the body's schema or from a part of its `allOf`.
    fn property<'d>(&self, name: &str, document: &'d Document) -> Option<&'d Value> {
        let schema = document.resolve(self.media(document)?.get("schema")?)?;
        let of = |schema: &'d Value| document.resolve(schema.get("properties")?.get(name)?);
        let parts = schema
            .get("allOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        of(schema).or_else(|| parts.filter_map(|it| document.resolve(it)).find_map(of))
    }
}

/// Builds the part of a form for a value. `is_file`: true if the value is a file in base64, false for other values; `declared`:
/// the media type of the part in the document.
fn part(
    name: &str,
    value: &Value,
    is_file: bool,
    declared: Option<&str>,
) -> Result<FormPart, String> {
    let declared = declared
        .filter(|it| it.len() <= MEDIA_TYPE_MAX && !it.contains([',', '*', '\r', '\n']))
        .map(str::to_owned);
    let (file, default, content) = match (is_file, value) {
        (true, value) => (
            Some(name.to_owned()),
            Some("application/octet-stream"),
            bytes(value)?,
        ),
        (false, Value::Object(_)) => (
            None,
            Some("application/json"),
            value.to_string().into_bytes(),
        ),
        (false, value) => (None, None, encode::text(value).into_bytes()),
    };
    Ok(FormPart {
        name: name.to_owned(),
        file,
        media_type: declared.or_else(|| default.map(str::to_owned)),
        content,
    })
}

/// Returns true for the schema of an object whose `properties` are empty. Some documents describe an absent body like this.
fn is_empty(schema: &Value) -> bool {
    let has_no = |key: &str| {
        schema
            .get(key)
            .and_then(Value::as_object)
            .is_some_and(Map::is_empty)
    };
    let keys = ["type", "properties", "description", "title"];
    let members = schema.as_object();
    has_no("properties")
        && members.is_some_and(|it| it.keys().all(|key| keys.contains(&key.as_str())))
}

/// Returns true for a schema that permits `null`.
fn is_nullable(schema: &Value) -> bool {
    let null = json!("null");
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    let has = |key: &str, value: &Value| list(key).is_some_and(|it| it.contains(value));
    let parts = ["anyOf", "oneOf"].into_iter().filter_map(list).flatten();
    schema.get("type") == Some(&null)
        || has("type", &null)
        || has("enum", &Value::Null)
        || parts.into_iter().any(is_nullable)
}

/// Decodes a file, given as base64 or as a `data:` URL.
fn bytes(value: &Value) -> Result<Vec<u8>, String> {
    let text = value.as_str().ok_or("a file must be a string of base64")?;
    let text = match text
        .strip_prefix("data:")
        .and_then(|it| it.split_once(";base64,"))
    {
        Some((_, content)) => content,
        None => text,
    };
    STANDARD
        .decode(text.trim())
        .map_err(|_| "a file must be a string of base64".to_owned())
}
