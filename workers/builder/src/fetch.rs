//! Source packages of npm and PyPI: finds a package, downloads it, compares it with its registry's digest, and unpacks it.
//!
//! Packages are not installed. No installer is started, so no script of a package runs.

mod archive;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod npm;
mod pypi;

use sha2::{Digest as _, Sha256, Sha384, Sha512};
use tooldock_process::repositories::{BuilderConfig, BuilderError, BuilderErrorCode};

use crate::http::{Client, Registries};
use crate::progress::{Show, step};
use crate::registry;
use crate::tree::Tree;

/// Maximum size of a package's archive, in bytes. The archive is read into memory.
const ARCHIVE_MAX: u64 = 64 * 1024 * 1024;
/// Maximum length of a package's name, in bytes.
const NAME_MAX: usize = 214;

/// Client for package registries.
pub(crate) struct Fetch {
    client: Client,
    registries: Registries,
}

/// The registry in which a package is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PackageRegistry {
    Npm,
    Pypi,
}

/// A package as the caller named it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PackageRequest {
    /// The package's registry; `None` if the caller did not name one.
    kind: Option<PackageRegistry>,
    name: String,
    version: Option<String>,
}

/// A version of a package that was found in its registry and can be downloaded.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    kind: PackageRegistry,
    name: String,
    version: String,
    /// URL of the package's archive.
    archive: String,
    digest: ExpectedDigest,
}

/// Digest that the registry specifies for an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ExpectedDigest {
    Sha256(Vec<u8>),
    Sha384(Vec<u8>),
    Sha512(Vec<u8>),
}

impl ExpectedDigest {
    fn fits(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Sha256(expected) => Sha256::digest(bytes)[..] == expected[..],
            Self::Sha384(expected) => Sha384::digest(bytes)[..] == expected[..],
            Self::Sha512(expected) => Sha512::digest(bytes)[..] == expected[..],
        }
    }
}

impl PackageRegistry {
    fn as_str(self) -> &'static str {
        match self {
            Self::Npm => "npm",
            Self::Pypi => "pypi",
        }
    }
}

impl Package {
    /// The package's address in the form that the tool `read_repo_file` accepts, such as `npm:@scope/name`.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.kind.as_str(), self.name)
    }
}

impl Fetch {
    pub(crate) fn new(config: &BuilderConfig) -> Result<Self, BuilderError> {
        Self::with(config, Registries::of_process()?)
    }

    fn with(config: &BuilderConfig, registries: Registries) -> Result<Self, BuilderError> {
        Ok(Self {
            client: Client::new(config, &registries)?,
            registries,
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Finds a package in the registry that the caller named; without one, asks the MCP registry, then npm and PyPI.
    pub(crate) fn find(
        &self,
        package: &str,
        config: &BuilderConfig,
        show: Show<'_>,
    ) -> Result<Package, BuilderError> {
        let mut wanted = parse(package)?;
        step(show, 1, format!("looking for {}", wanted.name));
        if wanted.kind.is_none() {
            // The MCP registry lists, for each server, the package registry of its package.
            wanted.kind =
                registry::kind_of(&self.client, config, &wanted.name).and_then(
                    |kind| match &kind[..] {
                        "npm" => Some(PackageRegistry::Npm),
                        "pypi" => Some(PackageRegistry::Pypi),
                        _ => None,
                    },
                );
        }
        match wanted.kind {
            Some(PackageRegistry::Npm) => npm::find(self, &wanted),
            Some(PackageRegistry::Pypi) => pypi::find(self, &wanted),
            // PyPI is used only if npm reports that it has no such package. Otherwise, while npm is unreachable, a different
            // package of the same name could be taken from PyPI.
            None => npm::find(self, &wanted).or_else(|at_npm| {
                if at_npm.code != BuilderErrorCode::NotFound {
                    return Err(at_npm);
                }
                pypi::find(self, &wanted).map_err(|at_pypi| BuilderError {
                    code: at_pypi.code,
                    message: format!(
                        "{} Neither at npm: {} Write npm:NAME or pypi:NAME where you know which it is.",
                        at_pypi.message, at_npm.message
                    ),
                })
            }),
        }
    }

    /// Downloads and unpacks a package; returns its version.
    pub(crate) fn unpack(
        &self,
        package: &Package,
        tree: &mut Tree,
        show: Show<'_>,
    ) -> Result<String, BuilderError> {
        step(
            show,
            20,
            format!("downloading {} {}", package.name, package.version),
        );
        let bytes = self.client.get(&package.archive, "*/*", ARCHIVE_MAX)?;
        if !package.digest.fits(&bytes) {
            return Err(BuilderError::failed(format!(
                "{} {} is not what its registry published: the archive has another digest. Do not use this package before \
                 that is understood.",
                package.name, package.version
            )));
        }
        step(show, 60, "unpacking");
        archive::unpack(&package.archive, &bytes, tree)?;
        Ok(package.version.clone())
    }
}

/// Parses the name of a package: `name`, `@scope/name`, `npm:name` or `pypi:name`, optionally with `@VERSION` or `==VERSION`.
fn parse(text: &str) -> Result<PackageRequest, BuilderError> {
    let text = text.trim();
    let (kind, rest) = match text.split_once(':') {
        Some(("npm", rest)) => (Some(PackageRegistry::Npm), rest),
        Some(("pypi", rest)) => (Some(PackageRegistry::Pypi), rest),
        Some(_) => {
            return Err(BuilderError::invalid(format!(
                "{text:?} is not a package that can be fetched: npm and PyPI are known. For a repository, call install_from_repo."
            )));
        }
        None => (text.starts_with('@').then_some(PackageRegistry::Npm), text),
    };
    let (name, version) = match rest.split_once("==") {
        Some((name, version)) => (name, Some(version)),
        // An `@` as the first character begins a scope and not a version, so it is skipped.
        None => match rest.char_indices().skip(1).find(|(_, it)| *it == '@') {
            Some((at, _)) => (&rest[..at], Some(&rest[at + 1..])),
            None => (rest, None),
        },
    };
    let word = |it: &str| {
        !it.is_empty()
            && !it.starts_with(['.', '-'])
            && it
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-+~".contains(c))
    };
    let named = match name.strip_prefix('@').map(|it| it.split_once('/')) {
        Some(Some((scope, name))) => {
            word(scope) && word(name) && kind == Some(PackageRegistry::Npm)
        }
        Some(None) => false,
        None => word(name),
    };
    if !named || name.len() > NAME_MAX || version.is_some_and(|it| !word(it) || it.len() > 64) {
        return Err(BuilderError::invalid(format!(
            "{text:?} is not the name of a package. Give one such as @scope/name, mcp-server-time or pypi:mcp-server-time, \
             with @VERSION or ==VERSION behind it where a certain version is wanted."
        )));
    }
    Ok(PackageRequest {
        kind,
        name: name.to_owned(),
        version: version.map(str::to_owned),
    })
}

fn unusable(what: &str) -> BuilderError {
    BuilderError::unavailable(format!(
        "the registry's answer about {what} cannot be used. Check the address of the registry."
    ))
}

#[cfg(test)]
mod tests;
