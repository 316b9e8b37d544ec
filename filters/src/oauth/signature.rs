//! Verifies signatures with the library `ring`, which is already used for TLS. The JWT library accepts an external implementation
//! of cryptography. The implementation in the JWT library would be a second one of the same algorithms.

use std::sync::OnceLock;

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils, verify};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature as ring;

static RING: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Returns true if the signature is valid for the message. Every error counts as an invalid signature.
pub(super) fn is_right(
    signature: &str,
    message: &str,
    key: &DecodingKey,
    algorithm: Algorithm,
) -> bool {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    // Installing fails if a provider is installed already. That is no problem, since every provider verifies signatures.
    INSTALLED.get_or_init(|| {
        let _ = RING.install_default();
    });
    verify(signature, message.as_bytes(), key, algorithm).unwrap_or(false)
}

/// Always returns an error: the JWT library requires a function that creates signers, but the gateway signs no tokens.
fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(RingVerifier {
        algorithm: *algorithm,
        key: key.clone(),
    }))
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let right = match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let parameters = match self.algorithm {
                    Algorithm::RS256 => &ring::RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::RS384 => &ring::RSA_PKCS1_2048_8192_SHA384,
                    Algorithm::RS512 => &ring::RSA_PKCS1_2048_8192_SHA512,
                    Algorithm::PS256 => &ring::RSA_PSS_2048_8192_SHA256,
                    Algorithm::PS384 => &ring::RSA_PSS_2048_8192_SHA384,
                    Algorithm::PS512 => &ring::RSA_PSS_2048_8192_SHA512,
                    _ => return Err(signature::Error::new()),
                };
                ring::RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            DecodingKeyKind::SecretOrDer(point) => {
                let parameters: &dyn ring::VerificationAlgorithm = match self.algorithm {
                    Algorithm::ES256 => &ring::ECDSA_P256_SHA256_FIXED,
                    Algorithm::ES384 => &ring::ECDSA_P384_SHA384_FIXED,
                    Algorithm::EdDSA => &ring::ED25519,
                    _ => return Err(signature::Error::new()),
                };
                ring::UnparsedPublicKey::new(parameters, point).verify(message, signature)
            }
        };
        right.map_err(|_| signature::Error::new())
    }
}
