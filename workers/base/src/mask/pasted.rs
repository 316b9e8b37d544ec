//! Finds credentials in clear text in the entry of a new server, so that the entry is refused before it is stored.
//!
//! When an entry is shown, ambiguous texts are masked, too; a refusal needs a reason that the user understands. Reasons are a
//! token of a well-known service, a login in a URL, and a literal value after a name, an option or a header that stands for a
//! secret. A long random word alone is not a reason: commit ids, digests and document ids have that form. Every value that is
//! refused would also be masked.

use serde_json::{Map, Value};

use super::{
    NextWord, after_option, attached_option, has_token, is_dense, is_gap, is_scheme, is_secret,
};
use crate::logins::url_logins;
use crate::template::is_variable_name;

/// Commands, such as clients of databases, whose option `-p` is a password.
const PASSWORD_COMMANDS: [&str; 9] = [
    "mariadb",
    "mariadb-dump",
    "mongo",
    "mongosh",
    "mysql",
    "mysqladmin",
    "mysqldump",
    "mysqlsh",
    "sshpass",
];

/// Position of the first credential in a server's entry, such as `env.API_TOKEN` or `args[1]`; the credential itself is never
/// returned.
pub fn pasted(entry: &Map<String, Value>) -> Option<String> {
    let command = entry.get("command").and_then(Value::as_str);
    let command = command.unwrap_or_default().rsplit('/').next();
    let command = command.unwrap_or_default();
    entry.iter().find_map(|(key, it)| match (key.as_str(), it) {
        (name, _) if has_token(name) => Some("the name of a key".to_owned()),
        ("args" | "arguments", Value::Array(all)) => {
            arguments(command, all).map(|at| format!("{key}[{at}]"))
        }
        ("env" | "environment" | "headers" | "header", it) => of_names(key, it),
        (name, it) => keyed(key, name, it),
    })
}

/// Position of the first credential in the value of a key. `place` is the position of the key, such as `env`.
fn keyed(place: &str, key: &str, value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Bool(_) => None,
        // Numbers are never credentials; they are settings of the gateway, such as durations.
        Value::Number(_) => None,
        Value::String(said) => is_credential_of(key, said).then(|| place.to_owned()),
        Value::Array(all) => {
            let mut items = all.iter().enumerate();
            items.find_map(|(at, it)| keyed(&format!("{place}[{at}]"), "", it))
        }
        Value::Object(_) => of_names(place, value),
    }
}

