//! Checks that the values of a configuration are consistent with each other, and warns about unusual combinations.
//!
//! Bounds of single values are checked in `bounds.rs`; the keys of `admission` are checked in the crate `filters`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tooldock_base::config::Limits;
use tooldock_base::names::NamespaceName;
use tooldock_base::policy::ToolPolicy;
use tooldock_base::precedence::Source;
use tooldock_base::scope::ScopeTable;
use tooldock_filters::RouteGroups;
use tooldock_filters::config::Introspection;
use tooldock_filters::origin::OriginPattern;
use tooldock_sessions::session::config::{SessionsConfig, StoreConfig};
use tooldock_sessions::stores::redis::{RedisStore, RedisUrl};
use tooldock_upstream::hooks::HOOKS_MAX;
use tooldock_upstream::protocol::ProtocolVersion;
use tooldock_workers::narrow::selects_tools;
use tooldock_workers::remote::Mode;

use super::address::ListenAddress;
use super::client_secret::client_password;
use super::listener::{ListenerConfig, ProfileName};
use super::replicas::ReplicasConfig;
use super::{Config, ConfigError, Role, bounds};
use crate::header_edits::HeaderEdits;

/// Checks that the values of a configuration are consistent. Unsupported keys must have been refused before.
pub(super) fn check(config: &Config, role: Role, dev: bool) -> Result<(), ConfigError> {
    listeners(config)?;
    addresses(config, role, dev)?;
    for (key, empty) in [
        ("data_dir", config.data_dir.as_os_str().is_empty()),
        ("workers.python", config.workers.python.trim().is_empty()),
        (
            "workers.base_env",
            config.workers.base_env.trim().is_empty(),
        ),
    ] {
        if empty {
            return Err(ConfigError::key(key, "is empty"));
        }
    }
    let admission = config.admission.validate();
    admission.map_err(|error| ConfigError::key(error.key, error.message))?;
    certificates(config)?;
    bounds::check(config)?;
    config.relay.check()?;
    config.replicas.check()?;
    config.observability.otlp.check()?;
    if let StoreConfig::Redis(url) = &config.sessions.store {
        let parsed: Result<RedisUrl, _> = url.expose().parse();
        parsed.map_err(|error| {
            ConfigError::key("sessions.store", format!("{error}: {}", url.masked()))
        })?;
    }
    RedisStore::check_prefix(&config.sessions.store_prefix)
        .map_err(|error| ConfigError::key("sessions.store_prefix", error))?;
    for (name, server) in &config.upstreams.stdio {
        server.validate().map_err(|error| {
            ConfigError::key(
                format!("upstreams.stdio.{name}.{}", error.key),
                error.message,
            )
        })?;
    }
    let builder = config.builder.validate();
    builder.map_err(|(key, reason)| ConfigError::key(format!("builder.{key}"), reason))?;
    remote_servers(config)?;
    apis(config)?;
    hooks(config)?;
    issuers(config, &config.relay.scope_table()?)?;
    let mut served = config.served_listeners(role);
    if served.any(|(_, listener)| listener.profile == ProfileName::Vault) {
        config.vault.check()?;
    }
    aliases(config, role)?;
    patterns(config)
}

/// Checks that the scopes of issuers' tokens are mapped to scopes that exist in the gateway.
fn issuers(config: &Config, scopes: &ScopeTable) -> Result<(), ConfigError> {
    for (index, issuer) in config.admission.oauth.iter().enumerate() {
        for (name, permission) in &issuer.scopes {
            scopes.compile(&[permission]).map_err(|error| {
                let key = format!("admission.oauth[{index}].scopes.{name}");
                ConfigError::key(key, error.to_string())
            })?;
        }
    }
    Ok(())
}

/// Checks the remote servers, and finds other keys of the configuration that contradict them.
fn remote_servers(config: &Config) -> Result<(), ConfigError> {
    for (name, server) in &config.upstreams.remote {
        let at = |key: &str| format!("upstreams.remote.{name}.{key}");
        let valid = server.validate();
        valid.map_err(|error| ConfigError::key(at(&error.key), error.message))?;
        if !server.enabled {
            continue;
        }
        if has_operators_stdio(config, name) {
            let key = format!("upstreams.remote.{name}");
            let message = "upstreams.stdio has a server of this name, too: rename one of them";
            return Err(ConfigError::key(key, message));
        }
        let filtered = selects_tools(&config.namespaces, name, &server.limits);
        if server.mode == Mode::PassThrough && filtered {
            let message = "pass_through changes nothing of a list, and namespaces has tools_allow or tools_deny for this one: write client or auto";
            return Err(ConfigError::key(at("mode"), message));
        }
    }
    Ok(())
}

