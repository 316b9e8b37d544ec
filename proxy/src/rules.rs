//! Builds the rules for requests from a configuration: at the start, and again at each reload.

use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use pingora_core::protocols::l4::socket::SocketAddr;
use tooldock_base::secret::Secret;
use tooldock_credentials::keys::KeyTables;
use tooldock_filters::{
    AcceptRule, Admission, Auth, EndpointAliases, ListenerRules, NamespaceRule, RouteGroup,
    SecretToken,
};
use tooldock_sessions::profile::{self, Profile};
use tooldock_sessions::session::config::StoreConfig;

use crate::body::BodyLimits;
use crate::config::{self, Effective, ListenAddress, ListenerConfig, ProfileName, ProfileSpec};
use crate::connection::ConnectionLimits;
use crate::header_edits::HeaderEdits;

/// A listener with the settings that its requests need.
pub(crate) struct GatewayListener {
    /// The listener's name in the configuration.
    pub(crate) name: Arc<str>,
    /// The configured address, by which the listener of a request is found.
    pub(crate) address: ListenAddress,
    /// True if connections begin with a header of the PROXY protocol.
    pub(crate) proxy_protocol: bool,
    /// The changes that the listener makes to headers; `None` if it makes none.
    pub(crate) headers: Option<Arc<HeaderEdits>>,
    /// The listener's rules for admission.
    pub(crate) rules: ListenerRules,
    /// The listener's settings for the service.
    pub(crate) profile: Arc<Profile>,
}

/// Settings that a reload may change while requests run.
pub(crate) struct Rules {
    pub(crate) admission: Admission,
    pub(crate) listeners: Vec<GatewayListener>,
    /// True if at least one listener changes headers.
    pub(crate) edits_headers: bool,
    pub(crate) bodies: BodyLimits,
    pub(crate) write_timeout: Duration,
    /// Maximum idle time of a connection between requests, in seconds; `None` closes the connection after each response.
    pub(crate) keepalive: Option<u64>,
}

impl Rules {
    /// Returns true if at least one listener admits requests without a credential.
    pub(crate) fn admits_anonymous(&self) -> bool {
        let mut listeners = self.listeners.iter();
        listeners.any(|listener| matches!(listener.rules.auth, Auth::None | Auth::Optional))
    }
}

/// Finds the listener of a connection by the local address of the connection.
pub(crate) fn listener_at<'a>(
    listeners: &'a [GatewayListener],
    local: Option<&SocketAddr>,
) -> Option<&'a GatewayListener> {
    let local = local?;
    listeners.iter().find(|it| is_bound_to(&it.address, local))
}

/// Returns true if a connection with the local address `local` belongs to the listener at `address`. Connections store the
/// address of their listener as their local address (see `edge`).
fn is_bound_to(address: &ListenAddress, local: &SocketAddr) -> bool {
    match (address, local) {
        (ListenAddress::Tcp(address), SocketAddr::Inet(local)) => address == local,
        (ListenAddress::Unix(path), SocketAddr::Unix(local)) => {
            local.as_pathname() == Some(path.as_path())
        }
        _ => false,
    }
}

/// Builds the rules of admission from a configuration. `keys` are the tables of API keys; changes of the keys apply without a new
/// call.
///
/// # Errors
///
/// A line of text that names the wrong key of the configuration.
pub(crate) fn admission(effective: &Effective, keys: KeyTables) -> Result<Admission, String> {
    let hashed = |variable: &str, token: &Secret| {
        SecretToken::new(token.expose()).map_err(|error| format!("{variable}: {error}"))
    };
    let bearer = effective
        .bearer
        .as_ref()
        .map(|token| hashed("BEARER_TOKEN", token))
        .transpose()?;
    let manager = hashed("MANAGER_INTERNAL_TOKEN", &effective.manager_token)?;
    let admission = Admission::new(&effective.config.admission, bearer, Some(manager))
        .and_then(|admission| admission.with_issuers(&effective.scopes()))
        .map_err(|error| error.to_string())?;
    let admission = admission.with_keys(keys);
    Ok(match effective.config.sessions.store {
        StoreConfig::Redis(_) => admission.shared_by_replicas(),
        StoreConfig::Memory | StoreConfig::Disk => admission,
    })
}

/// Builds the rules for requests from a configuration.
pub(crate) fn rules(effective: &Effective, admission: Admission) -> Rules {
    let admission_config = &effective.config.admission;
    let listeners = listeners(effective);
    // The idle time is rounded up to whole seconds, as Pingora needs it. Rounding down would turn half a second into zero.
    let keepalive = admission_config
        .timeouts
        .keepalive
        .as_millis()
        .div_ceil(1000) as u64;
    Rules {
        admission,
        edits_headers: listeners.iter().any(|listener| listener.headers.is_some()),
        listeners,
        bodies: BodyLimits {
            bytes: in_memory(admission_config.limits.body),
            total: in_memory(admission_config.limits.bodies_total),
            deadline: admission_config.timeouts.body,
        },
        write_timeout: admission_config.timeouts.write,
        keepalive: (keepalive > 0).then_some(keepalive),
    }
}