/// Position of the first credential in a list of variables or headers. `place` is the position of the list, such as `env`.
fn of_names(place: &str, value: &Value) -> Option<String> {
    match value {
        Value::Object(keys) => keys.iter().find_map(|(name, it)| {
            if has_token(name) {
                return Some(format!("{place}: the name of a variable"));
            }
            let place = format!("{place}.{name}");
            match it {
                Value::Number(number) => {
                    is_credential_of(name, &number.to_string()).then_some(place)
                }
                it => keyed(&place, name, it),
            }
        }),
        Value::Array(all) => {
            let mut items = all.iter().enumerate();
            let found = items.find(|(_, it)| match it {
                Value::String(said) => is_credential_pair(said),
                it => of_names("", it).is_some(),
            });
            found.map(|(at, _)| format!("{place}[{at}]"))
        }
        Value::String(said) => is_in_text(said).then(|| place.to_owned()),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Index of the first argument that contains a credential.
fn arguments(command: &str, all: &[Value]) -> Option<usize> {
    let mut next = NextWord::Shown;
    let mut option = "";
    let is_password_command = PASSWORD_COMMANDS.contains(&command);
    all.iter().position(|it| {
        let Some(argument) = it.as_str() else {
            let is_found = next == NextWord::Masked && it.is_number() && says_secret(option);
            next = NextWord::Shown;
            return is_found && is_value(option, &it.to_string());
        };
        let now = std::mem::replace(&mut next, NextWord::Shown);
        let is_option = argument.starts_with('-');
        let is_found = match now {
            NextWord::Pair => is_credential_pair(argument),
            NextWord::Masked if !is_option => says_secret(option) && is_value(option, argument),
            NextWord::Login if !is_option => is_login(argument),
            NextWord::Password if !is_option => {
                is_password_command && is_value("password", argument)
            }
            _ => false,
        };
        if is_found || is_in_text(argument) {
            return true;
        }
        if !is_option {
            return false;
        }
        if let Some((letter, said)) = attached_option(argument) {
            return match letter {
                'p' => is_password_command && is_value("password", said),
                'u' | 'U' => is_login(said),
                _ => is_credential_pair(said),
            };
        }
        let Some((name, said)) = argument.split_once('=') else {
            (next, option) = (after_option(argument), argument);
            return false;
        };
        match after_option(name) {
            NextWord::Masked => says_secret(name) && is_value(name, said),
            NextWord::Pair => is_credential_pair(said),
            NextWord::Login => is_login(said),
            NextWord::Password => is_password_command && is_value("password", said),
            NextWord::Shown | NextWord::Separator => false,
        }
    })
}

/// Returns true if the value of a variable, a header or a key is a credential or contains one.
pub fn is_credential_of(name: &str, said: &str) -> bool {
    is_in_text(said) || (says_secret(name) && is_value(name, said))
}

/// Returns true if a text is a pair with a credential, `NAME=VALUE` or `Name: value`. A script after `-e` is not a pair: it has
/// white space before its first `=` or `:`.
fn is_credential_pair(text: &str) -> bool {
    let pair = text.split_once(['=', ':']);
    let pair = pair.filter(|(name, _)| !name.contains(char::is_whitespace));
    is_in_text(text) || pair.is_some_and(|(name, said)| is_credential_of(name, said))
}

/// Returns true if a text is a login with a password, `USER:PASSWORD` or `USER%PASSWORD`. The numeric user and group of a
/// container, as in `1000:1000`, are not a login.
fn is_login(text: &str) -> bool {
    let Some((user, said)) = text.split_once([':', '%']) else {
        return false;
    };
    let is_id = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    user != said && !is_id(user) && !text.contains("://") && is_value("password", said)
}

/// Returns true if a name stands for a secret, and not for a property of a secret, such as the path of its file.
fn says_secret(name: &str) -> bool {
    const ABOUT: [&str; 49] = [
        "algorithm",
        "alg",
        "audience",
        "backend",
        "budget",
        "count",
        "dir",
        "directory",
        "domain",
        "enabled",
        "endpoint",
        "env",
        "exp",
        "expiry",
        "expires",
        "field",
        "file",
        "folder",
        "format",
        "header",
        "host",
        "id",
        "issuer",
        "length",
        "limit",
        "limits",
        "location",
        "method",
        "mode",
        "name",
        "parallelism",
        "path",
        "policy",
        "port",
        "prefix",
        "provider",
        "region",
        "required",
        "scope",
        "scopes",
        "size",
        "store",
        "timeout",
        "ttl",
        "type",
        "uri",
        "url",
        "usage",
        "version",
    ];
    let parts = || name.split(|c: char| !c.is_ascii_alphanumeric());
    let last = parts().rfind(|part| !part.is_empty()).unwrap_or_default();
    let last = last.to_ascii_lowercase();
    let is_public = parts().any(|part| part.eq_ignore_ascii_case("public"));
    let is_word_with_key = last.ends_with("key") && last != "key" && {
        // Names that end in these words stand for keys: `APIKEY` and `sshKey`, but not `MONKEY`.
        const KEYS: [&str; 8] = [
            "apikey",
            "accesskey",
            "secretkey",
            "privatekey",
            "authkey",
            "masterkey",
            "signingkey",
            "appkey",
        ];
        !KEYS.iter().any(|key| last.ends_with(key)) && !name.ends_with("Key")
    };
    let is_file = name.to_ascii_lowercase().ends_with("file") || last.contains("tokeniz");
    is_secret(name) && !is_public && !is_file && !is_word_with_key && !ABOUT.contains(&&*last)
}

/// Returns true if the text after a secret's name is a literal value: not a reference, a path, a URL, or a setting such as
/// `true`.
fn is_value(name: &str, text: &str) -> bool {
    const SETTINGS: [&str; 10] = [
        "true", "false", "yes", "no", "on", "off", "none", "null", "auto", "default",
    ];
    let said = text.trim();
    let said = match said.split_once(' ') {
        Some((scheme, said)) if is_scheme(scheme) => said.trim(),
        _ => said,
    };
    let is_number = said.bytes().all(|byte| byte.is_ascii_digit());
    let name = name.to_ascii_lowercase();
    let is_count = is_number && (name.ends_with("tokens") || name.contains("max"));
    let is_kind = name.ends_with("auth") && said.bytes().all(|byte| byte.is_ascii_lowercase());
    !said.is_empty()
        && !SETTINGS.iter().any(|it| said.eq_ignore_ascii_case(it))
        && !is_count
        && !is_kind
        && !said.contains("://")
        && !is_reference(said)
        && !is_place(said)
}

/// Returns true if a text refers to a value stored elsewhere: `${NAME}` with only short words around it, `$NAME`, or a shell
/// command.
fn is_reference(text: &str) -> bool {
    /// Maximum number of characters of a word beside a reference; a text with a longer word is treated as a literal secret.
    const WORD_MAX: usize = 8;
    if text.starts_with("$(") || text.strip_prefix('$').is_some_and(is_variable_name) {
        return true;
    }
    let mut has_reference = false;
    let mut beside = 0;
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, after)) = after.split_once('}') else {
            break;
        };
        has_reference |= !name.is_empty();
        beside = beside.max(longest_word(before));
        rest = after;
    }
    has_reference && beside.max(longest_word(rest)) <= WORD_MAX
}

