//! The keys by which zones of `limit_req` and `limit_conn` count requests. The gateway can count by three keys: address,
//! principal or namespace.

use std::collections::{BTreeMap, BTreeSet};

use crate::guards::token_digest;
use crate::principals::cleaned;
use crate::rules::Rules;
use crate::tree::Directive;
use crate::values::{Piece, is_literal, only_variable, pieces};
use crate::variables::Key as MapKey;
use crate::view::View;

/// The key by which a zone of nginx counts requests, as the gateway names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Address,
    Principal,
    /// The zone has a single count for a server or a path. The gateway counts such requests by namespace.
    Namespace,
}

impl Key {
    pub(crate) fn name(self) -> &'static str {
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

    /// Returns the keys by which a zone counts, without duplicates; `None` if the gateway cannot count by one of them.
    pub(crate) fn all_of(text: &str, view: &View<'_>) -> Option<BTreeSet<Self>> {
        let mut keys = BTreeSet::new();
        for piece in pieces(text) {
            let Piece::Variable(name) = piece else {
                continue;
            };
            match Self::of_variable(name) {
                Some(key) => drop(keys.insert(key)),
                None => drop(keys.insert(Self::of_map(name, view)?)),
            }
        }
        // A zone whose key has no variable counts all requests together; the gateway's nearest equivalent counts by namespace.
        if keys.is_empty() {
            keys.insert(Self::Namespace);
        }
        Some(keys)
    }

    /// Returns true if nginx does not count some requests of admitted clients in a zone with this key: their key is empty.
    pub(crate) fn exempts(text: &str, view: &View<'_>) -> bool {
        pieces(text).into_iter().any(|piece| {
            let Piece::Variable(name) = piece else {
                return false;
            };
            let Some(map) = view.variables.map(name) else {
                return false;
            };
            let source = only_variable(map.source).and_then(Self::of_variable);
            // An empty key for requests without a valid token exempts no admitted client, as such requests are refused.
            let of_strangers = source == Some(Self::Principal);
            let mut exempted = map.entries.iter().filter(|it| it.value.is_empty());
            exempted.any(|it| !(of_strangers && it.key == MapKey::Text("")))
                || map.default.is_empty() && !of_strangers
        })
    }

    /// Returns the key to which the values of a `map` correspond. nginx does not count requests with an empty value; the gateway
    /// counts them.
    fn of_map(name: &str, view: &View<'_>) -> Option<Self> {
        if view.variables.is_made_without_map(name) {
            return None;
        }
        let map = view.variables.map(name)?;
        let header = only_variable(map.source);
        let of_principals = header.and_then(Self::of_variable) == Some(Self::Principal);
        let mut keys = BTreeSet::new();
        let mut clients: BTreeMap<&str, usize> = BTreeMap::new();
        let mut credentials = BTreeSet::new();
        let mut has_strangers = false;
        let entries = map.entries.iter().map(|it| (Some(it.key), it.value));
        for (key, value) in entries.chain([(None, map.default)]) {
            let is_literal = of_principals && is_literal(value);
            match key {
                _ if value.is_empty() => {}
                Some(MapKey::Text(credential)) if is_literal && !credential.is_empty() => {
                    *clients.entry(value).or_default() += 1;
                    credentials.insert(credential);
                }
                // This line of the `map` has a constant value: nginx counts all clients that match the line together.
                _ if is_literal => has_strangers = true,
                _ => drop(keys.insert(Self::of_variable(only_variable(value)?)?)),
            }
        }
        if !clients.is_empty() {
            let are_principals = clients.iter().all(|(name, credentials)| {
                *credentials == 1 || is_principal(name, *credentials, view)
            });
            let header = header.unwrap_or_default();
            if !are_principals || has_strangers && !lets_in_alone(&credentials, header, view) {
                return None;
            }
            keys.insert(Self::Principal);
        } else if has_strangers {
            return None;
        }
        let mut keys = keys.into_iter();
        keys.next().filter(|_| keys.next().is_none())
    }
}

/// Returns true if at least `credentials` admitted tokens have this name. Such tokens become one principal, so that the gateway
/// counts their requests together, as nginx does.
fn is_principal(name: &str, credentials: usize, view: &View<'_>) -> bool {
    let called = view.tokens().filter(|token| token.name == Some(name));
    let digests: BTreeSet<_> = called.map(|token| &token.digest).collect();
    cleaned(name).is_some() && digests.len() >= credentials
}

/// Returns true if all admitted clients send one of `credentials` in `header`. Then the zone counts no other clients.
fn lets_in_alone(credentials: &BTreeSet<&str>, header: &str, view: &View<'_>) -> bool {
    let digests = credentials.iter().filter_map(|it| token_digest(it, header));
    let digests: BTreeSet<_> = digests.collect();
    let is_alone = |rules: &Rules<'_>| match (&rules.tokens, &rules.subjects) {
        (Some((tokens, _)), _) => tokens.iter().all(|it| digests.contains(&it.digest)),
        (None, Some((subjects, _))) => subjects.iter().all(|(_, it)| credentials.contains(it)),
        (None, None) => false,
    };
    !view.rules.is_empty() && view.rules.iter().all(is_alone)
}

/// Returns NAME of the argument `zone=NAME:SIZE`.
pub(crate) fn zone_name(zone: &Directive) -> Option<&str> {
    zone.option("zone")?.split(':').next()
}
