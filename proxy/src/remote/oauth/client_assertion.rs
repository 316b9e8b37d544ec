//! Client assertions: JWTs with which the gateway authenticates at a token endpoint in place of a client secret
//! (`private_key_jwt`: RFC 7523 §2.2, OpenID Connect Core §9).

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::Request;
use http::header::AUTHORIZATION;
use oauth2::url::form_urlencoded::Serializer;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    RSA_PKCS1_SHA256, RsaKeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;
use tooldock_base::secret::Secret;
use tooldock_workers::remote::ClientKey;

use super::token_endpoint::pairs;

/// Value of the parameter `client_assertion_type` (RFC 7523 §2.2).
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
/// Lifetime of an assertion, in seconds. Each request has an assertion of its own.
const LIFETIME: u64 = 60;
/// Keys that can sign, as text that follows "is" in errors.
pub(crate) const CLIENT_KEY_NEEDED: &str = "no usable private key: write an RSA (2048 bits or more), P-256, P-384 or Ed25519 key \
                                            as PEM, unencrypted, as `openssl pkcs8 -topk8 -nocrypt` writes it";

/// Returns true if a client key can sign assertions.
pub(crate) fn is_client_key(pem: &str) -> bool {
    SigningKey::parse(pem).is_some()
}

/// A private key by its signature algorithm.
enum SigningKey {
    Rs256(Box<RsaKeyPair>),
    Es256(EcdsaKeyPair),
    Es384(EcdsaKeyPair),
    EdDsa(Ed25519KeyPair),
}

impl SigningKey {
    /// Parses a PEM file with an unencrypted key. Line ends may be written as `\n`, as in variables of one line.
    fn parse(pem: &str) -> Option<Self> {
        let pem = pem.replace("\\n", "\n");
        let random = SystemRandom::new();
        match PrivateKeyDer::from_pem_slice(pem.as_bytes()).ok()? {
            PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der())
                .ok()
                .map(|it| Self::Rs256(Box::new(it))),
            PrivateKeyDer::Pkcs8(der) => {
                let der = der.secret_pkcs8_der();
                let elliptic = |curve| EcdsaKeyPair::from_pkcs8(curve, der, &random).ok();
                elliptic(&ECDSA_P256_SHA256_FIXED_SIGNING)
                    .map(Self::Es256)
                    .or_else(|| elliptic(&ECDSA_P384_SHA384_FIXED_SIGNING).map(Self::Es384))
                    .or_else(|| {
                        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der);
                        key.ok().map(Self::EdDsa)
                    })
                    .or_else(|| {
                        let key = RsaKeyPair::from_pkcs8(der);
                        key.ok().map(|it| Self::Rs256(Box::new(it)))
                    })
            }
            _ => None,
        }
    }

    /// Returns the name of the signature algorithm in the header of a JWT (RFC 7518 §3.1, RFC 8037 §3.1).
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rs256(_) => "RS256",
            Self::Es256(_) => "ES256",
            Self::Es384(_) => "ES384",
            Self::EdDsa(_) => "EdDSA",
        }
    }

    /// Signs a message. `None` if the system has no randomness.
    fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            Self::Rs256(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .ok()?;
                Some(signature)
            }
            Self::Es256(key) | Self::Es384(key) => {
                let signature = key.sign(&random, message).ok()?;
                Some(signature.as_ref().to_vec())
            }
            Self::EdDsa(key) => Some(key.sign(message).as_ref().to_vec()),
        }
    }
}

/// Creates an assertion of the client `id` for the authorization server `audience`: its issuer, or the URL of its token endpoint
/// if the issuer is not known.
///
/// # Errors
///
/// When the key cannot be used. The text does not contain the key.
pub(super) fn assertion(key: &ClientKey, id: &str, audience: &str) -> Result<Secret, String> {
    let unusable = || format!("oauth.client_key is {CLIENT_KEY_NEEDED}");
    let signing = SigningKey::parse(key.pem.expose()).ok_or_else(unusable)?;
    let mut number = [0; 16];
    let random = SystemRandom::new().fill(&mut number);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let (Ok(()), Ok(now)) = (random, now.map(|it| it.as_secs())) else {
        return Err(
            "the machine has no randomness or no time of day for a client assertion".to_owned(),
        );
    };
    let mut header = json!({"alg": signing.algorithm(), "typ": "JWT"});
    if let Some(id) = &key.id {
        header["kid"] = id.as_str().into();
    }
    let claims = json!({
        "iss": id, "sub": id, "aud": audience, "jti": hex::encode(number), "iat": now, "exp": now + LIFETIME,
    });
    let part = |value: &serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(&header), part(&claims));
    let signature = signing.sign(message.as_bytes()).ok_or_else(unusable)?;
    let signature = BASE64_URL_SAFE_NO_PAD.encode(signature);
    Ok(Secret::new(format!("{message}.{signature}")))
}

