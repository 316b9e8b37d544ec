//! The format of an encrypted file: a JSON object with the ciphertext and the parameters for decryption (K-01).
//!
//! Version 2 is AES-256-GCM under a key that PBKDF2-HMAC-SHA256 derives. All header fields are authenticated with the
//! ciphertext, so a lowered number of iterations or a changed date is detected. Version 1 is the format of the older Python
//! system. A file of version 1, or with fewer iterations than now usual, is upgraded to the current format by its next write.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aes_gcm::aead::{Aead as _, Payload};
use aes_gcm::{Aes256Gcm, KeyInit as _, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use humantime_serde::re::humantime::format_rfc3339_seconds;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::fernet;
use super::key::{ITERATIONS_MAX, ITERATIONS_MIN, SecretsKey};

const CIPHER: &str = "AES-256-GCM";
const KDF: &str = "PBKDF2-HMAC-SHA256";
const KDF_1: &str = "pbkdf2-sha256";
/// Number of PBKDF2 iterations for files of version 1 that do not specify the number.
const ITERATIONS_1: u32 = 390_000;
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;

/// Decrypted content of an encrypted file.
pub(super) struct OpenedEnvelope {
    pub(super) plain: Zeroizing<Vec<u8>>,
    /// Salt for the next write under the same key; `None` for a file of an older format, whose next write creates another salt.
    pub(super) salt: Option<Salt>,
}

/// Salt for the derivation of a file's key.
pub(super) type Salt = [u8; SALT_BYTES];

/// Reason why an encrypted file cannot be opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A field of the file is missing or not valid.
    Damaged(String),
    /// The file's format version is not supported.
    Newer(u64),
    /// The key is wrong, or the file was changed.
    CannotDecrypt,
}

