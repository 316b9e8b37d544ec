//! Metadata of a modern request in `params._meta`, which replaces a session.
//!
//! The metadata are spans of the body, not parsed values, since capabilities and client descriptions are passed on unchanged.
//! The caller checks the requested version, because its error has to list the served versions.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_engine::upstream::RequestMeta;
use tooldock_sessions::session::client;

use crate::jsonrpc::{self, Key, Members};

/// Metadata of a request, with the protocol version that the request states.
pub(super) struct VersionedMeta<'a> {
    pub(super) meta: RequestMeta,
    pub(super) version: Cow<'a, str>,
}

/// Returns the version in `params._meta`, if it is a string.
pub(super) fn version_named<'a>(members: &Members<'a>) -> Option<Cow<'a, str>> {
    members.get(Key::ProtocolVersion).and_then(jsonrpc::string)
}

/// Reads the metadata of a request.
///
/// # Errors
///
/// The missing or wrong key, described for the client.
pub(super) fn read<'a>(
    body: &Bytes,
    members: &Members<'a>,
) -> Result<VersionedMeta<'a>, Cow<'static, str>> {
    let meta = members.get(Key::Meta);
    let meta = meta.ok_or("params._meta is required")?;
    if !meta.get().starts_with('{') {
        return Err("params._meta must be an object".into());
    }
    let version = members
        .get(Key::ProtocolVersion)
        .ok_or("params._meta must have io.modelcontextprotocol/protocolVersion")?;
    let version = jsonrpc::string(version)
        .ok_or("io.modelcontextprotocol/protocolVersion must be a string")?;
    let client_info = members.get(Key::ClientInfo);
    let capabilities = members
        .get(Key::Capabilities)
        .ok_or("params._meta must have io.modelcontextprotocol/clientCapabilities")?;
    client::check(Some(capabilities), client_info).map_err(|error| error.to_string())?;
    let object = |raw: &RawValue, what: &'static str| match raw.get().starts_with('{') {
        true => Ok(span(body, raw)),
        false => Err(what),
    };
    let log_level = members
        .get(Key::MinLogLevel)
        .map(|raw| {
            jsonrpc::string(raw)
                .and_then(|text| text.parse().ok())
                .ok_or("io.modelcontextprotocol/logLevel is no log level")
        })
        .transpose()?;
    let too_long = |raw: &&RawValue| raw.get().len() > jsonrpc::ID_MAX;
    let progress_token = members.get(Key::ProgressToken);
    if progress_token.as_ref().is_some_and(too_long) {
        let max = jsonrpc::ID_MAX;
        return Err(format!("params._meta.progressToken is longer than {max} bytes").into());
    }
    let progress_token = progress_token
        .map(|raw| {
            let plain = raw
                .get()
                .starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'));
            plain
                .then(|| span(body, raw))
                .ok_or("params._meta.progressToken must be a string or a number")
        })
        .transpose()?;
    Ok(VersionedMeta {
        meta: RequestMeta {
            capabilities: object(
                capabilities,
                "io.modelcontextprotocol/clientCapabilities must be an object",
            )?,
            client_info: client_info
                .map(|raw| object(raw, "io.modelcontextprotocol/clientInfo must be an object"))
                .transpose()?,
            log_level,
            progress_token,
            inputs: None,
        },
        version,
    })
}

/// Returns a span of the body that shares the body's memory.
pub(super) fn span(body: &Bytes, raw: &RawValue) -> Bytes {
    body.slice_ref(raw.get().as_bytes())
}