/// Returns a token request in which the assertion replaces each other credential of the client.
pub(super) fn with_assertion(
    request: &Request<Vec<u8>>,
    id: &str,
    assertion: &Secret,
) -> Request<Vec<u8>> {
    let mut body = Serializer::new(String::new());
    let of_client = |key: &str| key == "client_id" || key == "client_secret";
    body.extend_pairs(pairs(request.body()).filter(|(key, _)| !of_client(key)));
    body.append_pair("client_id", id);
    body.append_pair("client_assertion_type", ASSERTION_TYPE);
    body.append_pair("client_assertion", assertion.expose());
    let mut signed = Request::new(body.finish().into_bytes());
    *signed.method_mut() = request.method().clone();
    *signed.uri_mut() = request.uri().clone();
    *signed.headers_mut() = request.headers().clone();
    signed.headers_mut().remove(AUTHORIZATION);
    signed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pem: String) -> ClientKey {
        ClientKey {
            pem: Secret::new(pem),
            id: Some("key-1".to_owned()),
        }
    }

    #[test]
    fn each_supported_key_makes_an_assertion_that_its_public_key_verifies() {
        for (algorithm, (name, verification)) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, verification("ES256")),
            (&rcgen::PKCS_ECDSA_P384_SHA384, verification("ES384")),
            (&rcgen::PKCS_ED25519, verification("EdDSA")),
        ] {
            let pair = rcgen::KeyPair::generate_for(algorithm).expect("a key");
            let pem = pair.serialize_pem();
            for pem in [pem.replace('\n', "\\n"), pem] {
                let made = assertion(&key(pem), "gw", "https://i.example").expect("an assertion");
                let parts: Vec<_> = made.expose().split('.').collect();
                let [header, claims, signature] = parts[..] else {
                    panic!("three parts");
                };
                let read = |part: &str| {
                    let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).expect("base64");
                    serde_json::from_slice::<serde_json::Value>(&bytes).expect("JSON")
                };
                let (header, claims) = (read(header), read(claims));
                assert_eq!(header["alg"], name);
                assert_eq!(header["kid"], "key-1");
                for (name, value) in [("iss", "gw"), ("sub", "gw"), ("aud", "https://i.example")] {
                    assert_eq!(claims[name], value);
                }
                assert_eq!(claims["jti"].as_str().map(str::len), Some(32));
                let (message, _) = made.expose().rsplit_once('.').expect("a message");
                let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).expect("base64");
                let public = rcgen::PublicKeyData::der_bytes(&pair);
                ring::signature::UnparsedPublicKey::new(verification, public)
                    .verify(message.as_bytes(), &signature)
                    .expect("a valid signature");
            }
        }
    }

    /// A signature algorithm by its name in a JWT, with its verification.
    fn verification(
        name: &'static str,
    ) -> (
        &'static str,
        &'static dyn ring::signature::VerificationAlgorithm,
    ) {
        (
            name,
            match name {
                "ES256" => &ring::signature::ECDSA_P256_SHA256_FIXED,
                "ES384" => &ring::signature::ECDSA_P384_SHA384_FIXED,
                _ => &ring::signature::ED25519,
            },
        )
    }

    #[test]
    fn a_text_that_is_no_key_is_refused_without_being_shown() {
        for text in [
            "hunter2",
            "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----",
        ] {
            let error = assertion(&key(text.to_owned()), "gw", "https://i").expect_err(text);
            assert!(
                error.contains("oauth.client_key") && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_assertion_replaces_the_secret_of_a_request() {
        let body = b"grant_type=client_credentials&client_id=gw&client_secret=&scope=x".to_vec();
        let mut request = Request::new(body);
        let basic = http::HeaderValue::from_static("Basic Z3c6");
        request.headers_mut().insert(AUTHORIZATION, basic);
        let signed = with_assertion(&request, "gw", &Secret::new("a.b.c"));
        assert!(signed.headers().is_empty());
        let body = String::from_utf8(signed.into_body()).expect("text");
        assert_eq!(
            body,
            "grant_type=client_credentials&scope=x&client_id=gw&client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3A\
             client-assertion-type%3Ajwt-bearer&client_assertion=a.b.c"
        );
    }
}