/// Returns true if the operator's configuration has a stdio server of this name that is switched on.
fn has_operators_stdio(config: &Config, name: &NamespaceName) -> bool {
    let stdio = config.upstreams.stdio.get(name);
    stdio.is_some_and(|it| it.enabled && it.source == Source::Operator)
}

/// Checks `upstreams.openapi`: the keys of each API, and that no other server has the API's namespace.
fn apis(config: &Config) -> Result<(), ConfigError> {
    for (name, api) in &config.upstreams.openapi {
        let at = |key: &str| format!("upstreams.openapi.{name}{key}");
        let valid = api.validate();
        valid.map_err(|error| ConfigError::key(at(&format!(".{}", error.key)), error.message))?;
        let stdio = has_operators_stdio(config, name);
        let remote = config
            .upstreams
            .remote
            .get(name)
            .is_some_and(|it| it.enabled);
        for (other, has_one) in [("upstreams.stdio", stdio), ("upstreams.remote", remote)] {
            if api.enabled && has_one {
                let message = format!("{other} has a server of this name, too: rename one of them");
                return Err(ConfigError::key(at(""), message));
            }
        }
    }
    Ok(())
}

/// Checks the hooks, and that no hook is for a server whose messages pass through unread.
fn hooks(config: &Config) -> Result<(), ConfigError> {
    let hooks = &config.hooks;
    if hooks.len() > HOOKS_MAX {
        let message = format!("has more than {HOOKS_MAX} entries");
        return Err(ConfigError::key("hooks", message));
    }
    for (index, hook) in hooks.iter().enumerate() {
        let wrong = |(key, message)| ConfigError::key(format!("hooks[{index}].{key}"), message);
        hook.validate().map_err(wrong)?;
        let scope = hook.scope().map_err(wrong)?;
        let mut servers = config.upstreams.remote.iter();
        let passes = servers.find(|(name, server)| {
            server.enabled && server.mode == Mode::PassThrough && scope.opens(name)
        });
        if let Some((name, _)) = passes {
            let message = format!(
                "pass_through shows a hook nothing, and hooks[{index}] is for this namespace: write client or auto"
            );
            let key = format!("upstreams.remote.{name}.mode");
            return Err(ConfigError::key(key, message));
        }
    }
    Ok(())
}

/// Adds warnings about replicas: those that cannot find or reach each other, keys that have an effect only with a shared Redis,
/// and connections between replicas without TLS.
fn replicas(config: &Config, warnings: &mut Vec<String>) {
    let is_alone = config.sessions.store == StoreConfig::Memory;
    let shares_a_redis = matches!(config.sessions.store, StoreConfig::Redis(_));
    let encrypts = config.replicas.tls.listener().is_some();
    for (key, is_set) in [
        (
            "replicas.peers",
            config.replicas.peers != ReplicasConfig::default().peers,
        ),
        (
            "sessions.store_prefix",
            config.sessions.store_prefix != SessionsConfig::default().store_prefix,
        ),
    ] {
        if is_set && !shares_a_redis {
            warnings.push(format!(
                "{key} has no effect: it is for replicas of a Redis (sessions.store: redis://…), and sessions.store is {}",
                if is_alone { "memory" } else { "disk" }
            ));
        }
    }
    match config.replicas.address() {
        Some(_) if is_alone => warnings.push(
            "replicas.address has no effect: replicas share sessions by a Redis (sessions.store: redis://…) or, on one machine, \
             by their data directory (disk)"
                .into(),
        ),
        Some((address, bound)) if !bound.ip().is_loopback() && !encrypts => warnings.push(format!(
            "replicas.address: requests between replicas cross the network to {address} unencrypted, with the credentials of \
             clients: set replicas.tls, or keep that port to a private network"
        )),
        None if shares_a_redis => warnings.push(
            "replicas.address is off: other replicas of this Redis could not forward requests to the sessions that live here".into(),
        ),
        _ => {}
    }
}

