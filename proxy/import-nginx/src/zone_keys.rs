//! The keys by which zones of `limit_req` and `limit_conn` count requests. The gateway can count by three keys: address,
//! principal or namespace. A zone with a key of several variables, or one that does not count some requests, is not imported.

use std::collections::BTreeSet;

use crate::tree::Directive;
use crate::values::{is_literal, only_variable};
use crate::variables::{Key as MapKey, Variables};

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
            "binary_remote_addr" | "remote_addr" => Some(Self::Address),
            "http_authorization" | "http_x_api_key" | "ssl_client_s_dn" | "remote_user" => {
                Some(Self::Principal)
            }
            "server_name" | "host" | "http_host" | "uri" | "request_uri" => Some(Self::Namespace),
            _ => None,
        }
    }

    /// Returns the key by which a zone counts; `None` if the gateway cannot count by it.
    pub(crate) fn of(zone: &Directive, variables: &Variables<'_>) -> Option<Self> {
        let text = zone.first();
        // A zone whose key has no variable counts all requests together; the gateway's nearest equivalent counts by namespace.
        if is_literal(text) {
            return Some(Self::Namespace);
        }
        let name = only_variable(text)?;
        Self::of_variable(name).or_else(|| Self::of_map(name, variables))
    }

    /// Returns `Principal` if a `map` gives each token or subject a name of its own and all other clients none. nginx does not
    /// count requests with an empty value; the gateway counts them.
    fn of_map(name: &str, variables: &Variables<'_>) -> Option<Self> {
        let map = variables.map(name)?;
        let source = only_variable(map.source).and_then(Self::of_variable);
        let mut names = BTreeSet::new();
        let are_apart = map.entries.iter().all(|it| {
            let is_name = is_literal(it.value) && !it.value.is_empty();
            matches!(it.key, MapKey::Text(text) if !text.is_empty())
                && is_name
                && names.insert(it.value)
        });
        let is_key = source == Some(Self::Principal) && map.default.is_empty() && are_apart;
        (is_key && !variables.is_made_without_map(name)).then_some(Self::Principal)
    }
}

/// Returns NAME of the argument `zone=NAME:SIZE`.
pub(crate) fn zone_name(zone: &Directive) -> Option<&str> {
    zone.option("zone")?.split(':').next()
}
