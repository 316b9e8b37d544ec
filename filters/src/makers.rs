//! The maker of an API key: the credential with which the key was created. This module maps each credential to its
//! configuration entry.
//!
//! [`tooldock_credentials::keys`] decides the rights and the expiry of keys that a maker creates. This module determines the
//! names and hashes of configuration entries. A key's record contains them, so that its maker's entry is found again after a
//! reload.

use std::sync::Arc;
use std::time::SystemTime;

use tooldock_base::key_maker::{EntryHash, EntryName, KeyMaker, MakerCredential};
use tooldock_credentials::keys::KeyMakers;

use crate::config::{
    AdmissionConfig, CertificateConfig, OauthConfig, TokenConfig, TokenNamespaces,
};

/// Message: a certificate that is accepted only at some listeners cannot create API keys, since keys are accepted at all
/// listeners.
const SOME_LISTENERS: &str = "a certificate that counts at some listeners alone makes no API keys, since these would count at all of them; ask the operator";
/// Message: an access token without an expiry cannot create API keys.
const ENDLESS: &str = "an access token without an end makes no API keys, since these would outlast it; ask the operator";

/// Maker of API keys for a configured token: identifies the token's entry in API keys that are created with it.
pub(crate) fn of_token(token: &TokenConfig) -> KeyMaker {
    credential(
        EntryName::token(&token.name),
        &token.name,
        hash_of_token(token),
        token.namespaces.as_slice().into(),
        None,
    )
}

/// Maker of API keys for a client certificate: identifies the certificate's entry in API keys that are created with it.
pub(crate) fn of_certificate(certificate: &CertificateConfig) -> KeyMaker {
    if !certificate.listeners.is_empty() {
        return KeyMaker::Barred(SOME_LISTENERS);
    }
    credential(
        EntryName::certificate(&certificate.name),
        &certificate.name,
        hash_of_certificate(certificate),
        certificate.namespaces.as_slice().into(),
        None,
    )
}

/// Maker of API keys for an access token: identifies the issuer's entry in API keys that are created with it. The keys expire
/// together with the token.
pub(crate) fn of_access_token(
    issuer: &str,
    entry: EntryHash,
    principal: &str,
    namespaces: Arc<[String]>,
    ends: Option<SystemTime>,
) -> KeyMaker {
    match ends {
        Some(_) => credential(
            EntryName::issuer(issuer),
            principal,
            entry,
            namespaces,
            ends,
        ),
        None => KeyMaker::Barred(ENDLESS),
    }
}

fn credential(
    entry: EntryName,
    principal: &str,
    fingerprint: EntryHash,
    namespaces: Arc<[String]>,
    ends: Option<SystemTime>,
) -> KeyMaker {
    KeyMaker::Credential(Arc::new(MakerCredential {
        entry,
        principal: principal.into(),
        fingerprint,
        namespaces,
        ends,
    }))
}

fn hash_of_token(token: &TokenConfig) -> EntryHash {
    let digest = token.sha256.bytes();
    EntryHash::of([&b"token"[..], token.name.as_bytes(), &digest[..]])
}

fn hash_of_certificate(certificate: &CertificateConfig) -> EntryHash {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    let (san, subject) = (text(&certificate.san), text(&certificate.subject));
    EntryHash::of([
        &b"certificate"[..],
        certificate.name.as_bytes(),
        san.as_bytes(),
        subject.as_bytes(),
    ])
}

/// Hash over all settings of an issuer that determine the principals of its tokens and their rights. A list of namespaces is not
/// hashed, since it is compared with the namespaces of each key.
pub(crate) fn hash_of_issuer(issuer: &OauthConfig) -> EntryHash {
    let claim = match &issuer.namespaces {
        TokenNamespaces::Listed(_) => None,
        TokenNamespaces::Claimed(it) => Some(&it.claim),
    };
    let (audience, jwks, algorithms) = (&issuer.audience, &issuer.jwks, &issuer.algorithms);
    let judged = (
        audience,
        jwks,
        algorithms,
        &issuer.principal,
        &issuer.scopes,
        claim,
    );
    let judged = serde_json::to_vec(&judged).expect("plain data with string keys serializes");
    EntryHash::of([&b"oauth"[..], issuer.issuer.as_bytes(), &judged[..]])
}

impl AdmissionConfig {
    /// All configuration entries whose credentials can create API keys. Used to find the maker of an existing key.
    pub fn key_makers(&self) -> KeyMakers {
        let mut makers = KeyMakers::default();
        for token in &self.tokens {
            let namespaces = token.namespaces.as_slice().into();
            let name = EntryName::token(&token.name);
            makers.add(name, hash_of_token(token), Some(namespaces));
        }
        let everywhere = |it: &&CertificateConfig| it.listeners.is_empty();
        for certificate in self.certificates.iter().filter(everywhere) {
            let namespaces = certificate.namespaces.as_slice().into();
            let name = EntryName::certificate(&certificate.name);
            makers.add(name, hash_of_certificate(certificate), Some(namespaces));
        }
        for issuer in &self.oauth {
            let namespaces = match &issuer.namespaces {
                TokenNamespaces::Listed(listed) => Some(listed.as_slice().into()),
                TokenNamespaces::Claimed(_) => None,
            };
            let name = EntryName::issuer(&issuer.issuer);
            makers.add(name, hash_of_issuer(issuer), namespaces);
        }
        makers
    }
}
