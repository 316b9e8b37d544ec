//! MCP servers that are called over HTTP: their configuration, and the resolved server.
//!
//! ```text
//! upstreams.remote ─▶ validate ─▶ variables ─▶ RemoteServer, in the snapshot
//! ```
//!
//! A remote server is one namespace and a pool of backends that all serve it. This module deliberately does not open
//! connections, choose backends, or send HTTP requests. The proxy does that, with the settings in [`RemoteSpec`].

mod api;
mod backend;
mod config;
mod headers;
mod oauth;
mod resolve;
mod spec;

pub use api::{ApiConfig, ApiSpec, DocumentSource, read_file as read_document};
pub use backend::{Backend, BackendConfig, BackendId, Host};
pub use config::{
    ActiveHealth, Balance, HealthPath, Mode, PassiveHealth, RemoteHealth, RemoteRetry,
    RemoteServerConfig, RemoteServersConfig, RemoteTimeouts, RemoteTls, Transport, is_server_name,
};
pub use headers::{HeadersConfig, is_hop_by_hop, is_of_the_gateway};
pub use oauth::{ClientAuth, ClientKey, Grant, IdentityProviderConfig, OAuthConfig, OAuthSpec};
pub use resolve::pem_path;
pub(crate) use resolve::{spec, variables};
pub use spec::{BackendSpec, HeaderRules, Pem, RemoteServer, RemoteSpec, TlsIdentity, TlsSpec};
