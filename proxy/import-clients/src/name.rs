//! Names of namespaces, derived from the names that people give to servers in their clients.

use tooldock_base::names::{NAMESPACE_NAME_MAX, NamespaceName};

/// Converts any text to a valid name of a namespace: lowercase, with `-` for every other character. Returns `server` if no
/// character remains.
pub fn valid(label: &str) -> NamespaceName {
    let mut name = String::new();
    for letter in label.chars().flat_map(char::to_lowercase) {
        match letter {
            'a'..='z' | '0'..='9' | '_' => name.push(letter),
            // A run of invalid characters becomes a single dash.
            _ if !name.ends_with('-') => name.push('-'),
            _ => {}
        }
    }
    let name = match name.trim_start_matches(['-', '_']).trim_end_matches('-') {
        // `global` is the scope of secrets for all namespaces, so it cannot be the name of a namespace.
        "global" => "global-server",
        name => name,
    };
    parsed(&name[..name.len().min(NAMESPACE_NAME_MAX)])
}

/// A name with an appended number, such as `search-2`.
pub fn numbered(name: &NamespaceName, number: usize) -> NamespaceName {
    let end = format!("-{number}");
    let room = NAMESPACE_NAME_MAX - end.len();
    let begin = name.as_str();
    parsed(&format!("{}{end}", &begin[..begin.len().min(room)]))
}

fn parsed(name: &str) -> NamespaceName {
    let fallback = |_| "server".parse().expect("a valid name");
    name.parse().unwrap_or_else(fallback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_becomes_a_valid_name() {
        for (label, name) in [
            ("github", "github"),
            ("Global", "global-server"),
            ("GitHub Copilot", "github-copilot"),
            ("@scope/pkg.v2", "scope-pkg-v2"),
            ("_system", "system"),
            ("Überblick", "berblick"),
            ("日本", "server"),
            ("", "server"),
        ] {
            assert_eq!(valid(label).as_str(), name, "{label}");
        }
        let long = valid(&"a".repeat(100));
        assert_eq!(long.as_str().len(), 63);
        assert_eq!(numbered(&long, 12).as_str().len(), 63);
        assert!(numbered(&long, 12).as_str().ends_with("-12"));
    }
}
