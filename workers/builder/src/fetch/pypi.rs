//! Finds packages in PyPI's index, which has a page of files for each package, as JSON (PEP 691) or as HTML (PEP 503).
//!
//! A source distribution is preferred; otherwise a wheel is used, which contains the same Python files.

use std::cmp::Ordering;

use serde_json::Value;
use tooldock_process::repositories::{BuilderError, BuilderErrorCode};
use url::Url;

use super::{ExpectedDigest, Fetch, Package, PackageRegistry, PackageRequest, unusable};

const PAGE_MAX: u64 = 32 * 1024 * 1024;
const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, text/html;q=0.2";

/// A file that an index page lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexFile {
    name: String,
    url: String,
    sha256: Option<String>,
    yanked: bool,
}

pub(super) fn find(fetch: &Fetch, wanted: &PackageRequest) -> Result<Package, BuilderError> {
    let name = normalized(&wanted.name);
    let page_url = fetch
        .registries
        .pypi
        .join(&format!("{name}/"))
        .map_err(|_| unusable(&wanted.name))?;
    let page = fetch.client.get(page_url.as_str(), ACCEPT, PAGE_MAX);
    let page = page.map_err(|error| match error.code {
        BuilderErrorCode::NotFound => BuilderError::not_found(format!(
            "PyPI has no package {}. Search for its name with search_registry.",
            wanted.name
        )),
        _ => error,
    })?;
    let files = match serde_json::from_slice::<Value>(&page) {
        Ok(page) => files_of_json(&page),
        Err(_) => files_of_html(&String::from_utf8_lossy(&page)),
    };
    select(files, wanted, &name, &page_url)
}

pub(super) fn select(
    files: Vec<IndexFile>,
    wanted: &PackageRequest,
    name: &str,
    page: &Url,
) -> Result<Package, BuilderError> {
    // A wheel for any platform is accepted: its compiled files are specific to the platform, but its sources are not.
    let best = files
        .into_iter()
        .filter_map(|file| {
            let (version, is_source) = version_of(&file.name, name)?;
            let fits = match &wanted.version {
                Some(wanted) => compare(wanted, &version) == Ordering::Equal,
                None => !file.yanked,
            };
            fits.then_some((version, is_source, file))
        })
        .max_by(|a, b| {
            let stable = |version: &str| !is_prerelease(version);
            stable(&a.0)
                .cmp(&stable(&b.0))
                .then_with(|| compare(&a.0, &b.0))
                .then(a.1.cmp(&b.1))
                .then_with(|| b.2.name.cmp(&a.2.name))
        });
    let Some((version, _, file)) = best else {
        return Err(BuilderError::not_found(match &wanted.version {
            Some(version) => format!(
                "{} has no version {version} at PyPI that could be read.",
                wanted.name
            ),
            None => format!(
                "{} has no source distribution and no wheel at PyPI.",
                wanted.name
            ),
        }));
    };
    let digest = file.sha256.as_deref().and_then(from_hex).ok_or_else(|| {
        BuilderError::failed(format!(
            "the index gives no sha256 of {}, so it cannot be checked and is not used.",
            file.name
        ))
    })?;
    let archive = page.join(&file.url).map_err(|_| unusable(&wanted.name))?;
    Ok(Package {
        kind: PackageRegistry::Pypi,
        name: wanted.name.clone(),
        version,
        archive: archive.into(),
        digest: ExpectedDigest::Sha256(digest),
    })
}

/// A package's name in the normal form of PEP 503: lower case, and one hyphen for any run of `-`, `_` and `.`.
fn normalized(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let words: Vec<_> = lower
        .split(['-', '_', '.'])
        .filter(|it| !it.is_empty())
        .collect();
    words.join("-")
}

