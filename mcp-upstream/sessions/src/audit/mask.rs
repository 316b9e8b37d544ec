//! Masks secrets in the arguments that the audit log contains: values whose key looks like that of a secret.

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

const MASK: &str = "***MASKED***";
/// Words that mark a secret: if the letters of a key contain one of them, its value is masked.
const SECRET_WORDS: [&str; 11] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "authorization",
    "credential",
    "privatekey",
    "connectionstring",
    "cookie",
];

/// Returns the arguments with secrets masked; `None` if they are not valid JSON.
pub(super) fn masked(arguments: &[u8]) -> Option<Box<RawValue>> {
    let mut value = serde_json::from_slice(arguments).ok()?;
    mask(&mut value);
    to_raw_value(&value).ok()
}

/// Masks secrets in a value. The recursion is bounded, since the parser refuses nesting deeper than 128.
fn mask(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if is_secret(key) {
                    *value = MASK.into();
                } else {
                    mask(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        _ => {}
    }
}

fn is_secret(key: &str) -> bool {
    let letters: String = key
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|letter| letter.to_ascii_lowercase())
        .collect();
    SECRET_WORDS.iter().any(|word| letters.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_keys_are_masked_at_every_level() {
        let arguments = br#"{"user":"u","api_key":"k","deep":[{"DB-Password":{"a":1},"n":2}]}"#;
        let text = masked(arguments).expect("JSON").get().to_owned();
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            value,
            serde_json::json!({"user":"u","api_key":MASK,"deep":[{"DB-Password":MASK,"n":2}]})
        );
        assert!(masked(b"no json").is_none());
    }
}
