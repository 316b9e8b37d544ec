//! Connection of a store, opened when the first operation needs it, and again after it was lost. An operation never waits for
//! Redis longer than [`OPERATION_MAX`].
//!
//! ```text
//!           operation           answers
//!   Idle ─────────────▶ Trying ─────────▶ used by all operations
//!    ▲                    │ fails                 │ is lost
//!    │     PAUSE is over  ▼                       │
//!    ├───────────────── Refusing                  │
//!    └────────────────────────────────────────────┘
//! ```
//!
//! If Redis accepts connections but does not respond for longer than a brief delay, operations are refused for a [`PAUSE`] at a
//! time as well.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::connect::{RedisConnection, connect};
use super::failure::{as_store_error, failure};
use super::silence::Silence;
use super::url::RedisUrl;
use crate::stream::StoreError;

/// Maximum time that an operation waits for Redis. Requests wait for the operation: a Redis in the same data centre responds
/// within a millisecond, and an unavailable Redis must not delay clients noticeably.
pub(super) const OPERATION_MAX: Duration = Duration::from_millis(50);
/// Time for which operations are refused immediately after connecting has failed. It is short, since only an operation after
/// this time detects that Redis is available again.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

/// Link to one Redis, which keeps its connection open and renews it.
pub(super) struct Link {
    url: RedisUrl,
    version_key: String,
    patience: Duration,
    state: Mutex<LinkState>,
    silence: Mutex<Silence>,
}

enum LinkState {
    Idle,
    /// The connection is being opened, or is open.
    Trying(Attempt),
    Refusing {
        until: Instant,
        error: String,
    },
}

type Attempt = Shared<BoxFuture<'static, Result<RedisConnection, String>>>;

/// Failure of an operation on a connection.
enum Fault {
    /// The connection was lost before Redis responded.
    Lost(StoreError),
    Other(StoreError),
}

impl Fault {
    fn store_error(self) -> StoreError {
        match self {
            Self::Lost(error) | Self::Other(error) => error,
        }
    }
}

impl Link {
    pub(super) fn new(url: RedisUrl, version_key: String, patience: Duration) -> Self {
        Self {
            url,
            version_key,
            patience,
            state: Mutex::new(LinkState::Idle),
            silence: Mutex::default(),
        }
    }

    /// Waits until the connection is open, at most for the time limit of connecting.
    pub(super) async fn connected(&self) -> Result<(), StoreError> {
        let ready = self.connection().await;
        ready.map(drop).map_err(Fault::store_error)
    }

    /// Runs an operation that may be repeated. If the connection turns out to be lost, as after a restart or a failover of Redis,
    /// the operation runs again on a new one.
    pub(super) async fn run<T, F>(
        &self,
        work: impl Fn(RedisConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        self.in_time(async {
            match self.once(&work).await {
                Err(Fault::Lost(_)) => self.once(&work).await.map_err(Fault::store_error),
                done => done.map_err(Fault::store_error),
            }
        })
        .await
    }

    /// Runs an operation that must not be repeated after a failure.
    pub(super) async fn run_once<T, F>(
        &self,
        work: impl Fn(RedisConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        self.in_time(async { self.once(&work).await.map_err(Fault::store_error) })
            .await
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if self.silence().refuses(Instant::now()) {
            return Err(self.unanswered());
        }
        let done = timeout(self.patience, work).await;
        let mut silence = self.silence();
        match done {
            Ok(done) => {
                silence.end();
                done
            }
            Err(_) => {
                silence.record_timeout(Instant::now());
                Err(self.unanswered())
            }
        }
    }

    fn unanswered(&self) -> StoreError {
        let millis = self.patience.as_millis();
        failure(&self.url, format!("did not answer within {millis} ms"))
    }

    async fn once<T, F>(&self, work: &impl Fn(RedisConnection) -> F) -> Result<T, Fault>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let (attempt, connection) = self.connection().await?;
        work(connection).await.map_err(|error| {
            let told = as_store_error(&self.url, &error);
            if is_useless_after(&error) {
                self.lose(&attempt);
                return Fault::Lost(told);
            }
            Fault::Other(told)
        })
    }

    async fn connection(&self) -> Result<(Attempt, RedisConnection), Fault> {
        let attempt = self.attempt().map_err(Fault::Other)?;
        match attempt.clone().await {
            Ok(connection) => Ok((attempt, connection)),
            Err(error) => {
                self.refuse(&attempt, &error);
                Err(Fault::Other(StoreError(error)))
            }
        }
    }

    /// Returns the connection attempt that is in progress or has succeeded, or begins a new one.
    fn attempt(&self) -> Result<Attempt, StoreError> {
        let mut state = self.state();
        match &*state {
            LinkState::Trying(attempt) => return Ok(attempt.clone()),
            LinkState::Refusing { until, error } if Instant::now() < *until => {
                return Err(StoreError(error.clone()));
            }
            LinkState::Refusing { .. } | LinkState::Idle => {}
        }
        let attempt = begin(self.url.clone(), self.version_key.clone());
        *state = LinkState::Trying(attempt.clone());
        Ok(attempt)
    }

    fn refuse(&self, failed: &Attempt, error: &str) {
        let refusing = LinkState::Refusing {
            until: Instant::now() + PAUSE,
            error: error.to_owned(),
        };
        self.replace(failed, refusing);
    }

    fn lose(&self, lost: &Attempt) {
        self.replace(lost, LinkState::Idle);
    }

    /// Sets the state that follows `attempt`, unless another operation has replaced that attempt already.
    fn replace(&self, attempt: &Attempt, next: LinkState) {
        let mut state = self.state();
        if matches!(&*state, LinkState::Trying(current) if current.ptr_eq(attempt)) {
            *state = next;
        }
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects in a separate task, which continues after the operation that began it has timed out. The task is aborted when the
/// last reference to the attempt is dropped.
fn begin(url: RedisUrl, version_key: String) -> Attempt {
    let connecting = async move { connect(&url, &version_key).await.map_err(|error| error.0) };
    let mut task = AbortOnDrop(tokio::spawn(connecting));
    let result = async move {
        let ended = (&mut task.0).await;
        ended.unwrap_or_else(|_| Err("connecting to Redis was cut off".into()))
    };
    result.boxed().shared()
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// True if a connection with this error must be replaced: it is broken, or its server is no longer the primary after a failover.
fn is_useless_after(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}
