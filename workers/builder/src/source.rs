//! The address of a repository: parsed once, and passed to git in a form that git cannot interpret differently.

use std::path::Path;

use tooldock_process::repositories::{BuilderConfig, BuilderError, GitScheme};
use url::{Host, Url};

/// The address of a repository whose scheme and form are allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repository {
    pub(crate) scheme: GitScheme,
    url: Url,
}

impl Repository {
    /// The URL that is passed to git.
    pub(crate) fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Host and port of the repository; `None` for a local one.
    pub(crate) fn host_and_port(&self) -> Option<(&str, u16)> {
        let port = self.url.port().unwrap_or(match self.scheme {
            GitScheme::Https => 443,
            GitScheme::Http => 80,
            GitScheme::Ssh => 22,
            GitScheme::File => return None,
        });
        Some((self.url.host_str()?, port))
    }

    /// Returns true if the host is written as an IP address.
    pub(crate) fn is_by_address(&self) -> bool {
        matches!(self.url.host(), Some(Host::Ipv4(_) | Host::Ipv6(_)))
    }

    /// Returns true if git connects through an HTTP proxy, which then resolves the host's name.
    pub(crate) fn goes_through_proxy(&self) -> bool {
        let names: &[&str] = match self.scheme {
            GitScheme::Https => &["https_proxy", "HTTPS_PROXY"],
            // `HTTP_PROXY` in capitals is ignored, as by most programs: in a CGI script, a client could set it with the header
            // `Proxy`.
            GitScheme::Http => &["http_proxy"],
            GitScheme::Ssh | GitScheme::File => &[],
        };
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|it| !it.is_empty());
        let host = self.url.host_str().unwrap_or_default();
        let excepted = ["no_proxy", "NO_PROXY"].iter().find_map(std::env::var_os);
        let excepted = excepted.unwrap_or_default().to_string_lossy().into_owned();
        names.iter().any(is_set) && !self.is_by_address() && !is_excepted(host, &excepted)
    }
}

