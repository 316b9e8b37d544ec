//! Finds well-known names: hosts in strings, variables with credentials, frameworks, client libraries of well-known services.

use std::collections::BTreeSet;

use super::Language;
use super::dependencies::Dependencies;

/// Hosts of `http://` and `https://` URLs in a text, except hosts that are no services, such as `example.com`.
pub(super) fn hosts(text: &str) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at);
        rest = &after[3..];
        if !before.ends_with("http") && !before.ends_with("https") {
            continue;
        }
        let end = rest
            .find(|it: char| !(it.is_ascii_alphanumeric() || ".-".contains(it)))
            .unwrap_or(rest.len());
        let next = rest[end..].chars().next();
        // Skipped: the host's name contains a placeholder, or a login precedes the host.
        if matches!(next, Some('$' | '{' | '%' | '@' | '_' | '<' | '*')) {
            continue;
        }
        let host = rest[..end].trim_end_matches('.').to_ascii_lowercase();
        if is_service(&host) {
            found.push(host);
        }
    }
    found.into_iter()
}

fn is_service(host: &str) -> bool {
    let Some((_, top)) = host.rsplit_once('.') else {
        return false;
    };
    let none = [
        "example.com",
        "example.org",
        "example.net",
        "w3.org",
        "json-schema.org",
        "schema.org",
        "opensource.org",
        "apache.org",
        "spdx.org",
    ];
    let is_in = |domain: &&str| {
        host == *domain
            || host
                .strip_suffix(*domain)
                .is_some_and(|it| it.ends_with('.'))
    };
    top.len() >= 2
        && top.chars().all(|it| it.is_ascii_alphabetic())
        && ![
            "local",
            "localhost",
            "example",
            "invalid",
            "test",
            "internal",
        ]
        .contains(&top)
        && host.split('.').all(|it| !it.is_empty())
        && !none.iter().any(is_in)
}

/// Returns true if a variable's name looks like that of a credential.
pub(super) fn is_credential(name: &str) -> bool {
    let is_name = !name.is_empty()
        && name.len() <= 128
        && name
            .chars()
            .all(|it| it.is_ascii_alphanumeric() || it == '_')
        && !name.starts_with(|it: char| it.is_ascii_digit());
    let upper = name.to_ascii_uppercase();
    let word = |it: &str| {
        matches!(
            it,
            "TOKEN"
                | "TOKENS"
                | "KEY"
                | "APIKEY"
                | "SECRET"
                | "SECRETS"
                | "PASSWORD"
                | "PASSWD"
                | "PASS"
                | "PASSPHRASE"
                | "PAT"
                | "CREDENTIAL"
                | "CREDENTIALS"
                | "BEARER"
        )
    };
    let whole = [
        "CONNECTION_STRING",
        "DATABASE_URL",
        "WEBHOOK_URL",
        "MONGODB_URI",
        "AUTH_HEADER",
        "_DSN",
    ];
    is_name && (upper.split('_').any(word) || whole.iter().any(|it| upper.ends_with(it)))
}

/// Name of the framework with which the tools are built, as indicated by dependencies and imports.
pub(super) fn framework(
    language: Option<Language>,
    dependencies: &Dependencies,
    imports: &BTreeSet<String>,
) -> &'static str {
    let depends = |name: &str| dependencies.names().any(|it| it == name);
    let imports = |name: &str| {
        imports.iter().any(|it| {
            it.strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.', ':']))
        })
    };
    let uses = |name: &str| depends(name) || imports(name);
    match language {
        Some(Language::Python) => match () {
            () if imports("app.decorators") || imports("tooldock") => "tooldock",
            () if imports("mcp.server.fastmcp") || uses("fastmcp") => "fastmcp",
            () if uses("mcp") => "mcp-sdk",
            () if uses("langchain") || uses("langchain-core") || uses("langchain_core") => {
                "langchain"
            }
            () => "unknown",
        },
        Some(Language::TypeScript | Language::JavaScript) => match () {
            () if uses("fastmcp") => "fastmcp",
            () if uses("@modelcontextprotocol/sdk") || uses("@modelcontextprotocol/server") => {
                "mcp-sdk"
            }
            () if uses("mcp-framework") => "mcp-framework",
            () if uses("@langchain/core") || uses("langchain") => "langchain",
            () => "unknown",
        },
        Some(Language::Go) => match () {
            () if uses("github.com/mark3labs/mcp-go") => "mcp-go",
            () if uses("github.com/modelcontextprotocol/go-sdk") => "mcp-sdk",
            () if uses("github.com/metoro-io/mcp-golang") => "mcp-golang",
            () => "unknown",
        },
        Some(Language::Rust) => match () {
            () if uses("rmcp") => "rmcp",
            () if uses("rust-mcp-sdk") => "rust-mcp-sdk",
            () => "unknown",
        },
        None => "unknown",
    }
}

/// The host that a client library calls without being given an address; `None` for unknown libraries.
pub(super) fn host_of_client(package: &str) -> Option<&'static str> {
    let lower = package.to_ascii_lowercase();
    Some(match lower.as_str() {
        "@octokit/rest" | "@octokit/core" | "octokit" | "@octokit/graphql" | "@octokit/request"
        | "pygithub" | "octocrab" | "githubkit" | "ghapi" => "api.github.com",
        it if it.starts_with("github.com/google/go-github") => "api.github.com",
        "openai"
        | "async-openai"
        | "github.com/openai/openai-go"
        | "github.com/sashabaranov/go-openai" => "api.openai.com",
        "@anthropic-ai/sdk" | "anthropic" => "api.anthropic.com",
        "@slack/web-api" | "slack-sdk" | "slack_sdk" | "github.com/slack-go/slack" => "slack.com",
        "@notionhq/client" | "notion-client" => "api.notion.com",
        "@linear/sdk" => "api.linear.app",
        "stripe" => "api.stripe.com",
        "@sendgrid/mail" | "sendgrid" => "api.sendgrid.com",
        "twilio" => "api.twilio.com",
        "@gitbeaker/rest" | "python-gitlab" => "gitlab.com",
        "discord.js" | "discord.py" => "discord.com",
        "@tavily/core" | "tavily-python" => "api.tavily.com",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_services_are_found_in_strings() {
        let text = "see https://API.github.com/x, http://localhost:80, https://api.${region}.aws.com, https://a.b-c.io. \
                    ftp://f.org https://www.w3.org/x https://api.example.com http://10.0.0.1/ https://{host}/ https://u:p@h.io";
        assert_eq!(
            hosts(text).collect::<Vec<_>>(),
            ["api.github.com", "a.b-c.io"]
        );
    }

    #[test]
    fn names_of_credentials_are_told_from_others() {
        for name in [
            "GITHUB_TOKEN",
            "apiKey_KEY",
            "OPENAI_API_KEY",
            "DB_PASSWORD",
            "GH_PAT",
            "DATABASE_URL",
            "SENTRY_DSN",
        ] {
            assert!(is_credential(name), "{name}");
        }
        for name in [
            "PORT",
            "SSH_AUTH_SOCK",
            "KEYBOARD",
            "PATH",
            "TOKENIZERS_PARALLELISM",
            "A B_TOKEN",
            "",
            "MONKEY",
        ] {
            assert!(!is_credential(name), "{name}");
        }
    }
}
