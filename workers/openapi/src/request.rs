//! Requests to an API, built from the arguments of a tool call.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde_json::{Map, Value};

use crate::body::BodyArguments;
use crate::encode::{self, BoundedText, Field, Style};
use crate::operation::Operation;
use crate::parameter::{Parameter, Place};

/// Maximum size of a path without the base path, of a query, of each header, and of all cookies together, in bytes.
const TARGET_MAX: usize = 64 * 1024;
const TOO_LARGE: &str = "is too large";
const NO_HEADER: &str = "has a character that headers do not have";
const OTHER_PATH: &str =
    "must not have \".\" or \"..\" between slashes, which would lead to another path";
/// Value of `Accept` in requests.
const ACCEPT: HeaderValue = HeaderValue::from_static("application/json, */*;q=0.8");

/// A request to the API.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiRequest {
    /// HTTP method of the request.
    pub method: Method,
    /// Path and query of the request. The path begins with the base path of the API.
    pub target: String,
    /// Headers of the request.
    pub headers: HeaderMap,
    /// Body of the request; empty if there is none.
    pub body: Vec<u8>,
}

/// Reason why no request can be built from the arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// A required argument is missing.
    #[error("argument {0:?} is required")]
    Missing(String),
    /// The tool has no argument of this name.
    #[error("there is no argument {0:?}")]
    Unknown(String),
    /// The value of an argument cannot be sent. Contains the argument's name, and the reason, worded to follow the name.
    #[error("argument {0:?} {1}")]
    Unusable(String, &'static str),
    /// The arguments lead to a path that is too large, or that a server could read as another path. Contains the reason, worded
    /// to follow "the path".
    #[error("the path {0}")]
    Path(&'static str),
    /// The body cannot be sent. Contains a sentence with the reason.
    #[error("{0}")]
    Body(String),
}

impl Operation {
    /// Builds the request for a call. `base`: the base path of the API, without a slash at its end.
    ///
    /// # Errors
    ///
    /// When an argument is missing, unknown or unusable, or when the path or the body cannot be sent.
    pub fn request(
        &self,
        base: &str,
        arguments: &Map<String, Value>,
    ) -> Result<ApiRequest, ArgumentError> {
        for name in arguments.keys() {
            if !self.has_argument(name) {
                return Err(ArgumentError::Unknown(name.chars().take(80).collect()));
            }
        }
        let (mut segments, mut cookies) = (BTreeMap::new(), Vec::new());
        let mut cookies_size = 0;
        let mut query = BoundedText::new(TARGET_MAX);
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, ACCEPT);
        for parameter in &self.parameters {
            let value = match arguments.get(&parameter.argument) {
                Some(Value::Null) | None if parameter.is_required => {
                    return Err(ArgumentError::Missing(parameter.argument.clone()));
                }
                Some(Value::Null) | None => continue,
                Some(value) => value,
            };
            let json;
            let value = match parameter.is_json {
                true => {
                    json = Value::String(value.to_string());
                    &json
                }
                false => value,
            };
            let unusable = |why| ArgumentError::Unusable(parameter.argument.clone(), why);
            // In other styles, members of an object become parameters of their own, which the document must permit.
            let stays_apart = parameter.takes_object || parameter.style == Style::DeepObject;
            if value.is_object() && !stays_apart {
                return Err(unusable("must not be an object"));
            }
            match parameter.place {
                Place::Path => {
                    let text = path_segment(parameter, value).map_err(unusable)?;
                    segments.insert(parameter.name.as_str(), text);
                }
                Place::Query => {
                    let written = encode::pairs(&field(parameter), value, &mut query);
                    written.map_err(|_| unusable(TOO_LARGE))?;
                }
                Place::Header => {
                    let name = HeaderName::try_from(parameter.name.as_str());
                    let value = encode::plain(value, parameter.explode);
                    if value.len() > TARGET_MAX {
                        return Err(unusable(TOO_LARGE));
                    }
                    let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) else {
                        return Err(unusable(NO_HEADER));
                    };
                    headers.insert(name, value);
                }
                Place::Cookie => {
                    let value = encode::plain(value, parameter.explode);
                    let cookie = format!("{}={}", parameter.name, encode::percent(&value, false));
                    cookies_size += cookie.len();
                    if cookies_size > TARGET_MAX {
                        return Err(unusable(TOO_LARGE));
                    }
                    if HeaderValue::try_from(&cookie).is_err() {
                        return Err(unusable(NO_HEADER));
                    }
                    cookies.push(cookie);
                }
            }
        }
        if let Ok(value) = HeaderValue::try_from(cookies.join("; "))
            && !cookies.is_empty()
        {
            headers.insert(header::COOKIE, value);
        }
        let body = self.written_body(arguments, &mut headers)?;
        let mut target = format!("{base}{}", self.target_path(&segments)?);
        if !query.as_str().is_empty() {
            target.push(if target.contains('?') { '&' } else { '?' });
            target.push_str(query.as_str());
        }
        Ok(ApiRequest {
            method: self.method.parse().unwrap_or_default(),
            target,
            headers,
            body,
        })
    }

    /// Returns the path with the values of its parameters. `segments`: percent-encoded values by the names in braces.
    fn target_path(&self, segments: &BTreeMap<&str, String>) -> Result<String, ArgumentError> {
        let mut out = BoundedText::new(TARGET_MAX);
        let mut rest = self.path.as_str();
        let mut write = || {
            while let Some((before, after)) = rest.split_once('{') {
                out.push(&encode::template(before))?;
                let parameter = after.split_once('}');
                let parameter = parameter.and_then(|(it, rest)| Some((segments.get(it)?, rest)));
                rest = match parameter {
                    Some((text, rest)) => out.push(text).map(|()| rest)?,
                    None => out.push("%7B").map(|()| after)?,
                };
            }
            out.push(&encode::template(rest))
        };
        if write().is_err() {
            return Err(ArgumentError::Path(TOO_LARGE));
        }
        let path = out.into_string();
        match encode::has_dot_segment(path.split('?').next().unwrap_or_default()) {
            true => Err(ArgumentError::Path(OTHER_PATH)),
            false => Ok(path),
        }
    }

    /// Writes the body, and adds its `Content-Type` to `headers`. Returns an empty body if there is none.
    fn written_body(
        &self,
        arguments: &Map<String, Value>,
        headers: &mut HeaderMap,
    ) -> Result<Vec<u8>, ArgumentError> {
        let Some(body) = &self.body else {
            return Ok(Vec::new());
        };
        let Some(value) = body.value(arguments).map_err(ArgumentError::Missing)? else {
            return Ok(Vec::new());
        };
        let (media_type, bytes) = body
            .written(&value, &self.document)
            .map_err(ArgumentError::Body)?;
        if let Ok(media_type) = HeaderValue::try_from(media_type) {
            headers.insert(header::CONTENT_TYPE, media_type);
        }
        Ok(bytes)
    }

    fn has_argument(&self, name: &str) -> bool {
        let of_body = || match self.body.as_ref().map(|it| &it.arguments) {
            Some(BodyArguments::Whole(own)) => own == name,
            Some(BodyArguments::Members(names)) => names.contains_key(name),
            None => false,
        };
        self.parameters.iter().any(|it| it.argument == name) || of_body()
    }
}

fn field(parameter: &Parameter) -> Field<'_> {
    Field {
        name: &parameter.name,
        style: parameter.style,
        explode: parameter.explode,
        may_be_reserved: parameter.may_be_reserved,
    }
}

/// Returns the text of a path parameter, percent-encoded. Refuses an empty text, and a text that could lead to another path.
fn path_segment(parameter: &Parameter, value: &Value) -> Result<String, &'static str> {
    let mut out = BoundedText::new(TARGET_MAX);
    let (name, style) = (&parameter.name, parameter.style);
    if encode::path(name, value, style, parameter.explode, &mut out).is_err() {
        return Err(TOO_LARGE);
    }
    match out.as_str() {
        "" => Err("must not be empty, since it is a part of the path"),
        text if encode::has_dot_segment(text) => Err(OTHER_PATH),
        _ => Ok(out.into_string()),
    }
}
