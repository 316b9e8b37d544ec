//! Connects to one server, through Sentinels, or to a cluster. A connection is used only if the server is new enough, accepts
//! writes, and contains sessions in a format that this version supports.

use std::path::Path;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, Pipeline,
    RedisConnectionInfo, RedisFuture, RedisResult, TlsCertificates, TlsMode, Value,
};
use zeroize::Zeroizing;

use super::failure::{as_store_error, failure};
use super::url::{Address, Deployment, RedisUrl};
use crate::stream::StoreError;

/// Version of the format of records and events in Redis. It is increased by any change that an older gateway could not read.
const FORMAT: u32 = 1;
/// Oldest supported major version of Redis, which scripts and `SET … NX GET` need. Valkey reports version 7.2.4 to old clients.
const OLDEST: u32 = 7;
/// Maximum time for connecting, including one unreachable Sentinel of three. Operations do not wait that long.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time for which sent bytes may stay unacknowledged before the connection counts as lost. Without it, a network that drops
/// packets would not be noticed, since it sends no reset.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(2);
/// Maximum number of commands in flight. Further commands wait within their own time limits.
const IN_FLIGHT: usize = 1024;

/// Open connection to Redis. Clones share it.
#[derive(Clone)]
pub(super) enum RedisConnection {
    Node(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Opens a connection and checks the server.
pub(super) async fn connect(
    url: &RedisUrl,
    version_key: &str,
) -> Result<RedisConnection, StoreError> {
    let ready = async {
        let mut connection = open(url).await?;
        check(url, &mut connection, version_key).await?;
        Ok(connection)
    };
    let ready = tokio::time::timeout(CONNECT_MAX, ready).await;
    ready.unwrap_or_else(|_| {
        let seconds = CONNECT_MAX.as_secs();
        Err(failure(url, format!("did not answer within {seconds} s")))
    })
}

async fn open(url: &RedisUrl) -> Result<RedisConnection, StoreError> {
    let login = Login::read(url)?;
    let opened = match &url.deployment {
        Deployment::Node(address) => node(url, &login, address_of(address, url.tls)).await,
        Deployment::Unix(path) => node(url, &login, ConnectionAddr::Unix(path.clone())).await,
        Deployment::Sentinel { sentinels, name } => primary(url, &login, sentinels, name).await,
        Deployment::Cluster(nodes) => cluster(url, &login, nodes).await,
    };
    opened.map_err(|error| as_store_error(url, &error))
}

async fn node(
    url: &RedisUrl,
    login: &Login,
    address: ConnectionAddr,
) -> RedisResult<RedisConnection> {
    let mut redis = RedisConnectionInfo::default().set_db(url.database);
    if let Some(user) = &url.user {
        redis = redis.set_username(user);
    }
    if let Some(password) = &login.password {
        redis = redis.set_password(&**password);
    }
    let server = address.into_connection_info()?;
    let server = server.set_redis_settings(redis).set_tcp_settings(tcp());
    let client = match &login.certificates {
        Some(certificates) => Client::build_with_tls(server, certificates.clone())?,
        None => Client::open(server)?,
    };
    let manner = manner();
    let opened = client.get_multiplexed_async_connection_with_config(&manner);
    Ok(RedisConnection::Node(opened.await?))
}

async fn primary(
    url: &RedisUrl,
    login: &Login,
    sentinels: &[Address],
    name: &str,
) -> RedisResult<RedisConnection> {
    let addresses = sentinels.iter().map(|it| address_of(it, url.tls));
    let mut builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)?
        .set_client_to_redis_db(url.database)
        .set_client_to_redis_tcp_settings(tcp())
        .set_client_to_sentinel_tcp_settings(tcp());
    if let Some(user) = &url.user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = &login.password {
        builder = builder.set_client_to_redis_password(&**password);
    }
    if let Some(password) = &login.sentinel_password {
        builder = builder.set_client_to_sentinel_password(&**password);
    }
    if url.tls {
        builder = builder
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_sentinel_tls_mode(TlsMode::Secure);
    }
    if let Some(certificates) = &login.certificates {
        builder = builder
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_certificates(certificates.clone());
    }
    let mut client = builder.build()?;
    let manner = manner();
    let opened = client.get_async_connection_with_config(&manner);
    Ok(RedisConnection::Node(opened.await?))
}

async fn cluster(url: &RedisUrl, login: &Login, nodes: &[Address]) -> RedisResult<RedisConnection> {
    let nodes = nodes.iter().map(|it| address_of(it, url.tls));
    let mut builder = ClusterClientBuilder::new(nodes)
        .connection_timeout(CONNECT_MAX)
        .response_timeout(CONNECT_MAX)
        .tcp_settings(tcp());
    if let Some(user) = &url.user {
        builder = builder.username(user);
    }
    if let Some(password) = &login.password {
        builder = builder.password(&**password);
    }
    if url.tls {
        builder = builder.tls(TlsMode::Secure);
    }
    if let Some(certificates) = &login.certificates {
        builder = builder.certs(certificates.clone());
    }
    let opened = builder.build()?.get_async_connection().await?;
    Ok(RedisConnection::Cluster(opened))
}

fn address_of(address: &Address, tls: bool) -> ConnectionAddr {
    let Address { host, port } = address.clone();
    match tls {
        false => ConnectionAddr::Tcp(host, port),
        true => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        },
    }
}