#[derive(Deserialize)]
struct Envelope {
    version: u64,
    cipher: Option<String>,
    kdf: Kdf,
    iterations: Option<u32>,
    salt: String,
    nonce: Option<String>,
    ciphertext: String,
    #[serde(default)]
    created_at: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Kdf {
    Name(String),
    Parameters {
        name: String,
        iterations: Option<u32>,
    },
}

#[derive(Serialize)]
struct WrittenEnvelope<'a> {
    version: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    cipher: Option<&'a str>,
    kdf: WrittenKdf<'a>,
    salt: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    nonce: Option<&'a str>,
    ciphertext: &'a str,
    created_at: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WrittenKdf<'a> {
    Name(&'a str),
    Parameters { name: &'a str, iterations: u32 },
}

/// Returns true if a text looks like an encrypted file of either version, even if it is damaged.
pub(super) fn is_envelope(text: &[u8]) -> bool {
    text.trim_ascii_start().starts_with(b"{")
        && text
            .windows(b"\"ciphertext\"".len())
            .any(|part| part == b"\"ciphertext\"")
}

/// Decrypts a file of either format version.
pub(super) fn open(text: &[u8], key: &SecretsKey) -> Result<OpenedEnvelope, Fault> {
    let envelope: Envelope = serde_json::from_slice(text).map_err(|error| {
        // Only the position is reported: the parser's message may quote the file.
        let (line, column) = (error.line(), error.column());
        Fault::Damaged(format!(
            "not the JSON of an encrypted file (line {line}, column {column})"
        ))
    })?;
    match envelope.version {
        1 => open_1(&envelope, key),
        2 => open_2(&envelope, key),
        other => Err(Fault::Newer(other)),
    }
}

fn open_1(envelope: &Envelope, key: &SecretsKey) -> Result<OpenedEnvelope, Fault> {
    let (name, iterations) = match &envelope.kdf {
        Kdf::Name(name) => (name, envelope.iterations),
        Kdf::Parameters { name, iterations } => (name, iterations.or(envelope.iterations)),
    };
    if name != KDF_1 {
        return Err(unknown("kdf"));
    }
    let iterations = within(iterations.unwrap_or(ITERATIONS_1))?;
    let salt = URL_SAFE
        .decode(&envelope.salt)
        .map_err(|_| not_base64("salt"))?;
    let derived = key.derive(&salt, iterations);
    let plain = fernet::open(&envelope.ciphertext, &derived).ok_or(Fault::CannotDecrypt)?;
    Ok(OpenedEnvelope { plain, salt: None })
}

fn open_2(envelope: &Envelope, key: &SecretsKey) -> Result<OpenedEnvelope, Fault> {
    let Kdf::Parameters { name, iterations } = &envelope.kdf else {
        return Err(unknown("kdf"));
    };
    if name != KDF {
        return Err(unknown("kdf.name"));
    }
    if envelope.cipher.as_deref() != Some(CIPHER) {
        return Err(unknown("cipher"));
    }
    let iterations = within(iterations.ok_or_else(|| unknown("kdf.iterations"))?)?;
    let salt = STANDARD
        .decode(&envelope.salt)
        .map_err(|_| not_base64("salt"))?;
    let nonce = STANDARD.decode(envelope.nonce.as_deref().unwrap_or_default());
    let nonce = nonce.map_err(|_| not_base64("nonce"))?;
    let nonce = <[u8; NONCE_BYTES]>::try_from(nonce)
        .map_err(|_| Fault::Damaged("nonce: not 12 bytes".to_owned()))?;
    let ciphertext = STANDARD
        .decode(&envelope.ciphertext)
        .map_err(|_| not_base64("ciphertext"))?;
    let aad = header(iterations, &envelope.salt, &envelope.created_at);
    let derived = key.derive(&salt, iterations);
    let payload = Payload {
        msg: &ciphertext,
        aad: aad.as_bytes(),
    };
    let plain = Aes256Gcm::new((&*derived).into())
        .decrypt(&Nonce::from(nonce), payload)
        .map_err(|_| Fault::CannotDecrypt)?;
    Ok(OpenedEnvelope {
        plain: Zeroizing::new(plain),
        salt: Salt::try_from(salt)
            .ok()
            .filter(|_| iterations == key.iterations),
    })
}

/// Encrypts a text in the format of version 2. If `salt` is `None`, a new salt is created.
pub(super) fn seal(
    plain: &[u8],
    key: &SecretsKey,
    salt: Option<Salt>,
    now: SystemTime,
) -> Result<String, getrandom::Error> {
    let salt = salt.map_or_else(random, Ok)?;
    let nonce: [u8; NONCE_BYTES] = random()?;
    let created_at = date(now);
    let salt_text = STANDARD.encode(salt);
    let aad = header(key.iterations, &salt_text, &created_at);
    let payload = Payload {
        msg: plain,
        aad: aad.as_bytes(),
    };
    let ciphertext = Aes256Gcm::new((&*key.derive(&salt, key.iterations)).into())
        .encrypt(&Nonce::from(nonce), payload)
        .expect("nothing near the cipher's limit of 64 GiB is sealed here");
    Ok(written(&WrittenEnvelope {
        version: 2,
        cipher: Some(CIPHER),
        kdf: WrittenKdf::Parameters {
            name: KDF,
            iterations: key.iterations,
        },
        salt: &salt_text,
        nonce: Some(&STANDARD.encode(nonce)),
        ciphertext: &STANDARD.encode(ciphertext),
        created_at: &created_at,
    }))
}

/// Encrypts a text in the format of version 1, which the older Python system reads.
pub(super) fn seal_fernet(
    plain: &[u8],
    key: &SecretsKey,
    now: SystemTime,
) -> Result<String, getrandom::Error> {
    let salt: Salt = random()?;
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let token = fernet::seal(plain, &key.derive(&salt, ITERATIONS_1), since.as_secs())?;
    Ok(written(&WrittenEnvelope {
        version: 1,
        cipher: None,
        kdf: WrittenKdf::Name(KDF_1),
        salt: &URL_SAFE.encode(salt),
        nonce: None,
        ciphertext: &token,
        created_at: &date(now).replace('Z', "+00:00"),
    }))
}

fn written(envelope: &WrittenEnvelope<'_>) -> String {
    let mut text = serde_json::to_string(envelope).expect("texts and numbers are JSON");
    text.push('\n');
    text
}

/// The associated data of the encryption: every field except nonce and ciphertext, as written in the file.
fn header(iterations: u32, salt: &str, created_at: &str) -> String {
    format!("v2|{CIPHER}|{KDF}|{iterations}|{salt}|{created_at}")
}

fn date(now: SystemTime) -> String {
    // The time is limited to the range that the format can represent.
    let now = now
        .max(UNIX_EPOCH)
        .min(UNIX_EPOCH + Duration::from_secs(250_000_000_000));
    format_rfc3339_seconds(now).to_string()
}

fn within(iterations: u32) -> Result<u32, Fault> {
    match iterations {
        ITERATIONS_MIN..=ITERATIONS_MAX => Ok(iterations),
        _ => Err(Fault::Damaged(format!(
            "kdf: {iterations} iterations, where {ITERATIONS_MIN} to {ITERATIONS_MAX} can be"
        ))),
    }
}

fn unknown(field: &str) -> Fault {
    Fault::Damaged(format!("{field}: not known"))
}

fn not_base64(field: &str) -> Fault {
    Fault::Damaged(format!("{field}: not base64"))
}

fn random<const N: usize>() -> Result<[u8; N], getrandom::Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use tooldock_base::secret::Secret;

    use super::*;

    const PLAIN: &str = r#"{"global":{"GITHUB_TOKEN":"ghp_example_value"},"namespaces":{"slack":{"SLACK_BOT_TOKEN":"xoxb-example"}}}"#;
    /// EX-61, made with Python's `cryptography`.
    const VERSION_2: &str = r#"{"version": 2, "cipher": "AES-256-GCM", "kdf": {"name": "PBKDF2-HMAC-SHA256", "iterations": 600000}, "salt": "AAECAwQFBgcICQoLDA0ODw==", "nonce": "ZGVmZ2hpamtsbW5v", "ciphertext": "BaNsMk6N0YHvPpKamCzG+NIvEQQAZQFrjEQN22h/X8hlQ49GVnfy24bU85P2bQrhpSpbrukiJWUWzOrWdpmHCgBK6W/t5CVrlB8hxky5SEtmUYNs9kvpdjeJB7gckfD9qbgmKXUBqW49c4FkISaEwi19/0Ya97qirA==", "created_at": "2026-02-13T10:00:00Z"}"#;
    /// EX-61b, in the form that the Python system wrote.
    const VERSION_1: &str = r#"{"version": 1, "kdf": "pbkdf2-sha256", "salt": "yMnKy8zNzs_Q0dLT1NXW1w==", "ciphertext": "gAAAAABpjvYgAAECAwQFBgcICQoLDA0OD-gQRmR1Tl_fqA6paP5b_hUxmtdEmIPlywJILaQKfhsHxxe30WNXIQDjxqcQ1-TXDTQo5IbEhWHkgvlRY5bS9gspeJ3vp6Ygu3nBulphRgNJS3brMGHlIyeKwPklOAq9VRYN7DpaGPmePfYbQ76lh2EquifadwPEquA4oZhH4ScBAasHLUbFyRzL1_5epGaNDA==", "created_at": "2026-02-13T10:00:00+00:00"}"#;

    fn key(text: &str) -> SecretsKey {
        SecretsKey::new(Secret::new(text))
    }

    fn quick(text: &str) -> SecretsKey {
        SecretsKey::quick(text)
    }

    fn text(opened: &OpenedEnvelope) -> &str {
        std::str::from_utf8(&opened.plain).unwrap()
    }

    #[test]
    fn files_of_both_versions_that_python_made_are_read() {
        let key = key("test-secrets-key");
        let two = open(VERSION_2.as_bytes(), &key).unwrap();
        assert_eq!(text(&two), PLAIN);
        assert!(two.salt.is_some(), "it stays while the key does");
        let one = open(VERSION_1.as_bytes(), &key).unwrap();
        assert_eq!(text(&one), PLAIN);
        assert!(one.salt.is_none(), "the next write is version 2");
    }

    #[test]
    fn every_changed_field_and_every_flipped_byte_is_refused() {
        let key = quick("k");
        let now = UNIX_EPOCH + Duration::from_secs(1_770_976_800);
        let sealed = seal(PLAIN.as_bytes(), &key, None, now).unwrap();
        assert_eq!(text(&open(sealed.as_bytes(), &key).unwrap()), PLAIN);
        assert!(
            sealed.contains("\"created_at\":\"2026-02-13T10:00:00Z\""),
            "{sealed}"
        );
        let another_year = sealed.replace("2026-02", "2025-02");
        let fewer = sealed.replace("\"iterations\":1000", "\"iterations\":1001");
        for changed in [another_year, fewer] {
            assert_ne!(changed, sealed);
            let fault = open(changed.as_bytes(), &key).err();
            assert_eq!(fault, Some(Fault::CannotDecrypt));
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] ^= 1;
            // The file opens only if the change is in white space.
            if let Ok(opened) = open(&changed, &key) {
                let name = String::from_utf8_lossy(&changed).into_owned();
                assert!(sealed[at..].starts_with('\n'), "byte {at}: {name}");
                assert_eq!(text(&opened), PLAIN);
            }
        }
        let fault = open(sealed.as_bytes(), &quick("other")).err();
        assert_eq!(fault, Some(Fault::CannotDecrypt));
    }

