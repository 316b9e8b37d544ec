//! Recognizes values that are credentials: by their names, by their formats, and by the options that precede them.
//!
//! The rules are those of `tooldock_base::mask`. An ambiguous value counts as a credential, since it is harmless to move an
//! ordinary value to the secrets store, whereas a file should not contain secrets.

use tooldock_base::mask::{self, MASK};

use crate::variable::variable_name;

/// Text by which the mask replaces a login in a URL.
const LOGIN: &str = "[redacted]";

/// Returns true if the value of a variable, a header or a parameter is a credential.
pub(crate) fn is_secret(name: &str, value: &str) -> bool {
    !value.trim().is_empty() && (mask::is_credential_of(name, value) || mask::text(value) != value)
}

/// A credential within a command's argument. It cannot be printed.
pub(crate) struct ArgumentSecret {
    /// Name for the credential, derived from the option in front of it.
    pub(crate) name: String,
    pub(crate) before: String,
    pub(crate) value: String,
    pub(crate) after: String,
}

/// Finds the credentials in the arguments of a command, at most one per argument.
pub(crate) fn in_arguments(arguments: &[&str]) -> Vec<Option<ArgumentSecret>> {
    let masked = mask::arguments(arguments.iter().copied());
    let pairs = arguments.iter().zip(&masked).enumerate();
    let found = pairs.map(|(at, (argument, masked))| {
        if argument == masked {
            return None;
        }
        let (before, value, after) = cut(argument, masked);
        if is_pinned(before, value) {
            return None;
        }
        let option = before
            .trim_end_matches(|last: char| !last.is_ascii_alphanumeric())
            .rsplit(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c)))
            .next()
            .unwrap_or_default();
        let option = match (option, at.checked_sub(1).map(|before| arguments[before])) {
            ("", Some(option)) if option.starts_with("--") => option,
            (option, _) => option,
        };
        let name = match variable_name(option).as_str() {
            "VALUE" | "HTTP" | "HTTPS" => format!("ARGUMENT_{}", at + 1),
            name if name.len() < 3 => format!("ARGUMENT_{}", at + 1),
            name => name.to_owned(),
        };
        Some(ArgumentSecret {
            name,
            before: before.to_owned(),
            value: value.to_owned(),
            after: after.to_owned(),
        })
    });
    found.collect()
}

/// Splits a text into the parts before, within and after its masked section. If the section is ambiguous, the complete text
/// counts as the masked value.
fn cut<'a>(text: &'a str, masked: &str) -> (&'a str, &'a str, &'a str) {
    let whole = ("", text, "");
    let marks = [MASK, LOGIN];
    let first = marks.iter().filter_map(|mark| masked.find(mark)).min();
    let last = marks
        .iter()
        .filter_map(|mark| Some(masked.rfind(mark)? + mark.len()))
        .max();
    let (Some(first), Some(last)) = (first, last) else {
        return whole;
    };
    let (before, after) = (&masked[..first], &masked[last..]);
    let inner = text
        .strip_prefix(before)
        .and_then(|rest| rest.strip_suffix(after));
    match inner {
        Some(value) if !value.is_empty() => (
            &text[..before.len()],
            value,
            &text[before.len() + value.len()..],
        ),
        _ => whole,
    }
}

/// Returns true if a value is the commit or digest of a pinned package or image: `image@sha256:DIGEST`, `github:a/b#COMMIT`.
fn is_pinned(before: &str, value: &str) -> bool {
    let argument = format!("{before}{value}");
    let Some(at) = argument.rfind([':', '#', '@']) else {
        return false;
    };
    let (package, digest) = argument.split_at(at + 1);
    let is_hex = digest.len() >= 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_package = package.ends_with("@sha256:") || package.ends_with(['#', '@']);
    is_hex && is_package && !package.contains('=')
}

/// Returns true if a URL has a credential in its path or its parameters. A login in the URL is checked separately.
pub(crate) fn in_url(url: &str) -> bool {
    let (path, parameters) = match url.split_once(['?', '#']) {
        Some((path, parameters)) => (path, parameters),
        None => (url, ""),
    };
    let is_parameter = |field: &str| match field.split_once('=') {
        Some((name, value)) => is_secret(name, value),
        None => is_secret("", field),
    };
    // Segments of the path, after scheme and host: services put tokens of unusual formats there.
    let mut segments = path.split('/').skip(3);
    let is_in_path = segments.any(mask::looks_like_a_value);
    is_in_path || mask::url(path) != path || parameters.split(['&', '?', '#']).any(is_parameter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_found_by_name_and_by_shape() {
        for (name, value) in [
            ("GITHUB_TOKEN", "hunter2"),
            ("X", "ghp_0123456789abcdef0123456789abcdef0123"),
            ("DATABASE_URL", "postgres://u:pw@h/db"),
            ("ID", "0123456789abcdef0123456789abcdef"),
        ] {
            assert!(is_secret(name, value), "{name}");
        }
        for (name, value) in [
            ("LOG_LEVEL", "debug"),
            ("API_TOKEN", ""),
            ("TOKEN_FILE", "/run/secrets/token"),
            ("URL", "https://example.com/mcp"),
        ] {
            assert!(!is_secret(name, value), "{name}");
        }
    }

    #[test]
    fn credentials_in_arguments_are_cut_out_and_named_by_their_options() {
        let found = |arguments: &[&str]| {
            let found = in_arguments(arguments).into_iter().enumerate();
            let found = found.filter_map(|(at, it)| it.map(|it| (at, it)));
            let mut found = found.map(|(at, it)| {
                (
                    at,
                    it.name,
                    format!("{}|{}|{}", it.before, it.value, it.after),
                )
            });
            found.next()
        };
        let is = |at: usize, name: &str, cut: &str| Some((at, name.to_owned(), cut.to_owned()));
        assert_eq!(
            found(&["--api-key=k3y"]),
            is(0, "API_KEY", "--api-key=|k3y|")
        );
        assert_eq!(found(&["--api-key", "k3y"]), is(1, "API_KEY", "|k3y|"));
        assert_eq!(
            found(&["-e", "GITHUB_TOKEN=ghp_abcdef"]),
            is(1, "GITHUB_TOKEN", "GITHUB_TOKEN=|ghp_abcdef|")
        );
        assert_eq!(
            found(&["--header", "Authorization: Bearer abc"]),
            is(1, "AUTHORIZATION", "Authorization: |Bearer abc|")
        );
        let digest = "0123456789abcdef".repeat(4);
        for plain in [
            "-y".to_owned(),
            "@scope/package@1.2.3".to_owned(),
            format!("image@sha256:{digest}"),
            format!("github:a/b#{}", &digest[..40]),
        ] {
            assert_eq!(found(&[&plain]), None, "{plain}");
        }
        let token = "fig0123456789abcdef0123456789abcdef";
        assert_eq!(
            found(&["run", token]),
            is(1, "ARGUMENT_2", &format!("|{token}|"))
        );
    }

    #[test]
    fn credentials_in_urls_are_found() {
        assert!(in_url("https://h/mcp?api_key=k3y"));
        assert!(in_url("https://h/s/0123456789abcdef0123456789abcdef/mcp"));
        assert!(in_url(
            "https://h/api/mcp/s/NzBhZmQ0MDAtYTBkNy00NTZhLTk0/mcp"
        ));
        assert!(!in_url("https://h/mcp?region=eu"));
        assert!(!in_url("https://h:8080/mcp"));
    }
}
