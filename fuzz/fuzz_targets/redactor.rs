//! Redaction of secrets in the output of child processes. Lines up to the first empty line are secrets, the rest is output.

#![no_main]

use tooldock_base::redactor::Redactor;
use tooldock_base::secret::Secret;

const MARK: &str = "[redacted]";

libfuzzer_sys::fuzz_target!(|input: &str| {
    let (secrets, text) = input.split_once("\n\n").unwrap_or((input, ""));
    let secrets: Vec<Secret> = secrets.lines().map(Secret::new).collect();
    let redactor = Redactor::new(&secrets);
    for cut in [false, true] {
        let shown = redactor.hide(text.as_bytes().to_vec(), cut);
        let shown = String::from_utf8_lossy(&shown).into_owned();
        for secret in secrets
            .iter()
            .map(|it| it.expose().trim_matches(['\r', '\n']))
        {
            if secret.len() < 4 || secret.contains(MARK) {
                continue;
            }
            let json = serde_json::Value::from(secret).to_string();
            for form in [secret, &json[1..json.len() - 1]] {
                let is_shown = shown.split(MARK).any(|part| part.contains(form));
                assert!(!is_shown, "a secret is shown");
            }
        }
    }
});
