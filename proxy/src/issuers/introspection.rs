//! Token introspection: asks an issuer whether an opaque token is valid (RFC 7662).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::StatusCode;
use tooldock_filters::oauth::Issuer;

use crate::config::client_password;
use crate::remote::{Fetch, Fetcher};

/// Maximum size of an issuer's response, in bytes.
const ANSWER_MAX: usize = 64 * 1024;

/// Time limit for an issuer's response.
const DEADLINE: Duration = Duration::from_secs(5);

/// Asks an issuer about a token. Returns the body of the response.
///
/// # Errors
///
/// The cause, for the log. It contains neither the token nor the gateway's password.
pub(super) async fn ask(fetcher: &Fetcher, issuer: &Issuer, token: &str) -> Result<Bytes, String> {
    let at = issuer
        .introspection()
        .ok_or("the issuer has no introspection endpoint")?;
    let from = issuer.config().endpoint(&at.url)?;
    let form = format!("token={}&token_type_hint=access_token", encoded(token));
    let secret = client_password("introspection", &at.client_secret)?;
    let credentials = format!("{}:{}", encoded(&at.client_id), encoded(&secret));
    let authorization = format!("Basic {}", STANDARD.encode(credentials));
    let fetched = fetcher.fetch(Fetch {
        from: &from,
        allow_private: issuer.config().allow_private,
        form: Some(&form),
        authorization: Some(&authorization),
        bytes_max: ANSWER_MAX,
        deadline: DEADLINE,
    });
    match fetched.await? {
        (StatusCode::OK, body) => Ok(body),
        (status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), _) => Err(format!(
            "{}: answered {status}; check introspection.client_id and client_secret",
            from.id()
        )),
        (status, _) => Err(format!("{}: answered {status}", from.id())),
    }
}

/// Encodes a text as a value in a URL-encoded form.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_in_forms_is_encoded() {
        assert_eq!(
            encoded("a+b/c=&d e:\u{e4}"),
            "a%2Bb%2Fc%3D%26d%20e%3A%C3%A4"
        );
        assert_eq!(encoded("A-z_0.9~"), "A-z_0.9~");
    }
}
