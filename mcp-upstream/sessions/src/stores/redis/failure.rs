//! Failures of Redis as one line each, for the log: the address, the fault, and its remedy. No line quotes a command, since
//! its arguments are records of sessions.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::url::RedisUrl;
use crate::stream::StoreError;

/// Creates the error for a failure of the Redis at `url`.
pub(super) fn failure(url: &RedisUrl, fault: impl std::fmt::Display) -> StoreError {
    StoreError(format!("Redis at {url} {fault}"))
}

/// Converts an error of the Redis client or of the server to a line for the log.
pub(super) fn as_store_error(url: &RedisUrl, error: &RedisError) -> StoreError {
    let known = match error.kind() {
        ErrorKind::AuthenticationFailed => REFUSED,
        ErrorKind::Server(ServerErrorKind::ReadOnly) => {
            "is a read-only replica: name the primary in sessions.store, or use redis+sentinel://"
        }
        ErrorKind::Server(ServerErrorKind::BusyLoading) => "is still loading its data",
        ErrorKind::Server(ServerErrorKind::ClusterDown) => {
            "is a cluster that is down: not all slots are served"
        }
        ErrorKind::MasterNameNotFoundBySentinel => {
            "is unknown to the Sentinels, or they know no primary at the moment"
        }
        _ => match error.code() {
            Some("NOAUTH") => {
                "asks for a password: add one to sessions.store, redis://:PASSWORD@HOST or ?password_file=PATH"
            }
            Some("WRONGPASS") => REFUSED,
            Some("READONLY") => {
                "is a read-only replica: name the primary in sessions.store, or use redis+sentinel://"
            }
            Some("OOM") => {
                "is out of memory: raise its maxmemory, or lower sessions.event_log and sessions.max"
            }
            Some("MISCONF") => "cannot save to its disk and refuses writes: see its log",
            Some("NOPERM") => {
                "denies a command to this user: allow it read, write and scripting on the keys of sessions.store_prefix"
            }
            _ => return failure(url, unknown(error)),
        },
    };
    failure(url, known)
}

const REFUSED: &str = "refuses the password: check the user and the password of sessions.store";

fn unknown(error: &RedisError) -> String {
    if error.is_io_error() || error.is_connection_dropped() {
        return format!("cannot be reached: {error}");
    }
    let detail = error.detail().unwrap_or_default();
    // Redis quotes the arguments here: `ERR unknown command 'X', with args beginning with: …`. They are cut off.
    let detail = detail.split(", with args").next().unwrap_or_default();
    let code = error.code().unwrap_or_else(|| error.category());
    format!("failed: {code} {detail}").trim_end().to_owned()
}