/// Returns warnings about settings that are allowed but may be mistakes.
pub(super) fn warnings(config: &Config, role: Role) -> Vec<String> {
    let mut warnings = Vec::new();
    replicas(config, &mut warnings);
    let any_origin = config.admission.origins.contains(&OriginPattern::ANY);
    for (index, listener) in config.served_listeners(role) {
        if listener.is_open() && listener.profile.serves_tools() {
            warnings.push(format!(
                "listeners[{index}] asks for no credentials: whoever reaches {} can call its tools",
                listener.address
            ));
        }
        if listener.is_for_this_machine() || listener.profile == ProfileName::Metrics {
            continue;
        }
        let beyond = if listener.proxy_protocol {
            "serves clients of a load balancer"
        } else {
            "listens beyond loopback"
        };
        let at = format!("listeners[{index}] {beyond}, on {}", listener.address);
        if any_origin {
            let advice = "list the web pages you trust";
            warnings.push(format!(
                "{at}, and admission.origins allows every web page: {advice}"
            ));
        }
        if config.admission.hosts.is_empty() {
            let advice = "list the names you serve";
            warnings.push(format!(
                "{at}, and admission.hosts is empty, so any Host is accepted: {advice}"
            ));
        }
    }
    for (index, issuer) in config.admission.oauth.iter().enumerate() {
        if let Introspection::At(at) = &issuer.introspection
            && let Err(error) = client_password("introspection", &at.client_secret)
        {
            warnings.push(format!(
                "admission.oauth[{index}].{error}: no opaque token is let in"
            ));
        }
        if let Some(secret) = issuer.web_login().and_then(|it| it.client_secret.as_ref())
            && let Err(error) = client_password("web", secret)
        {
            warnings.push(format!(
                "admission.oauth[{index}].{error}: no user of the web UI can log in by the issuer"
            ));
        }
    }
    let servers = config.upstreams.over_http();
    for server in servers.filter(|it| it.config.takes_access_tokens()) {
        if config.admission.oauth.is_empty() {
            let (key, name) = (server.key, server.name);
            warnings.push(format!(
                "{key}.{name} takes access tokens of clients, and admission.oauth lists no issuer: no client has an \
                 access token that could be passed on or exchanged"
            ));
        }
    }
    let mut served = config.served_listeners(role);
    if !config.admission.certificates.is_empty()
        && !served.any(|(_, listener)| listener.asks_for_certificates())
    {
        warnings
            .push("admission.certificates is not used: no listener has tls.client_auth".to_owned());
    }
    warnings
}

fn listeners(config: &Config) -> Result<(), ConfigError> {
    let mut names = BTreeSet::new();
    for (index, listener) in config.listeners.iter().enumerate() {
        let wrong = |key: &str, reason: &str| {
            Err(ConfigError::key(
                format!("listeners[{index}].{key}"),
                reason,
            ))
        };
        if listener.name.trim().is_empty() {
            return wrong("name", "is empty");
        }
        if !names.insert(&listener.name) {
            return wrong("name", "is another listener's name already");
        }
        if listener.versions.as_ref().is_some_and(Vec::is_empty) {
            return wrong("versions", "is empty");
        }
        // MCP 2024-11-05 has its own transport, HTTP+SSE, which has its own switch; other transports cannot negotiate the
        // version.
        if listener
            .versions
            .iter()
            .flatten()
            .any(|version| *version < ProtocolVersion::V2025_03_26)
        {
            return wrong(
                "versions",
                "2024-11-05 is served on /sse, by ENABLE_LEGACY_MCP",
            );
        }
        if let Some(offered) = listener.default_version
            && !listener.answers(listener.profile.spec()).supports(offered)
        {
            return wrong("default_version", "is none of the listener's versions");
        }
        if !is_path_prefix(&listener.path_prefix) {
            return wrong(
                "path_prefix",
                "is neither empty nor a path such as /tools-gateway, without a slash at its end",
            );
        }
        if listener.mode.is_some() && listener.address.port().is_some() {
            return wrong("mode", "is about a Unix socket, and the address is none");
        }
        if listener.proxy_protocol && config.admission.trusted_proxies.is_empty() {
            return wrong(
                "proxy_protocol",
                "needs admission.trusted_proxies: list the load balancers whose PROXY protocol headers count",
            );
        }
        if let Err((key, reason)) = HeaderEdits::of(&listener.headers) {
            return wrong(&format!("headers.{key}"), &reason);
        }
        if let Some(tls) = &listener.tls {
            tls.validate(&format!("listeners[{index}].tls"))?;
        }
        if listener.profile == ProfileName::Manager && listener.namespace.is_some() {
            return wrong(
                "namespace",
                "the profile manager serves the management tools alone; leave the key out",
            );
        }
        if listener.profile == ProfileName::Manager && listener.is_open() {
            return wrong(
                "auth",
                "the management tools write code that the gateway runs: none is not for the profile manager",
            );
        }
        if listener.profile == ProfileName::V1Web
            && (listener.namespace.is_some() || listener.is_open())
        {
            let (key, reason) = match listener.namespace {
                Some(_) => (
                    "namespace",
                    "the profile v1-web serves all namespaces; leave the key out",
                ),
                None => (
                    "auth",
                    "the web UI writes code that the gateway runs: none is not for the profile v1-web",
                ),
            };
            return wrong(key, reason);
        }
        if listener.auth.as_ref().is_some_and(Vec::is_empty) {
            return wrong("auth", "is empty; none says that no credentials are needed");
        }
        if listener.is_open() && !few_can_come(config, listener) {
            return wrong(
                "auth",
                "none needs a loopback address or a Unix socket, without proxy_protocol, or admission.cidrs.allow",
            );
        }
        if listener.is_open()
            && listener.profile != ProfileName::Metrics
            && config.admission.origins.contains(&OriginPattern::ANY)
        {
            return wrong(
                "auth",
                "none together with \"*\" in admission.origins (CORS_ORIGINS) would let every web page call tools: \
                 list the pages you trust there; pages of this machine need no entry, so [] is fine",
            );
        }
    }
    Ok(())
}

