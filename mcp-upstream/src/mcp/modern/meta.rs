//! What a modern request says about itself in `params._meta`, since there is no session to remember it.
//!
//! Spans of the body, not values: capability maps and client infos are passed on as they came. Which version is asked
//! for is judged by the caller, because a refusal has to name the versions that are served.

use std::borrow::Cow;
use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_workers::worker::LogLevel;

use crate::jsonrpc::{self, RequestError};
use crate::session::client;

/// The part of a key that all of the protocol's own metadata shares is spelled out in each `rename` below.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(
        borrow,
        default,
        rename = "io.modelcontextprotocol/protocolVersion",
        deserialize_with = "jsonrpc::present"
    )]
    version: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        rename = "io.modelcontextprotocol/clientCapabilities",
        deserialize_with = "jsonrpc::present"
    )]
    capabilities: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        rename = "io.modelcontextprotocol/clientInfo",
        deserialize_with = "jsonrpc::present"
    )]
    client_info: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        rename = "io.modelcontextprotocol/logLevel",
        deserialize_with = "jsonrpc::present"
    )]
    log_level: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        rename = "progressToken",
        deserialize_with = "jsonrpc::present"
    )]
    progress_token: Option<&'a RawValue>,
}

/// The params of a modern request as far as the transport reads them.
#[derive(Default, Deserialize)]
pub(super) struct Params<'a> {
    #[serde(
        borrow,
        default,
        rename = "_meta",
        deserialize_with = "jsonrpc::present"
    )]
    pub(super) meta: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    pub(super) name: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    pub(super) uri: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    pub(super) arguments: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        rename = "inputResponses",
        deserialize_with = "jsonrpc::present"
    )]
    pub(super) input_responses: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        rename = "requestState",
        deserialize_with = "jsonrpc::present"
    )]
    pub(super) request_state: Option<&'a RawValue>,
}

/// The metadata of one request. The spans are views into its body.
#[derive(Debug, Clone)]
pub(crate) struct RequestMeta {
    /// What the client can be asked: a JSON object.
    pub(crate) capabilities: Bytes,
    /// Who the client says it is: a JSON object.
    pub(crate) client_info: Option<Bytes>,
    /// From which severity on it wants log messages; without one it wants none.
    pub(crate) log_level: Option<LogLevel>,
    /// What its progress notifications are to carry: a JSON string or number.
    pub(crate) progress_token: Option<Bytes>,
    /// Answers sent along with a first call: a JSON object of objects.
    pub(crate) inputs: Option<Bytes>,
}

/// A request's metadata and the version it asks for.
pub(super) struct Read<'a> {
    pub(super) meta: RequestMeta,
    pub(super) version: Cow<'a, str>,
}

/// Whether `params._meta` names a protocol version. Anything that cannot be read names none.
pub(super) fn names_version(params: &RawValue) -> bool {
    version_span(params).is_some()
}

/// The version `params._meta` names, if it is a text.
pub(super) fn version_named(params: &RawValue) -> Option<Cow<'_, str>> {
    version_span(params).and_then(jsonrpc::string)
}

fn version_span(params: &RawValue) -> Option<&RawValue> {
    /// Most messages are of the other era and are told so by one scan; the slash of the key is left out because some
    /// encoders escape it.
    static WORD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("protocolVersion"));
    WORD.find(params.get().as_bytes())?;
    let params: Params<'_> = jsonrpc::fields(Some(params), "params").ok()?;
    let fields: Fields<'_> = jsonrpc::fields(Some(params.meta?), "_meta").ok()?;
    fields.version
}

/// Reads the metadata.
///
/// # Errors
///
/// What is missing or wrong, for the client.
pub(super) fn read<'a>(body: &Bytes, params: &Params<'a>) -> Result<Read<'a>, Cow<'static, str>> {
    let meta = params.meta.ok_or("params._meta is required")?;
    let fields: Fields<'a> = match jsonrpc::fields(Some(meta), "params._meta") {
        Ok(fields) => fields,
        Err(RequestError::InvalidParams(reason)) => return Err(reason),
        Err(_) => return Err("params._meta cannot be read".into()),
    };
    let version = fields
        .version
        .ok_or("params._meta must have io.modelcontextprotocol/protocolVersion")?;
    let version = jsonrpc::string(version)
        .ok_or("io.modelcontextprotocol/protocolVersion must be a string")?;
    let capabilities = fields
        .capabilities
        .ok_or("params._meta must have io.modelcontextprotocol/clientCapabilities")?;
    client::check(Some(capabilities), fields.client_info).map_err(|error| error.to_string())?;
    let object = |raw: &RawValue, what: &'static str| match raw.get().starts_with('{') {
        true => Ok(span(body, raw)),
        false => Err(what),
    };
    let log_level = fields
        .log_level
        .map(|raw| {
            jsonrpc::string(raw)
                .and_then(|text| text.parse().ok())
                .ok_or("io.modelcontextprotocol/logLevel is no log level")
        })
        .transpose()?;
    let too_long = |raw: &&RawValue| raw.get().len() > jsonrpc::ID_MAX;
    if fields.progress_token.as_ref().is_some_and(too_long) {
        let max = jsonrpc::ID_MAX;
        return Err(format!("params._meta.progressToken is longer than {max} bytes").into());
    }
    let progress_token = fields
        .progress_token
        .map(|raw| {
            let plain = raw
                .get()
                .starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'));
            plain
                .then(|| span(body, raw))
                .ok_or("params._meta.progressToken must be a string or a number")
        })
        .transpose()?;
    Ok(Read {
        meta: RequestMeta {
            capabilities: object(
                capabilities,
                "io.modelcontextprotocol/clientCapabilities must be an object",
            )?,
            client_info: fields
                .client_info
                .map(|raw| object(raw, "io.modelcontextprotocol/clientInfo must be an object"))
                .transpose()?,
            log_level,
            progress_token,
            inputs: None,
        },
        version,
    })
}

/// A span of the body that shares its memory.
pub(super) fn span(body: &Bytes, raw: &RawValue) -> Bytes {
    body.slice_ref(raw.get().as_bytes())
}