    #[test]
    fn two_writes_share_the_salt_and_never_the_nonce() {
        let key = quick("k");
        let first = seal(b"{}", &key, None, SystemTime::now()).unwrap();
        let salt = open(first.as_bytes(), &key).unwrap().salt;
        let second = seal(b"{}", &key, salt, SystemTime::now()).unwrap();
        let field = |text: &str, name: &str| {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            value[name].as_str().unwrap().to_owned()
        };
        assert_eq!(field(&first, "salt"), field(&second, "salt"));
        assert_ne!(field(&first, "nonce"), field(&second, "nonce"));
    }

    #[test]
    fn a_file_for_going_back_is_read_as_version_1() {
        let key = key("k");
        let sealed = seal_fernet(PLAIN.as_bytes(), &key, SystemTime::now()).unwrap();
        assert!(
            sealed.starts_with(r#"{"version":1,"kdf":"pbkdf2-sha256","#),
            "{sealed}"
        );
        assert_eq!(text(&open(sealed.as_bytes(), &key).unwrap()), PLAIN);
    }

    #[test]
    fn what_is_no_envelope_or_a_newer_one_is_named() {
        let fault = |text: &str| open(text.as_bytes(), &quick("k")).err().unwrap();
        let cut = &VERSION_2[..200];
        assert!(matches!(fault(cut), Fault::Damaged(_)) && is_envelope(VERSION_2.as_bytes()));
        assert_eq!(
            fault(&VERSION_2.replace("\"version\": 2", "\"version\": 3")),
            Fault::Newer(3)
        );
        for (from, to, field) in [
            ("600000", "99999999", "kdf"),
            ("AES-256-GCM", "ROT13", "cipher"),
            ("ZGVmZ2hpamtsbW5v", "ZGVm", "nonce"),
            ("AAECAw", "!!!!!!", "salt"),
        ] {
            let Fault::Damaged(reason) = fault(&VERSION_2.replace(from, to)) else {
                panic!("{from}");
            };
            assert!(reason.starts_with(field), "{reason}");
        }
        assert!(!is_envelope(b"global: { ciphertext: x }"));
    }
}
