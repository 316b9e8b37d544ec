//! Sessions and events in Redis 7 or Valkey: one server, a primary behind Sentinels, or a cluster.
//!
//! Each operation is one command, script or transaction, in one round trip; `forget` and `trim` take two. An operation waits
//! for at most 50 ms. While Redis is unavailable, operations fail, which is logged, and later ones try to connect again.
//! Several processes may use one Redis: claims compare before they write, and patches write single fields. Keys expire
//! automatically: the record of an unused session expires after twice the session's lifetime.
//!
//! Start with [`RedisStore::connect`]. The modules `keys`, `record` and `events` list the keys and fields, and `link` describes
//! how a connection is made and renewed.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use redis::{Pipeline, Script};
use tooldock_protocol::seal::SessionId;

use crate::replicas::ReplicaId;
use crate::session::config::EventLogConfig;
use crate::session::store::SessionStore;
use crate::session::{Home, SessionPatch, SessionRecord};
use crate::stream::StoreError;

mod budgets;
mod connect;
mod directory;
mod events;
mod failure;
mod keys;
mod link;
mod record;
mod silence;
mod tasks;
pub mod url;

use keys::Keys;
use link::{Link, OPERATION_MAX};
pub use url::{RedisUrl, RedisUrlError};

/// Number of session lifetimes for which a record is kept. More than one lifetime may pass until a process renews the record of a
/// session in use, and the record must not expire before the session.
const LIFETIMES: u32 = 2;
/// Maximum number of sessions that are touched in one round trip, so that it ends within the time limit of an operation.
const TOUCHED_AT_ONCE: usize = 512;

static INSERT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("redis/insert.lua")));
static PATCH: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("redis/patch.lua")));
static CLAIM: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("redis/claim.lua")));
static REMOVE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("redis/remove.lua")));

/// Session store in Redis. Clones share its connection.
#[derive(Clone)]
pub struct RedisStore {
    link: Arc<Link>,
    keys: Keys,
    /// Time for which a record is kept after the last use of its session.
    record_ttl: Duration,
    /// Bounds of the events of one stream.
    bounds: EventLogConfig,
    /// Replica that uses this store. It does not write events and changes of a session that belongs to another replica. `None`
    /// if those of all sessions are written.
    replica: Option<ReplicaId>,
}

impl RedisStore {
    /// Connects to Redis. Keys begin with `prefix`; `ttl` is the lifetime of a session, and `log` bounds its streams.
    ///
    /// # Errors
    ///
    /// [`StoreError`], a line that states the remedy: Redis cannot be reached or refuses the password, is older than 7 or
    /// a read-only replica, or contains sessions of a newer version.
    pub async fn connect(
        url: &RedisUrl,
        prefix: &str,
        ttl: Duration,
        log: &EventLogConfig,
    ) -> Result<Self, StoreError> {
        let store = Self::unconnected(url, prefix, ttl, log)?;
        store.link.connected().await?;
        Ok(store)
    }

    /// Creates a store that connects at its first operation, with the checks of [`RedisStore::connect`]: for a gateway that
    /// starts while Redis is unavailable.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the prefix cannot be used.
    pub fn unconnected(
        url: &RedisUrl,
        prefix: &str,
        ttl: Duration,
        log: &EventLogConfig,
    ) -> Result<Self, StoreError> {
        Self::waiting(url, prefix, ttl, log, OPERATION_MAX)
    }

    /// Checks a prefix of keys.
    ///
    /// # Errors
    ///
    /// The reason why the prefix cannot be used, worded to follow the name of the configuration key.
    pub fn check_prefix(prefix: &str) -> Result<(), String> {
        Keys::check(prefix)
    }

    fn waiting(
        url: &RedisUrl,
        prefix: &str,
        ttl: Duration,
        log: &EventLogConfig,
        patience: Duration,
    ) -> Result<Self, StoreError> {
        let keys = Keys::new(prefix)?;
        let link = Link::new(url.clone(), keys.version(), patience);
        Ok(Self {
            link: Arc::new(link),
            keys,
            record_ttl: ttl.saturating_mul(LIFETIMES),
            bounds: log.clone(),
            replica: None,
        })
    }

    /// Binds the store to a replica: events and changes of sessions that another replica has claimed are then not written. A
    /// process that was frozen during a call therefore does not write between the events of the process that now has the
    /// session.
    pub fn of_replica(self, replica: ReplicaId) -> Self {
        Self {
            replica: Some(replica),
            ..self
        }
    }

    /// Returns the number of the replica as an argument of scripts; empty if the store is bound to no replica.
    fn replica_argument(&self) -> String {
        self.replica.map_or_else(String::new, |it| it.0.to_string())
    }