pub(super) fn files_of_json(page: &Value) -> Vec<IndexFile> {
    let files = page["files"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let file = |file: &Value| {
        Some(IndexFile {
            name: file["filename"].as_str()?.to_owned(),
            url: file["url"].as_str()?.to_owned(),
            sha256: file["hashes"]["sha256"].as_str().map(str::to_owned),
            yanked: !matches!(file["yanked"], Value::Null | Value::Bool(false)),
        })
    };
    files.iter().filter_map(file).collect()
}

/// Parses the files of an HTML index page, `<a href="URL#sha256=…" data-yanked="">name</a>`.
pub(super) fn files_of_html(page: &str) -> Vec<IndexFile> {
    let link = |part: &str| {
        let (attributes, rest) = part.split_once('>')?;
        let (name, _) = rest.split_once('<')?;
        let after = attributes.split_once("href=")?.1.trim_start();
        let quote = after.chars().next().filter(|it| matches!(it, '"' | '\''))?;
        let href = after[1..].split(quote).next()?.replace("&amp;", "&");
        let (url, fragment) = href.split_once('#').unwrap_or((&href, ""));
        Some(IndexFile {
            name: name.trim().to_owned(),
            sha256: fragment.strip_prefix("sha256=").map(str::to_owned),
            url: url.to_owned(),
            yanked: attributes.contains("data-yanked"),
        })
    };
    page.split("<a ").skip(1).filter_map(link).collect()
}

/// Parses the name of a package's file; returns the version, and true for a source distribution.
fn version_of(file: &str, package: &str) -> Option<(String, bool)> {
    let (stem, is_source) =
        if let Some(stem) = file.strip_suffix(".tar.gz").or(file.strip_suffix(".zip")) {
            (stem, true)
        } else {
            (file.strip_suffix(".whl")?, false)
        };
    let version = if is_source {
        // The last hyphen precedes the version: names may contain hyphens, versions do not.
        let (name, version) = stem.rsplit_once('-')?;
        (normalized(name) == package).then_some(version)?
    } else {
        let (name, rest) = stem.split_once('-')?;
        (normalized(name) == package).then_some(rest.split('-').next()?)?
    };
    version
        .starts_with(|it: char| it.is_ascii_digit())
        .then(|| (version.to_owned(), is_source))
}

/// The numbers at the beginning of a version, such as `[1, 2]` for `1.2rc1`.
fn release(version: &str) -> Vec<u64> {
    let end = version
        .find(|it: char| !it.is_ascii_digit() && it != '.')
        .unwrap_or(version.len());
    let numbers = version[..end].split('.').filter(|it| !it.is_empty());
    let mut numbers: Vec<u64> = numbers.map(|it| it.parse().unwrap_or(u64::MAX)).collect();
    while numbers.last() == Some(&0) {
        numbers.pop();
    }
    numbers
}

/// The text after the numbers at the beginning of a version, such as `rc1` and `.post2`.
fn suffix(version: &str) -> &str {
    version.trim_start_matches(|it: char| it.is_ascii_digit() || it == '.')
}

fn is_prerelease(version: &str) -> bool {
    let suffix = suffix(version);
    ["a", "b", "c", "rc", "dev", "alpha", "beta"]
        .iter()
        .any(|it| suffix.starts_with(it))
}

fn compare(a: &str, b: &str) -> Ordering {
    let rank = |version: &str| match suffix(version) {
        "" => 1,
        _ if is_prerelease(version) => 0,
        _ => 2,
    };
    release(a)
        .cmp(&release(b))
        .then(rank(a).cmp(&rank(b)))
        .then_with(|| {
            release(suffix(a).trim_start_matches(char::is_alphabetic))
                .cmp(&release(suffix(b).trim_start_matches(char::is_alphabetic)))
        })
        .then_with(|| suffix(a).cmp(suffix(b)))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    (digits.len() == 64).then_some(())?;
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_source_distribution_that_is_not_yanked_is_taken() {
        let page = r#"<html><a href="../../x/mcp_time-1.9.0.tar.gz#sha256=aa">mcp_time-1.9.0.tar.gz</a>
            <a href="mcp_time-1.10.0-py3-none-any.whl#sha256=bb">mcp_time-1.10.0-py3-none-any.whl</a>
            <a href="mcp_time-1.10.0.tar.gz#sha256=HEX" data-requires-python="&gt;=3">mcp_time-1.10.0.tar.gz</a>
            <a href="mcp_time-2.0.0rc1.tar.gz#sha256=cc">mcp_time-2.0.0rc1.tar.gz</a>
            <a data-yanked="broken" href="mcp_time-3.0.tar.gz#sha256=dd">mcp_time-3.0.tar.gz</a>
            <a href="mcp_time_extra-9.tar.gz#sha256=ee">mcp_time_extra-9.tar.gz</a>"#;
        let page = page.replace("HEX", &"0f".repeat(32));
        let wanted = |version: Option<&str>| PackageRequest {
            kind: None,
            name: "MCP.time".into(),
            version: version.map(Into::into),
        };
        let base = Url::parse("https://index/simple/mcp-time/").unwrap();
        let take = |version| {
            let package = select(files_of_html(&page), &wanted(version), "mcp-time", &base);
            package.map(|it| it.archive).map_err(|it| it.message)
        };
        assert_eq!(
            take(None).unwrap(),
            "https://index/simple/mcp-time/mcp_time-1.10.0.tar.gz"
        );
        assert!(
            take(Some("1.9"))
                .unwrap_err()
                .contains("no sha256 of mcp_time-1.9.0")
        );
        assert!(take(Some("7")).unwrap_err().contains("no version 7"));
    }

    #[test]
    fn versions_are_in_their_order() {
        let ordered = [
            "0.9",
            "1.0.dev1",
            "1.0rc1",
            "1.0rc2",
            "1.0",
            "1.0.post1",
            "1.2",
            "1.10",
            "10",
        ];
        for pair in ordered.windows(2) {
            assert_eq!(compare(pair[0], pair[1]), Ordering::Less, "{pair:?}");
        }
        assert_eq!(compare("1.0", "1"), Ordering::Equal);
    }
}
