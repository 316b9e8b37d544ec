//! The keys of the zones of `limit_req` and `limit_conn`: address, principal or namespace, which the gateway counts by, too.

use std::collections::BTreeSet;

use super::tree::Directive;
use super::values::{Piece, is_literal, only_variable, pieces};
use super::variables::{Key as MapKey, Variables};

/// The key that a zone counts by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Address,
    Principal,
    /// A single count for a server or a path, which is a namespace here.
    Namespace,
}

impl Key {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Principal => "principal",
            Self::Namespace => "namespace",
        }
    }

    fn of_variable(name: &str) -> Option<Self> {
        match name {
            "binary_remote_addr" | "remote_addr" | "proxy_protocol_addr" => Some(Self::Address),
            "http_authorization"
            | "http_x_api_key"
            | "http_api_key"
            | "ssl_client_s_dn"
            | "ssl_client_fingerprint"
            | "remote_user" => Some(Self::Principal),
            "server_name" | "host" | "http_host" | "uri" | "document_uri" | "request_uri"
            | "server_port" | "server_addr" => Some(Self::Namespace),
            _ => None,
        }
    }

    /// The keys of a zone, each once. `None` if one of them is no key of the gateway.
    pub(super) fn all_of(text: &str, variables: &Variables<'_>) -> Option<BTreeSet<Self>> {
        let mut keys = BTreeSet::new();
        for piece in pieces(text) {
            let Piece::Variable(name) = piece else {
                continue;
            };
            match Self::of_variable(name) {
                Some(key) => drop(keys.insert(key)),
                None => drop(keys.insert(Self::of_map(name, variables)?)),
            }
        }
        // A text without variables is one count for all requests.
        if keys.is_empty() {
            keys.insert(Self::Namespace);
        }
        Some(keys)
    }

    /// The key that a map makes of requests. Requests with an empty value are exempt in nginx, and counted all the same here.
    fn of_map(name: &str, variables: &Variables<'_>) -> Option<Self> {
        if variables.is_made_without_map(name) {
            return None;
        }
        let map = variables.map(name)?;
        let of_principals =
            only_variable(map.source).and_then(Self::of_variable) == Some(Self::Principal);
        let mut names = BTreeSet::new();
        let mut keys = BTreeSet::new();
        let entries = map.entries.iter().map(|it| (Some(it.key), it.value));
        for (key, value) in entries.chain([(None, map.default)]) {
            if value.is_empty() {
                continue;
            }
            // A name for a single credential is the name of a principal.
            let is_name =
                of_principals && is_literal(value) && matches!(key, Some(MapKey::Text(_)));
            keys.insert(match is_name {
                true if names.insert(value) => Self::Principal,
                true => return None,
                false => Self::of_variable(only_variable(value)?)?,
            });
        }
        let mut keys = keys.into_iter();
        keys.next().filter(|_| keys.next().is_none())
    }
}

/// The name of a zone.
pub(super) fn zone_name(zone: &Directive) -> Option<&str> {
    zone.option("zone")?.split(':').next()
}