/// Checks the keys `listeners` in `admission.certificates`. A name in a client certificate is only as trustworthy as the
/// authority that signed it. So if listeners trust different authorities, each entry must name its listeners.
fn certificates(config: &Config) -> Result<(), ConfigError> {
    let asking = config.listeners.iter();
    let asking: Vec<_> = asking.filter(|it| it.asks_for_certificates()).collect();
    let authorities = |listener: &ListenerConfig| {
        let tls = listener.tls.as_ref();
        tls.and_then(|tls| tls.client_ca.clone())
    };
    let other = asking
        .iter()
        .find(|it| authorities(it) != authorities(asking[0]));
    for (index, certificate) in config.admission.certificates.iter().enumerate() {
        let key = format!("admission.certificates[{index}].listeners");
        if let (true, Some(other)) = (certificate.listeners.is_empty(), other) {
            let reason = format!(
                "is needed: the listeners {} and {} have different authorities (tls.client_ca); name those whose \
                 certificates are meant",
                asking[0].name, other.name
            );
            return Err(ConfigError::key(key, reason));
        }
        for name in &certificate.listeners {
            if !asking.iter().any(|listener| listener.name == *name) {
                let reason = format!("{name:?} is no listener with tls.client_auth");
                return Err(ConfigError::key(key, reason));
            }
        }
    }
    Ok(())
}

/// Maximum length of a path prefix, in bytes; the first event of every HTTP+SSE stream contains the prefix.
const PATH_PREFIX_MAX: usize = 256;

/// Returns true if a text is a valid path prefix: segments that need no URL encoding, and no `.` or `..`.
fn is_path_prefix(text: &str) -> bool {
    let segment = |segment: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        !segment.is_empty() && segment.bytes().all(plain) && !matches!(segment, "." | "..")
    };
    match text.strip_prefix('/') {
        Some(segments) => text.len() <= PATH_PREFIX_MAX && segments.split('/').all(segment),
        None => text.is_empty(),
    }
}

fn few_can_come(config: &Config, listener: &ListenerConfig) -> bool {
    listener.is_for_this_machine() || !config.admission.cidrs.allow.is_empty()
}

fn addresses(config: &Config, role: Role, dev: bool) -> Result<(), ConfigError> {
    let bound = config.bound_addresses(role);
    for (at, (key, address)) in bound.iter().enumerate() {
        let other = bound[..at]
            .iter()
            .find(|(_, other)| overlap(other, address));
        if let Some((other, taken)) = other {
            let reason =
                format!("{address} is taken by {other}, which is {taken}: choose another one");
            return Err(ConfigError::key(key, reason));
        }
    }
    for (index, listener) in config.served_listeners(role) {
        let address = &listener.address;
        if dev && !address.is_local() {
            let key = format!("listeners[{index}].address");
            let reason = format!("{address} is no loopback address, and --dev serves no other");
            return Err(ConfigError::key(key, reason));
        }
    }
    let tools = |listener: &ListenerConfig| listener.profile.serves_tools();
    let manager = |listener: &ListenerConfig| listener.profile == ProfileName::Manager;
    if role == Role::Manager && !config.listeners.iter().any(manager) {
        let reason = "none has the profile manager";
        return Err(ConfigError::key("listeners", reason));
    }
    if role != Role::Manager && !config.listeners.iter().any(tools) {
        let reason =
            "none serves tools: one has to have the profile core, v1-rest, v1-mcp, v1-web or vault";
        return Err(ConfigError::key("listeners", reason));
    }
    Ok(())
}

/// Returns true if two addresses cannot be bound together. With port 0 each socket gets another port, but connections are
/// assigned to listeners by the configured address, so that an address with port 0 may occur only once.
fn overlap(one: &ListenAddress, other: &ListenAddress) -> bool {
    let (ListenAddress::Tcp(one), ListenAddress::Tcp(other)) = (one, other) else {
        return one == other;
    };
    let covers = |all: IpAddr, ip: IpAddr| {
        all.is_unspecified() && (all.is_ipv4() == ip.is_ipv4() || all.is_ipv6() && is_dual_stack())
    };
    let (a, b) = (one.ip(), other.ip());
    one.port() == other.port() && (a == b || one.port() != 0 && (covers(a, b) || covers(b, a)))
}

/// Returns true if a socket bound to all IPv6 addresses also receives IPv4 connections.
fn is_dual_stack() -> bool {
    let only = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    only.map_or(true, |only| only.trim() != "1")
}