/// Length of the longest word of a text. A word that mixes letters and digits counts as infinitely long.
fn longest_word(text: &str) -> usize {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let lengths = words.map(|word| match is_dense(word) {
        true => usize::MAX,
        false => word.len(),
    });
    lengths.max().unwrap_or_default()
}

/// Returns true if a text is a file path.
fn is_place(text: &str) -> bool {
    let is_allowed = |c: char| c.is_alphanumeric() || "-_./~ ".contains(c);
    ["/", "./", "../", "~/"]
        .iter()
        .any(|it| text.starts_with(it))
        && text.chars().all(is_allowed)
        && !text.split('/').any(super::looks_random)
}

/// Returns true if a text of any kind, such as an argument or a shell script, contains a credential.
fn is_in_text(text: &str) -> bool {
    has_token(text) || is_in_urls(text) || is_in_words(text)
}

/// Returns true if a URL in the text has a login or a secret parameter.
fn is_in_urls(text: &str) -> bool {
    let is_password = |login: &str| match login.split_once(':') {
        Some((_, said)) => !said.is_empty() && !is_reference(said),
        // A user name alone, as in URLs of Git servers, is not a credential unless it looks random, like a token.
        None => is_dense(login) && !is_reference(login),
    };
    let mut logins = url_logins(text).into_iter();
    let is_end = |c: char| c.is_whitespace() || "\"'`<>".contains(c);
    let mut urls = text.split(is_end).filter(|word| word.contains("://"));
    logins.any(|login| is_password(&text[login]))
        || urls.any(|url| {
            let (_, query) = url.split_once(['?', '#']).unwrap_or_default();
            let mut fields = query.split(['&', '?', '#']);
            fields.any(|field| match field.split_once('=') {
                Some((name, said)) => says_secret(name) && is_value(name, said) && !is_word(said),
                None => false,
            })
        })
}

/// Returns true if the text has a literal value after a secret's name, an option, or the scheme of a header.
fn is_in_words(text: &str) -> bool {
    /// Kind of the previous word, which decides if the next word may be a secret value.
    #[derive(Clone, Copy, PartialEq)]
    enum Behind {
        Nothing,
        /// The previous word is a secret's name; a colon or an equals sign may follow.
        Name,
        /// The previous word is a secret's name with its colon or equals sign, or an option for a secret.
        Value,
        /// The previous word is the scheme of a header, such as `Bearer`, without a secret's name before it.
        Scheme,
    }
    let mut behind = Behind::Nothing;
    let mut rest = text;
    let mut is_quoted = false;
    while !rest.is_empty() {
        let (word, after) = rest.split_at(rest.find(is_gap).unwrap_or(rest.len()));
        let now = std::mem::replace(&mut behind, Behind::Nothing);
        if word.is_empty() {
            behind = now;
        } else if word.chars().all(|c| ":=,".contains(c)) {
            if now != Behind::Nothing {
                behind = Behind::Value;
            }
        } else if is_scheme(word) {
            behind = match now {
                Behind::Value => Behind::Value,
                _ => Behind::Scheme,
            };
        } else if (now == Behind::Scheme && is_literal(word, true) && is_dense(word))
            || (now == Behind::Value && !word.starts_with('-') && is_literal(word, is_quoted))
        {
            return true;
        } else {
            for piece in word.split([';', '&', ',']) {
                behind = match piece.split_once(['=', ':']) {
                    Some((name, said)) if says_secret(name) => {
                        if is_scheme(said) || said.is_empty() {
                            Behind::Value
                        } else if is_value(name, said)
                            && is_literal(said, !is_weak(name) || name.starts_with('-'))
                        {
                            return true;
                        } else {
                            Behind::Nothing
                        }
                    }
                    Some(_) => Behind::Nothing,
                    None if !says_secret(piece) => Behind::Nothing,
                    None if piece.starts_with('-') => Behind::Value,
                    None => Behind::Name,
                };
            }
        }
        let (gap, after) = after.split_at(after.find(|c| !is_gap(c)).unwrap_or(after.len()));
        is_quoted = gap.ends_with(['"', '\'']);
        if gap.contains('`') {
            // A shell substitution follows: the value is the output of a command, not a literal.
            behind = Behind::Nothing;
        }
        rest = after;
    }
    false
}