fn tcp() -> TcpSettings {
    TcpSettings::default()
        .set_nodelay(true)
        .set_user_timeout(UNACKNOWLEDGED_MAX)
}

/// Returns the configuration of a connection. It sets no timeouts, because operations and connecting have their own.
fn manner() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(IN_FLIGHT)
}

/// Credentials for a connection, read from their files.
struct Login {
    password: Option<Zeroizing<String>>,
    sentinel_password: Option<Zeroizing<String>>,
    /// Certificate authorities from the file that the URL names. `None` without such a file: TLS then trusts the authorities of
    /// the system.
    certificates: Option<TlsCertificates>,
}

impl Login {
    fn read(url: &RedisUrl) -> Result<Self, StoreError> {
        if url.tls && rustls::crypto::CryptoProvider::get_default().is_none() {
            // This fails if another thread has installed a provider in the meantime; that provider can be used as well.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let file = |path: &Path| {
            let unreadable = |error| {
                let path = path.display();
                failure(url, format!("is not asked: {path} cannot be read: {error}"))
            };
            let text = std::fs::read_to_string(path).map_err(unreadable)?;
            Ok(Zeroizing::new(text))
        };
        let secret = |path: &std::path::PathBuf| {
            let text = file(path)?;
            Ok(Zeroizing::new(
                text.trim_end_matches(['\r', '\n']).to_owned(),
            ))
        };
        let password = match &url.password_file {
            Some(path) => Some(secret(path)?),
            None => url.password.clone(),
        };
        let sentinel_password = url.sentinel_password_file.as_ref().map(secret);
        let authorities = url.ca_file.as_deref().map(file).transpose()?;
        Ok(Self {
            password,
            sentinel_password: sentinel_password.transpose()?,
            certificates: authorities.map(|authorities| TlsCertificates {
                client_tls: None,
                root_cert: Some(authorities.as_bytes().to_vec()),
            }),
        })
    }
}

/// Refuses a server that is too old or accepts no writes, and a store that was written by a newer version of the gateway.
async fn check(
    url: &RedisUrl,
    connection: &mut RedisConnection,
    version_key: &str,
) -> Result<(), StoreError> {
    let told = |error| as_store_error(url, &error);
    let about = connection.about().await.map_err(told)?;
    new_enough(&about).map_err(|fault| failure(url, fault))?;
    let mut mark = redis::cmd("SET");
    mark.arg(version_key).arg(FORMAT).arg("NX").arg("GET");
    let before: Option<String> = mark.query_async(connection).await.map_err(told)?;
    readable(before.as_deref()).map_err(|fault| failure(url, fault))
}

fn new_enough(about: &str) -> Result<(), String> {
    let version = about
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"));
    let version = version.unwrap_or("unknown").trim();
    let major = version.split('.').next().and_then(|it| it.parse().ok());
    match major {
        Some(OLDEST..) => Ok(()),
        _ => Err(format!(
            "is version {version}: sessions need Redis {OLDEST} or newer, or Valkey"
        )),
    }
}

fn readable(before: Option<&str>) -> Result<(), String> {
    match before.map(str::parse::<u32>) {
        None | Some(Ok(FORMAT)) => Ok(()),
        Some(Ok(newer)) if newer > FORMAT => Err(format!(
            "has sessions of a newer version (format {newer}, this one reads {FORMAT}): upgrade this process, or set another sessions.store_prefix"
        )),
        Some(_) => Err(
            "has keys of another program below sessions.store_prefix: set another prefix".into(),
        ),
    }
}

impl RedisConnection {
    /// Returns the response of one node to `INFO server`.
    async fn about(&mut self) -> RedisResult<String> {
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let answer = match self {
            Self::Node(node) => node.send_packed_command(&info).await?,
            Self::Cluster(cluster) => {
                let any = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
                cluster.route_command(info, any).await?
            }
        };
        Ok(redis::from_redis_value(answer.extract_error()?)?)
    }

    /// True if one pipeline may contain commands for keys of different sessions.
    pub(super) fn mixes_sessions(&self) -> bool {
        matches!(self, Self::Node(_))
    }
}

impl ConnectionLike for RedisConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Node(node) => node.req_packed_command(cmd),
            Self::Cluster(cluster) => cluster.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Node(node) => node.req_packed_commands(pipeline, offset, count),
            Self::Cluster(cluster) => cluster.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Node(node) => node.get_db(),
            Self::Cluster(cluster) => cluster.get_db(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_before_7_is_refused_by_its_version() {
        for about in [
            "# Server\r\nredis_version:7.0.15\r\n",
            "redis_version:7.2.4\r\nserver_name:valkey\r\n",
            "redis_version:10.0.0",
        ] {
            assert_eq!(new_enough(about), Ok(()));
        }
        let refused = new_enough("redis_version:5.0.14\r\n").expect_err("too old");
        assert!(refused.starts_with("is version 5.0.14: "), "{refused}");
        assert!(new_enough("").is_err());
    }

    #[test]
    fn a_format_of_a_newer_version_is_refused() {
        assert_eq!(readable(None), Ok(()));
        assert_eq!(readable(Some("1")), Ok(()));
        let newer = readable(Some("2")).expect_err("newer");
        assert!(newer.contains("upgrade this process"), "{newer}");
        let strange = readable(Some("x")).expect_err("no format");
        assert!(strange.contains("another program"), "{strange}");
    }
}