/// Checks the aliases of MCP endpoints. Each alias must lead to one namespace only, and must not be another route of a listener
/// that serves it.
fn aliases(config: &Config, role: Role) -> Result<(), ConfigError> {
    let mut taken: BTreeMap<&str, String> = BTreeMap::new();
    for (name, patch) in &config.namespaces.overrides {
        for (index, path) in patch.aliases.iter().enumerate() {
            let key = format!("namespaces.overrides.{name}.aliases[{index}]");
            let wrong =
                |reason: String| Err(ConfigError::key(key.clone(), format!("{path:?} {reason}")));
            if let Some(reason) = refusal_of_alias(path, RouteGroups::of(&[])) {
                return wrong(reason);
            }
            if let Some(other) = taken.insert(path, key.clone()) {
                return wrong(format!(
                    "stands in {other}, too: a path leads to one namespace"
                ));
            }
            for (index, listener) in config.served_listeners(role) {
                let spec = listener.profile.spec();
                let refusal = refusal_of_alias(path, spec.routes).filter(|_| spec.has_aliases());
                if let Some(reason) = refusal {
                    return wrong(format!("{reason} on listeners[{index}]"));
                }
            }
        }
    }
    Ok(())
}

/// Returns the reason why a path cannot be an alias on a listener with these routes; `None` if it can.
pub(crate) fn refusal_of_alias(path: &str, routes: RouteGroups) -> Option<String> {
    if path.is_empty() || !is_path_prefix(path) {
        return Some(
            "is no path such as /github/mcp: it begins with a slash, ends without one (clients may send one), and has \
             letters, digits and -._~ alone between slashes"
                .to_owned(),
        );
    }
    let own = routes.label_of(path);
    let own = own.or_else(|| routes.label_of(&format!("{path}/")));
    own.map(|label| format!("is a path of the gateway's own, {label},"))
}

fn patterns(config: &Config) -> Result<(), ConfigError> {
    compile("namespaces.defaults", &config.namespaces.defaults)?;
    for (name, patch) in &config.namespaces.overrides {
        let mut lists = Limits::default();
        lists.apply(patch);
        compile(&format!("namespaces.overrides.{name}"), &lists)?;
    }
    Ok(())
}