/// Returns true if a `no_proxy` list contains a host: literally, by a parent domain, or by a wildcard.
fn is_excepted(host: &str, list: &str) -> bool {
    let mut entries = list.split(',').map(str::trim).filter(|it| !it.is_empty());
    entries.any(|entry| {
        let domain = entry.trim_start_matches("*.").trim_start_matches('.');
        let rest = host.strip_suffix(domain);
        entry == "*" || rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// Parses the address of a repository, as the caller wrote it.
///
/// # Errors
///
/// When the text is not the address of a repository, or its scheme is not allowed.
pub(crate) fn parse(text: &str, config: &BuilderConfig) -> Result<Repository, BuilderError> {
    let invalid = |why: &str| {
        Err(BuilderError::invalid(format!(
            "the repository URL {why}. Give one such as https://github.com/owner/repository."
        )))
    };
    let text = text.trim();
    if text.starts_with('-') {
        return invalid("begins with a hyphen");
    }
    if text.contains(char::is_whitespace) {
        return invalid("holds white space");
    }
    if text.contains("::") && !text.contains("://[") {
        return invalid("names a transport helper, which is never allowed");
    }
    let parsed = if text.contains("://") {
        Url::parse(text)
    } else if Path::new(text).is_absolute() {
        Url::parse(&format!("file://{text}"))
    } else if let Some((host, path)) = text.split_once(':') {
        // The short form `git@github.com:owner/repository` is parsed as an ssh URL, as git does.
        Url::parse(&format!("ssh://{host}/{}", path.trim_start_matches('/')))
    } else {
        return invalid("has no scheme");
    };
    let Ok(url) = parsed else {
        return invalid("cannot be read");
    };
    let scheme = GitScheme::ALL
        .into_iter()
        .find(|it| it.as_str() == url.scheme());
    let Some(scheme) = scheme.filter(|it| config.git_schemes.contains(it)) else {
        let allowed: Vec<_> = config.git_schemes.iter().map(|it| it.as_str()).collect();
        let allowed = if allowed.is_empty() {
            vec!["none"]
        } else {
            allowed
        };
        return Err(BuilderError::refused(format!(
            "repositories are not cloned over {}: the operator allows {}. Use such a URL, or ask the operator to extend \
             GIT_ALLOWED_SCHEMES.",
            url.scheme(),
            allowed.join(", ")
        )));
    };
    if url.password().is_some() || (scheme != GitScheme::Ssh && !url.username().is_empty()) {
        return invalid("holds credentials, which would pass through the chat");
    }
    // git would pass a user or host name that begins with a hyphen to ssh as an option.
    if url.username().starts_with('-') || url.host_str().is_some_and(|it| it.starts_with('-')) {
        return invalid("has a name that begins with a hyphen");
    }
    // git runs ssh through a shell, so only characters without a meaning in shells are allowed.
    let is_plain = |it: &str| {
        it.chars()
            .all(|c| c.is_ascii_alphanumeric() || "._:[]-".contains(c))
    };
    if !is_plain(url.username()) || !url.host_str().is_none_or(is_plain) {
        return invalid("has a character in its host or user that no name has");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return invalid("has a part behind `?` or `#`; branches and folders cannot be chosen");
    }
    let has_host = url.host_str().is_some_and(|it| !it.is_empty());
    if has_host == (scheme == GitScheme::File) || url.path().trim_matches('/').is_empty() {
        return invalid("lacks a host or a path");
    }
    Ok(Repository { scheme, url })
}

#[cfg(test)]
mod tests {
    use tooldock_process::repositories::BuilderErrorCode;

    use super::*;

    fn with(schemes: &[GitScheme]) -> BuilderConfig {
        BuilderConfig {
            git_schemes: schemes.to_vec(),
            ..BuilderConfig::default()
        }
    }

    #[test]
    fn only_schemes_that_the_operator_names_are_cloned() {
        let default = with(&[GitScheme::Https]);
        let found = parse(" https://github.com/o/r ", &default).unwrap();
        assert_eq!(found.url(), "https://github.com/o/r");
        assert_eq!(found.host_and_port(), Some(("github.com", 443)));
        for other in [
            "http://github.com/o/r",
            "ssh://git@github.com/o/r",
            "git@github.com:o/r.git",
            "git://github.com/o/r",
            "file:///srv/repo",
            "/srv/repo",
            "ftp://h/x",
        ] {
            let error = parse(other, &default).unwrap_err();
            assert_eq!(error.code, BuilderErrorCode::Refused, "{other}: {error}");
            assert!(error.message.contains("allows https."), "{error}");
        }
        let all = with(&GitScheme::ALL);
        assert_eq!(parse("/srv/repo", &all).unwrap().url(), "file:///srv/repo");
        let ssh = parse("git@github.com:o/r.git", &all).unwrap();
        assert_eq!(ssh.url(), "ssh://git@github.com/o/r.git");
        assert!(parse("git://github.com/o/r", &all).is_err());
    }

    #[test]
    fn hosts_of_no_proxy_are_reached_without_one() {
        for (host, list, excepted) in [
            ("git.corp.example", "localhost, .corp.example", true),
            ("git.corp.example", "corp.example", true),
            ("git.corp.example", "*", true),
            ("git.corp.example", "git.corp.example", true),
            ("notcorp.example", "corp.example", false),
            ("github.com", "", false),
        ] {
            assert_eq!(is_excepted(host, list), excepted, "{host} {list}");
        }
    }

    #[test]
    fn what_git_would_read_as_something_else_is_refused() {
        let all = with(&GitScheme::ALL);
        for bad in [
            "--upload-pack=touch /tmp/x",
            "-c",
            "ext::sh -c id",
            "ext::sh",
            "https://user:pw@h/x",
            "https://token@h/x",
            "ssh://-oProxyCommand=id/x",
            "ssh://-o@h/x",
            "ssh://x$(id)/r",
            "ssh://x`id`/r",
            "ssh://a;b@h/r",
            "git@h$(id):r",
            "https://h/x?y",
            "https://h/x#y",
            "https://h/",
            "https:///x/y z",
            "repository",
            "file://host/x",
            "file:///",
        ] {
            let error = parse(bad, &all).unwrap_err();
            assert_eq!(error.code, BuilderErrorCode::Invalid, "{bad}: {error}");
            assert!(!error.message.contains("pw"), "{error}");
        }
    }
}