/// The limit on the memory of all responses together, in bytes.
pub(crate) fn answers_total(effective: &Effective) -> usize {
    in_memory(effective.config.admission.limits.answers_total)
}

/// Converts a size to a number of bytes in memory; `usize::MAX` if it does not fit.
fn in_memory(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

/// The limits on connections from a configuration.
pub(crate) fn connection_limits(effective: &Effective) -> ConnectionLimits {
    let admission = &effective.config.admission;
    ConnectionLimits {
        header: admission.timeouts.header,
        keepalive: admission.timeouts.keepalive,
        write: admission.timeouts.write,
        header_bytes: in_memory(admission.limits.header_bytes),
    }
}

/// Builds the list of listeners, with the settings that requests need.
fn listeners(effective: &Effective) -> Vec<GatewayListener> {
    let admission = &effective.config.admission;
    let of_tokens = admission.tokens.iter().map(|token| &token.namespaces);
    let certificates = admission.certificates.iter();
    let scoped_tokens = of_tokens
        .chain(certificates.map(|certificate| &certificate.namespaces))
        .any(|namespaces| !namespaces.iter().any(|pattern| pattern == "*"))
        // If API keys may exist, some credentials may be limited to some namespaces: keys can be added at any time, and most
        // open only some namespaces.
        || effective.keys_file().exists();
    let public_url = effective.config.admission.public_url.origin();
    let overrides = effective.config.namespaces.overrides.iter();
    let aliases = EndpointAliases::new(overrides.flat_map(|(namespace, patch)| {
        let paths = patch.aliases.iter();
        paths.map(move |path| (path.as_str(), namespace))
    }));
    let made = |listener: &ListenerConfig, spec: &ProfileSpec| {
        let mut answers = listener.answers(spec);
        let mut routes = spec.routes;
        if listener.profile == ProfileName::Vault {
            let vault = &effective.config.vault;
            if listener.namespace.is_none() {
                answers.namespace = Some(vault.namespace.clone());
            }
            answers.raw_result = vault.raw_result;
            if vault.ui().is_none() {
                routes = routes.without(RouteGroup::Ui);
            }
            if !vault.rest {
                routes = routes.without(RouteGroup::Vault);
            }
        }
        if !effective.legacy_sse {
            routes = routes.without(RouteGroup::Sse);
        }
        answers.scoped_tokens = scoped_tokens;
        answers.public_url = public_url.unwrap_or_default().to_owned();
        answers.require_initialized = effective
            .require_initialized
            .unwrap_or(answers.require_initialized);
        answers.initialized_wait = effective.config.sessions.initialized_wait;
        GatewayListener {
            name: listener.name.as_str().into(),
            proxy_protocol: listener.proxy_protocol,
            // Errors cannot occur here: the check of the configuration has refused header changes that cannot be made.
            headers: HeaderEdits::of(&listener.headers)
                .ok()
                .flatten()
                .map(Arc::new),
            address: listener.address.clone(),
            rules: ListenerRules {
                loopback: listener.address.is_loopback(),
                routes,
                namespace: match (&answers.namespace, listener.namespace_source(spec)) {
                    (Some(name), _) if name.is_system() => NamespaceRule::System,
                    (Some(name), _) => NamespaceRule::Fixed(name.clone()),
                    (None, config::NamespaceRule::Path) => NamespaceRule::Path,
                    (None, config::NamespaceRule::Global) => NamespaceRule::Global,
                    (None, _) => NamespaceRule::Header,
                },
                accept: match answers.accept {
                    profile::AcceptRule::Strict => AcceptRule::Auto,
                    profile::AcceptRule::Lenient => AcceptRule::Lenient,
                },
                auth: listener.admission_auth(spec),
                certificates: (!admission.certificates.is_empty()
                    && listener.asks_for_certificates())
                .then(|| listener.name.as_str().into()),
                modern: answers.modern,
                basic: listener
                    .takes_basic(spec)
                    .then(|| effective.web.user.as_str().into()),
                path_prefix: (!answers.path_prefix.is_empty())
                    .then(|| answers.path_prefix.as_str().into()),
                aliases: match spec.has_aliases() {
                    true => aliases.clone(),
                    false => EndpointAliases::NONE,
                },
                open_probes: answers.open_probes,
            },
            profile: Arc::new(answers),
        }
    };
    let served = effective.served_listeners();
    served
        .map(|(_, listener)| made(listener, listener.profile.spec()))
        .collect()
}