/// Returns true if a word of a script is a literal value and not an expression. A plain word of natural language counts as a
/// literal only if `may_be_word` is true.
fn is_literal(word: &str, may_be_word: bool) -> bool {
    let is_expression =
        word.contains(['(', '[', '{', '$', '<', '>', '|', '\\']) || word.contains("env.");
    !is_expression && is_value("", word) && (may_be_word || !is_word(word))
}

/// Returns true for names that sometimes stand for a secret but often do not, such as `key` and `auth`.
fn is_weak(name: &str) -> bool {
    let name = name.trim_start_matches('-');
    ["key", "auth", "pin", "pass", "pat"].contains(&name)
}

/// Returns true if a text is a plain word of natural language.
fn is_word(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || b"-_.,!".contains(&byte);
    text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mask;

    fn found(config: &Value) -> Option<String> {
        pasted(config.as_object().expect("an object"))
    }

    #[test]
    fn credentials_are_found_wherever_they_stand_and_the_mask_hides_them() {
        const CANARY: &str = "c4n4ry-9f3e7a";
        let token = format!("ghp_{CANARY}");
        for (config, place) in [
            (json!({"env": {"A": token}}), "env.A"),
            (json!({"env": {"A": format!("x={token},y")}}), "env.A"),
            (json!({"env": {"A": format!("{token} ${{B}}")}}), "env.A"),
            (
                json!({"env": {(token.clone()): "x"}}),
                "env: the name of a variable",
            ),
            (json!({"env": {"DB_PASSWORD": CANARY}}), "env.DB_PASSWORD"),
            (json!({"env": {"SERVICE_KEY": CANARY}}), "env.SERVICE_KEY"),
            (
                json!({"env": {"X_TOKEN": format!("Bearer {CANARY}")}}),
                "env.X_TOKEN",
            ),
            (
                json!({"env": {"CLIENT_SECRET": format!("{CANARY}${{X}}")}}),
                "env.CLIENT_SECRET",
            ),
            (
                json!({"env": {"URL": format!("postgres://me:{CANARY}@h/db")}}),
                "env.URL",
            ),
            (
                json!({"env": {"URL": format!("https://h/x?a=1&api_key={CANARY}")}}),
                "env.URL",
            ),
            (
                json!({"env": {"H": format!("Authorization: Bearer {CANARY}")}}),
                "env.H",
            ),
            (
                json!({"env": {"C": format!("Server=h;Password={CANARY};User=me")}}),
                "env.C",
            ),
            (json!({"env": [format!("API_KEY={CANARY}")]}), "env[0]"),
            (json!({"args": ["run", token]}), "args[1]"),
            (
                json!({"args": [format!("--url=https://h/{token}/x")]}),
                "args[0]",
            ),
            (json!({"args": ["-y", "--token", CANARY]}), "args[2]"),
            (json!({"args": [format!("--api-key={CANARY}")]}), "args[0]"),
            (
                json!({"args": ["-H", format!("X-Api-Key: {CANARY}")]}),
                "args[1]",
            ),
            (
                json!({"args": ["--header", format!("Authorization: Basic {CANARY}")]}),
                "args[1]",
            ),
            (
                json!({"args": [format!("--header=Authorization:Bearer {CANARY}")]}),
                "args[0]",
            ),
            (
                json!({"args": ["-e", format!("X_SECRET={CANARY}")]}),
                "args[1]",
            ),
            (
                json!({"args": [format!("GITHUB_TOKEN={CANARY}")]}),
                "args[0]",
            ),
            (json!({"args": ["-u", format!("me:{CANARY}")]}), "args[1]"),
            (
                json!({"args": [format!("https://me:{CANARY}@h/x")]}),
                "args[0]",
            ),
            (
                json!({"args": ["-c", format!("curl -H 'Authorization: Bearer {CANARY}' h")]}),
                "args[1]",
            ),
            (
                json!({"args": ["-c", format!("TOKEN={CANARY} run")]}),
                "args[1]",
            ),
            (
                json!({"args": ["-c", format!("run --password {CANARY}")]}),
                "args[1]",
            ),
            (
                json!({"args": [format!("{{\"token\": \"{CANARY}\"}}")]}),
                "args[0]",
            ),
            (
                json!({"command": "mysql", "args": [format!("-p{CANARY}")]}),
                "args[0]",
            ),
            (
                json!({"command": format!("run --token={CANARY}")}),
                "command",
            ),
            (json!({"cwd": format!("/srv/{token}")}), "cwd"),
            (
                json!({"oauth": {"client_secret": CANARY}}),
                "oauth.client_secret",
            ),
        ] {
            assert_eq!(found(&config).as_deref(), Some(place), "{config}");
            let shown = mask::server(&config).to_string();
            assert!(!shown.contains(CANARY), "{shown}");
        }
        for config in [
            json!({"env": {"PASSWORD": 12_345_678}}),
            json!({"env": {"PASSWORD": "correct horse battery"}}),
            json!({"env": {"A": "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n"}}),
            json!({"env": {"A": "xoxb-1234-5678-abcd"}}),
            json!({"env": {"A": "AKIAIOSFODNN7EXAMPLE"}}),
            json!({"args": ["--k", "sk-live-abcdefghijklmnopqrst"]}),
        ] {
            assert!(found(&config).is_some(), "{config}");
        }
    }

    #[test]
    fn long_and_random_words_references_and_settings_are_no_credentials() {
        let commit = "3f786850e387550fdab836ed7e6dc881de23001b";
        let digest = format!("sha256:{}", "9f86d081884c7d65".repeat(4));
        let sheet = "1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms";
        for config in [
            json!({"args": ["--ref", commit, "--image", format!("x@{digest}"), sheet]}),
            json!({"args": [format!("git+https://github.com/a/b@{commit}"), "ssh://git@github.com/a/b"]}),
            json!({"args": ["-y", "@modelcontextprotocol/server-everything", "/srv/data", "pkg@1.2.3"]}),
            json!({"args": ["-c", "echo \"arg is $0\" >&2"], "command": "sh"}),
            json!({"args": ["-c", "curl -H \"Authorization: Bearer $TOKEN\" https://h/x?token=$TOKEN"]}),
            json!({"args": ["-c", "TOKEN=$(cat /run/secrets/token) exec run --token \"$TOKEN\""]}),
            json!({"args": ["-c", "import os; token = os.environ['TOKEN']; print('token:', len(token))"]}),
            json!({"args": ["-e", "const key = process.env.API_KEY; run({key})"]}),
            json!({"args": ["--allow=/data1,/data2", "--port", 8080, "-p", "8080:80", "-u", "1000:1000"]}),
            json!({"args": ["--token-file", "/run/secrets/token", "--ssl-key=/etc/ssl/server.pem", "--max-tokens=4096"]}),
            json!({"args": ["-H", "Accept: application/json", "-e", "REGION=eu-central-1", "--auth", "oauth"]}),
            json!({"args": ["--url", "https://h.example/mcp?sort=name&page=2#top", "--api-key-env", "X_KEY"]}),
            json!({"args": ["exec", "server --help | grep token"]}),
            json!({"env": {"TOKEN": "${GITHUB_TOKEN}", "H": "Bearer ${TOKEN}", "REGION": "eu-central-1", "PORT": 8080}}),
            json!({"env": {"SHEET_ID": sheet, "COMMIT": commit, "MAX_TOKENS": "4096", "TOKENIZERS_PARALLELISM": "false"}}),
            json!({"env": {"GOOGLE_APPLICATION_CREDENTIALS": "/srv/creds.json", "TOKEN_URL": "https://h/oauth/token"}}),
            json!({"env": {"DATABASE_URL": "postgres://me:${DB_PASSWORD}@h/db", "USE_AUTH_TOKEN": "true", "MONKEY": "see"}}),
            json!({"env": {"npm_config_registry": "https://registry.npmjs.org/", "A": "sk-learn", "B": "npm_config_cache"}}),
            json!({"source": "registry", "name": "a/token-server", "package_type": "npm", "personal": ["TOKEN"]}),
        ] {
            assert_eq!(found(&config), None, "{config}");
        }
    }
}