    /// Checks that Redis responds.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when Redis does not respond.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let ping = self.link.run(|mut connection| async move {
            redis::cmd("PING").exec_async(&mut connection).await
        });
        ping.await
    }

    /// Returns the time of Redis's clock, as time since 1970.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when Redis does not respond.
    pub async fn time(&self) -> Result<Duration, StoreError> {
        let time = self.link.run(|mut connection| async move {
            redis::cmd("TIME")
                .query_async::<(u64, u32)>(&mut connection)
                .await
        });
        let (seconds, micros) = time.await?;
        Ok(Duration::from_secs(seconds) + Duration::from_micros(micros.into()))
    }

    /// Renews the expiry of sessions' records in one round trip. Returns for each session whether it has a record.
    async fn renew(&self, ids: &[SessionId]) -> Result<Vec<bool>, StoreError> {
        let renewed = self.link.run(|connection| {
            // A pipeline is sent to one node. In a cluster, sessions are on different nodes, so each session needs its own
            // pipeline.
            let together = if connection.mixes_sessions() {
                ids.len()
            } else {
                1
            };
            let renewals: Vec<_> = ids.chunks(together).map(|ids| self.renewal(ids)).collect();
            async move {
                let asked = renewals.iter().map(|renewal| {
                    let mut connection = connection.clone();
                    async move { renewal.query_async::<Vec<bool>>(&mut connection).await }
                });
                try_join_all(asked).await
            }
        });
        Ok(renewed.await?.concat())
    }

    fn renewal(&self, ids: &[SessionId]) -> Pipeline {
        let time = millis(self.record_ttl);
        let mut renewal = redis::pipe();
        for id in ids {
            let keys = self.keys.of(id.as_str());
            renewal.pexpire(keys.record(), time);
            renewal.pexpire(keys.streams(), time).ignore();
        }
        renewal
    }
}

/// Converts a duration to milliseconds, at most a century: Redis adds them to the date and refuses a sum that is too large.
fn millis(time: Duration) -> i64 {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    i64::try_from(time.min(CENTURY).as_millis()).unwrap_or(i64::MAX)
}

#[async_trait]
impl SessionStore for RedisStore {
    async fn insert(&self, record: &SessionRecord) -> Result<bool, StoreError> {
        let mut script = INSERT.key(self.keys.of(record.id.as_str()).record());
        script
            .arg(record.home.replica.0)
            .arg(millis(self.record_ttl));
        for (field, value) in record::fields(record)? {
            script.arg(field).arg(value);
        }
        let script = &script;
        self.link
            .run(|mut connection| async move { script.invoke_async(&mut connection).await })
            .await
    }

    async fn load(&self, id: &str) -> Result<Option<SessionRecord>, StoreError> {
        let mut load = redis::cmd("HGETALL");
        load.arg(self.keys.of(id).record());
        let load = &load;
        let loaded = self.link.run(|mut connection| async move {
            load.query_async::<HashMap<String, String>>(&mut connection)
                .await
        });
        record::folded(loaded.await?)
    }

    async fn patch(&self, id: &SessionId, patch: &SessionPatch) -> Result<(), StoreError> {
        let change = record::change(patch)?;
        let mut script = PATCH.key(self.keys.of(id.as_str()).record());
        script
            .arg(change.kind.name())
            .arg(change.field)
            .arg(change.value)
            .arg(millis(self.record_ttl))
            .arg(self.replica_argument());
        let script = &script;
        self.link
            .run(|mut connection| async move { script.invoke_async(&mut connection).await })
            .await
    }

    async fn claim(
        &self,
        id: &SessionId,
        by: Home,
        from: Home,
    ) -> Result<Option<SessionRecord>, StoreError> {
        let mut script = CLAIM.key(self.keys.of(id.as_str()).record());
        script
            .arg(record::home(from))
            .arg(record::home(by))
            .arg(millis(self.record_ttl));
        let script = &script;
        // A failed claim is not repeated: it may have succeeded without a response. The second attempt would then find the new
        // home, and take it for the claim of another replica.
        let claimed = self.link.run_once(|mut connection| async move {
            let fields = script.invoke_async::<HashMap<String, String>>(&mut connection);
            fields.await
        });
        record::folded(claimed.await?)
    }

    async fn touch(&self, ids: &[SessionId]) -> Result<Vec<SessionId>, StoreError> {
        let mut gone = Vec::new();
        for ids in ids.chunks(TOUCHED_AT_ONCE) {
            let there = self.renew(ids).await?;
            let answered = ids.iter().zip(there);
            gone.extend(
                answered
                    .filter(|(_, there)| !there)
                    .map(|(id, _)| id.clone()),
            );
        }
        Ok(gone)
    }

    async fn remove(&self, id: &SessionId) -> Result<bool, StoreError> {
        let mut script = REMOVE.key(self.keys.of(id.as_str()).record());
        script.arg(self.replica_argument());
        let script = &script;
        self.link
            .run(|mut connection| async move { script.invoke_async(&mut connection).await })
            .await
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