fn compile(at: &str, limits: &Limits) -> Result<(), ConfigError> {
    ToolPolicy::new(limits).map(drop).map_err(|error| {
        let reason = format!("invalid pattern {:?}: {}", error.pattern, error.reason);
        ConfigError::key(format!("{at}.{}", error.key), reason)
    })
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn listener(name: &str, address: &str, rest: &str) -> String {
        format!("{{ name: {name}, address: '{address}', {rest} }}")
    }

    fn parse(yaml: &str) -> Config {
        yaml::from_str(yaml).expect(yaml)
    }

    fn two(one: &str, other: &str) -> Config {
        parse(&format!("listeners: [{one}, {other}]"))
    }

    fn refused(config: &Config) -> String {
        check(config, Role::All, false)
            .expect_err("invalid")
            .to_string()
    }

    #[test]
    fn the_defaults_are_valid_and_need_no_warning() {
        for role in [Role::All, Role::Core] {
            assert_eq!(check(&Config::default(), role, true), Ok(()));
            assert!(warnings(&Config::default(), role).is_empty());
        }
    }

    #[test]
    fn a_wrong_value_names_its_key() {
        for (yaml, key) in [
            ("listeners: []", "listeners"),
            (
                "listeners: [{ name: '', address: '[::1]:1', profile: core }]",
                "listeners[0].name",
            ),
            (
                "listeners: [{ name: a, address: '[::1]:1', profile: core, versions: [] }]",
                "listeners[0].versions",
            ),
            (
                "listeners: [{ name: a, address: '[::1]:1', profile: core, auth: [] }]",
                "listeners[0].auth",
            ),
            ("data_dir: ''", "data_dir"),
            ("workers: { python: '' }", "workers.python"),
            (
                "admission: { limits: { header_bytes: 1 } }",
                "admission.limits.header_bytes",
            ),
            (
                "namespaces: { defaults: { tools_deny: ['['] } }",
                "namespaces.defaults.tools_deny",
            ),
            (
                "namespaces: { overrides: { dev: { principals: ['['] } } }",
                "namespaces.overrides.dev.principals",
            ),
            ("sessions: { ttl: 0s }", "sessions.ttl"),
            (
                "upstreams: { remote: { far: { backends: ['a.example/mcp'] } } }",
                "upstreams.remote.far.backends[0]",
            ),
            (
                "upstreams: { remote: { far: { backends: ['https://a'] } }, stdio: { far: { command: x } } }",
                "upstreams.remote.far",
            ),
            (
                "{ namespaces: { overrides: { far: { tools_deny: [x] } } }, \
                 upstreams: { remote: { far: { backends: ['https://a'], mode: pass_through } } } }",
                "upstreams.remote.far.mode",
            ),
            (
                "{ hooks: [{ on: call, tool: a.b }, { on: list, url: 'https://a', namespaces: ['f*'] }], \
                 upstreams: { remote: { far: { backends: ['https://a'], mode: pass_through } } } }",
                "upstreams.remote.far.mode",
            ),
            (
                "hooks: [{ on: call, tool: a.b }, { on: call, tool: b }]",
                "hooks[1].tool",
            ),
            (
                "upstreams: { stdio: { time: {} } }",
                "upstreams.stdio.time.command",
            ),
            (
                "upstreams: { stdio: { time: { command: x, max_processes: 0 } } }",
                "upstreams.stdio.time.max_processes",
            ),
        ] {
            let error = refused(&parse(yaml));
            assert!(error.starts_with(&format!("{key}: ")), "{error}");
        }
    }

    #[test]
    fn a_path_prefix_is_a_path_that_needs_no_second_look() {
        for prefix in ["", "/x", "/a-b/c.d/~e_1"] {
            assert!(is_path_prefix(prefix), "{prefix}");
        }
        let long = format!("/{}", "x".repeat(PATH_PREFIX_MAX));
        for prefix in [
            "/", "x", "/x/", "//x", "/x//y", "/..", "/x/./y", "/%41", "/x y", "/x?y", "/x#y",
            "/x\ny", "/\u{e9}", &long,
        ] {
            assert!(!is_path_prefix(prefix), "{prefix:?}");
        }
        let error = refused(&parse(
            "listeners: [{ name: a, address: '[::1]:1', profile: core, path_prefix: x/ }]",
        ));
        assert!(error.starts_with("listeners[0].path_prefix: "), "{error}");
    }

    #[test]
    fn an_alias_is_a_path_that_leads_to_one_namespace() {
        let with = |listeners: &str, overrides: &str| {
            parse(&format!(
                "{{ listeners: [{listeners}], namespaces: {{ overrides: {overrides} }} }}"
            ))
        };
        let core = listener("a", "[::1]:1", "profile: core");
        let web = listener("b", "[::1]:2", "profile: v1-web");
        let manager = listener("c", "[::1]:3", "profile: manager");
        for good in [
            "/files/mcp",
            "/files",
            "/api/mcp",
            "/v1.2/_x/~y",
            "/mcp/files/v2",
        ] {
            let config = with(
                &format!("{core}, {manager}"),
                &format!("{{ files: {{ aliases: ['{good}'] }} }}"),
            );
            assert_eq!(check(&config, Role::All, false), Ok(()), "{good}");
        }
        for bad in [
            "",
            "/",
            "files",
            "/files/",
            "//files",
            "/a/../b",
            "/a b",
            "/a?b",
            "/a%20b",
            "https://gw.example/files",
        ] {
            let error = refused(&with(
                &core,
                &format!("{{ files: {{ aliases: [/ok, '{bad}'] }} }}"),
            ));
            assert!(
                error.starts_with("namespaces.overrides.files.aliases[1]: ")
                    && error.contains("is no path such as"),
                "{error}"
            );
        }
        for own in [
            "/mcp",
            "/mcp/files",
            "/sse",
            "/messages",
            "/tools",
            "/tools/mcp",
            "/tools/list",
            "/namespaces",
            "/namespaces/files/tools",
            "/health",
            "/ready",
            "/reload",
            "/openapi.json",
            "/.well-known/mcp",
        ] {
            let error = refused(&with(
                &core,
                &format!("{{ files: {{ aliases: ['{own}'] }} }}"),
            ));
            assert!(
                error.starts_with("namespaces.overrides.files.aliases[0]: ")
                    && error.contains("is a path of the gateway's own, "),
                "{error}"
            );
        }
        // Served by the web interface alone.
        for own in ["/api", "/api/mcp", "/assets/x"] {
            let alias = format!("{{ files: {{ aliases: ['{own}'] }} }}");
            let error = refused(&with(&format!("{core}, {web}"), &alias));
            assert!(error.contains("on listeners[1]"), "{error}");
        }
        let twice = refused(&with(
            &core,
            "{ a: { aliases: [/x] }, b: { aliases: [/y, /x] } }",
        ));
        assert_eq!(
            twice,
            "namespaces.overrides.b.aliases[1]: \"/x\" stands in namespaces.overrides.a.aliases[0], too: a path leads to one namespace"
        );
        for elsewhere in [
            "namespaces: { defaults: { aliases: [/x] } }",
            "upstreams: { stdio: { s: { command: x, limits: { aliases: [/x] } } } }",
            "upstreams: { remote: { s: { backends: ['https://a'], limits: { aliases: [/x] } } } }",
        ] {
            let parsed: Result<Config, _> = yaml::from_str(elsewhere);
            let error = parsed.map_or_else(|error| error.to_string(), |config| refused(&config));
            assert!(error.contains("aliases"), "{error}");
        }
    }

    #[test]
    fn an_entry_for_certificates_says_whose_authorities_it_trusts_where_there_are_several() {
        let asking = |name: &str, port: u16, authorities: &str| {
            let tls = format!(
                "profile: core, tls: {{ cert: a, key: b, client_ca: {authorities}, client_auth: required }}"
            );
            listener(name, &format!("[::1]:{port}"), &tls)
        };
        let config = |other: &str, entry: &str| {
            parse(&format!(
                "{{ listeners: [{}, {}, {}], admission: {{ certificates: [{{ name: a, san: a, namespaces: [a]{entry} }}] }} }}",
                asking("own", 1, "own.pem"),
                asking("partners", 2, other),
                listener("plain", "[::1]:3", "profile: core"),
            ))
        };
        assert_eq!(check(&config("own.pem", ""), Role::All, false), Ok(()));
        let named = config("partners.pem", ", listeners: [partners]");
        assert_eq!(check(&named, Role::All, false), Ok(()));
        for (config, says) in [
            (
                config("partners.pem", ""),
                "own and partners have different",
            ),
            (
                config("own.pem", ", listeners: [plain]"),
                "\"plain\" is no listener with",
            ),
        ] {
            let error = refused(&config);
            assert!(
                error.starts_with("admission.certificates[0].listeners"),
                "{error}"
            );
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn two_listeners_share_neither_name_nor_address() {
        let core = listener("a", "0.0.0.0:8000", "profile: core");
        let with = |name, address| two(&core, &listener(name, address, "profile: metrics"));
        assert!(refused(&with("a", "0.0.0.0:8001")).starts_with("listeners[1].name: "));
        assert!(refused(&with("b", "127.0.0.1:8000")).starts_with("listeners[1].address: "));
        assert_eq!(check(&with("b", "[::1]:8000"), Role::All, false), Ok(()));
        // A socket of all IPv6 addresses takes IPv4, too.
        let config = with("b", "[::]:8000");
        assert_eq!(check(&config, Role::All, false).is_err(), is_dual_stack());
        let all = listener("a", "[::]:8000", "profile: core");
        for other in ["127.0.0.1:8000", "[::1]:8000"] {
            let config = two(&all, &listener("b", other, "profile: metrics"));
            let is_refused = check(&config, Role::All, false).is_err();
            assert_eq!(
                is_refused,
                is_dual_stack() || other != "127.0.0.1:8000",
                "{other}"
            );
        }
    }

    #[test]
    fn the_address_for_replicas_and_the_relays_socket_are_no_listeners_address() {
        let at = |address: &str, store: &str, keys: &str| {
            let listener = listener("a", address, "profile: core");
            parse(&format!(
                "{{ listeners: [{listener}], sessions: {{ store: {store} }}, {keys} }}"
            ))
        };
        let all = "0.0.0.0:7100";
        for (address, own, bound) in [
            (all, "gateway-1:7100", all),
            (all, "127.0.0.1:7100", "127.0.0.1:7100"),
            ("127.0.0.1:7100", "gateway-1:7100", all),
        ] {
            let keys = format!("replicas: {{ address: '{own}' }}");
            let config = at(address, "disk", &keys);
            assert_eq!(
                refused(&config),
                format!(
                    "replicas.address: {bound} is taken by listeners[0].address, which is {address}: choose another one"
                )
            );
            // Neither binds it.
            assert_eq!(
                check(&at(address, "memory", &keys), Role::All, false),
                Ok(())
            );
            let manager = listener("m", address, "profile: manager");
            let config = parse(&format!(
                "{{ listeners: [{manager}], sessions: {{ store: disk }}, {keys} }}"
            ));
            assert_eq!(check(&config, Role::Manager, false), Ok(()));
        }
        let relay = at(
            "unix:/run/gw.sock",
            "memory",
            "relay: { socket: /run/gw.sock }",
        );
        assert!(
            refused(&relay).starts_with("relay.socket: "),
            "{}",
            refused(&relay)
        );
        let free = at(all, "disk", "replicas: { address: 'gateway-1:7101' }");
        assert_eq!(check(&free, Role::All, false), Ok(()));
    }

    #[test]
    fn keys_of_replicas_of_a_redis_are_warned_about_where_there_is_none() {
        for (keys, named) in [
            (
                "replicas: { peers: ['a:1'] }, sessions: { store: memory }",
                "replicas.peers",
            ),
            (
                "replicas: { peers: 'dns:gw:1' }, sessions: { store: disk }",
                "replicas.peers",
            ),
            (
                "sessions: { store: disk, store_prefix: 'gw:' }",
                "sessions.store_prefix",
            ),
        ] {
            let warnings = warnings(&parse(&format!("{{ {keys} }}")), Role::All);
            assert!(
                matches!(&warnings[..], [one] if one.starts_with(&format!("{named} has no effect"))),
                "{warnings:?}"
            );
        }
        let redis = parse(
            "{ sessions: { store: 'redis://cache', store_prefix: 'gw:' }, \
               replicas: { peers: ['a:1'], address: '127.0.0.1:1' } }",
        );
        assert_eq!(warnings(&redis, Role::All), Vec::<String>::new());
    }

    #[test]
    fn a_wrong_store_is_repeated_without_its_password() {
        for (store, shown) in [
            (
                "redis://:hush@cache:port/0",
                "redis://***MASKED***@cache:***MASKED***/0",
            ),
            ("redis://:hush", "redis://:***MASKED***"),
            ("redis://a,b", "redis://a,b"),
        ] {
            let error = refused(&parse(&format!("sessions: {{ store: '{store}' }}")));
            assert!(
                error.starts_with("sessions.store: ") && error.ends_with(&format!(": {shown}")),
                "{error}"
            );
        }
        let error = refused(&parse("sessions: { store_prefix: '' }"));
        assert!(
            error.starts_with("sessions.store_prefix: is empty: "),
            "{error}"
        );
        let error = refused(&parse("sessions: { store_prefix: '{gw}' }"));
        assert!(
            error.starts_with("sessions.store_prefix: \"{gw}\" has braces"),
            "{error}"
        );
    }

    #[test]
    fn a_core_process_does_not_mind_the_managers_address() {
        let core = listener("a", "127.0.0.1:1", "profile: core");
        let config = two(&core, &listener("b", "127.0.0.1:1", "profile: manager"));
        assert_eq!(check(&config, Role::Core, false), Ok(()));
        assert!(check(&config, Role::All, false).is_err());
    }

    #[test]
    fn no_credentials_only_where_few_can_come() {
        let open = |address, rest: &str| {
            let listener = listener("a", address, "profile: core, auth: [bearer, none]");
            parse(&format!("listeners: [{listener}]\n{rest}"))
        };
        let no_page = "admission: { origins: [] }";
        assert!(refused(&open("0.0.0.0:1", no_page)).starts_with("listeners[0].auth: "));
        assert_eq!(
            check(&open("127.0.0.1:1", no_page), Role::All, false),
            Ok(())
        );
        let introduced = parse(&format!(
            "listeners: [{}]\nadmission: {{ origins: [], trusted_proxies: ['127.0.0.1'] }}",
            listener(
                "a",
                "127.0.0.1:1",
                "profile: core, auth: [none], proxy_protocol: true"
            )
        ));
        assert!(refused(&introduced).starts_with("listeners[0].auth: "));
        let closed_in = open(
            "0.0.0.0:1",
            "admission: { origins: [], cidrs: { allow: ['10.0.0.0/8'] } }",
        );
        assert_eq!(check(&closed_in, Role::All, false), Ok(()));
    }

    #[test]
    fn no_credentials_never_together_with_every_web_page() {
        for auth in ["none", "bearer, none"] {
            let with = |origins: &str| {
                let rest = format!("profile: core, auth: [{auth}]");
                let listener = listener("a", "127.0.0.1:1", &rest);
                parse(&format!("listeners: [{listener}]\n{origins}"))
            };
            for origins in ["", "admission: { origins: ['https://a.example', '*'] }"] {
                let error = refused(&with(origins));
                assert!(
                    error.starts_with("listeners[0].auth: none together with"),
                    "{error}"
                );
            }
            let listed = with("admission: { origins: ['https://a.example'] }");
            assert_eq!(check(&listed, Role::All, false), Ok(()));
        }
        let metrics = parse(
            "listeners: [{ name: a, address: '127.0.0.1:1', profile: core }, \
             { name: m, address: '127.0.0.1:2', profile: metrics, auth: [none] }]",
        );
        assert_eq!(check(&metrics, Role::All, false), Ok(()));
    }

    #[test]
    fn dev_serves_loopback_only() {
        let config = parse("listeners: [{ name: a, address: '0.0.0.0:1', profile: core }]");
        let error = check(&config, Role::All, true)
            .expect_err("no loopback")
            .to_string();
        assert!(
            error.starts_with("listeners[0].address: 0.0.0.0:1 "),
            "{error}"
        );
    }

    #[test]
    fn an_open_door_is_warned_about() {
        let mut config = parse("listeners: [{ name: a, address: '0.0.0.0:1', profile: core }]");
        assert_eq!(warnings(&config, Role::All).len(), 2);
        config.admission =
            parse("admission: { origins: ['https://a.example'], hosts: [gw.example] }").admission;
        assert_eq!(warnings(&config, Role::All), Vec::<String>::new());
    }
}
