//! Finds packages in npm's registry, which has one JSON document for each package.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tooldock_process::repositories::{BuilderError, BuilderErrorCode};

use super::{ExpectedDigest, Fetch, Package, PackageRegistry, PackageRequest, unusable};

/// Maximum size of a package's JSON document, in bytes. Some packages have thousands of versions.
const DOCUMENT_MAX: u64 = 32 * 1024 * 1024;
/// Accept header that prefers the short form of a package's document, which not every registry offers.
const ACCEPT: &str = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8";

pub(super) fn find(fetch: &Fetch, wanted: &PackageRequest) -> Result<Package, BuilderError> {
    let base = fetch.registries.npm.as_str();
    let document = |name: &str| {
        fetch
            .client
            .get(&format!("{base}{name}"), ACCEPT, DOCUMENT_MAX)
    };
    let encoded = wanted.name.replace('/', "%2f");
    let found = match document(&encoded) {
        // Some simple registries do not decode paths, so the name is tried again without percent-encoding.
        Err(error) if error.code == BuilderErrorCode::NotFound && encoded != wanted.name => {
            document(&wanted.name)
        }
        other => other,
    };
    let text = found.map_err(|error| match error.code {
        BuilderErrorCode::NotFound => BuilderError::not_found(format!(
            "npm has no package {}. Search for its name with search_registry.",
            wanted.name
        )),
        _ => error,
    })?;
    let document: Value = serde_json::from_slice(&text).map_err(|_| unusable(&wanted.name))?;
    select(&document, wanted)
}

pub(super) fn select(document: &Value, wanted: &PackageRequest) -> Result<Package, BuilderError> {
    let tags = &document["dist-tags"];
    let version = match &wanted.version {
        Some(version) => tags[version.as_str()].as_str().unwrap_or(version),
        None => tags["latest"]
            .as_str()
            .ok_or_else(|| unusable(&wanted.name))?,
    };
    let dist = &document["versions"][version]["dist"];
    let Some(archive) = dist["tarball"].as_str() else {
        return Err(BuilderError::not_found(format!(
            "{} has no version {version} at npm; the latest is {}.",
            wanted.name,
            tags["latest"].as_str().unwrap_or("unknown")
        )));
    };
    let digest = dist["integrity"].as_str().and_then(integrity).ok_or_else(|| {
        BuilderError::failed(format!(
            "the registry gives no digest (sha512, sha384 or sha256) of {} {version}, so it cannot be checked and is not used.",
            wanted.name
        ))
    })?;
    Ok(Package {
        kind: PackageRegistry::Npm,
        name: wanted.name.clone(),
        version: version.to_owned(),
        archive: archive.to_owned(),
        digest,
    })
}

/// Selects the strongest digest from a list such as `sha512-BASE64 sha1-BASE64`.
fn integrity(text: &str) -> Option<ExpectedDigest> {
    type Make = fn(Vec<u8>) -> ExpectedDigest;
    let known: [(&str, Make); 3] = [
        ("sha512-", ExpectedDigest::Sha512),
        ("sha384-", ExpectedDigest::Sha384),
        ("sha256-", ExpectedDigest::Sha256),
    ];
    known.into_iter().find_map(|(prefix, make)| {
        let encoded = text
            .split_ascii_whitespace()
            .find_map(|it| it.strip_prefix(prefix))?;
        let encoded = encoded.split('?').next().unwrap_or(encoded);
        STANDARD.decode(encoded).ok().map(make)
    })
}
