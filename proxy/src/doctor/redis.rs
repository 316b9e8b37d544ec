//! Checks the Redis of `sessions.store`: it must accept the password, have version 7 or later, be a primary, and respond fast
//! enough.

use std::time::Duration;

use tokio::time::Instant;
use tooldock_sessions::session::config::StoreConfig;
use tooldock_sessions::stores::redis::{RedisStore, RedisUrl};

use super::Finding;
use crate::config::Effective;

const CHECK: &str = "redis";
/// Maximum response time of Redis. With slower responses, operations on sessions may exceed their time limit.
const ANSWER_MAX: Duration = Duration::from_millis(25);
/// Number of measured responses; the fastest counts.
const ANSWERS: usize = 5;

/// Connects to the session store with the gateway's settings, and measures its response time.
pub(super) async fn check(effective: &Effective) -> Vec<Finding> {
    let StoreConfig::Redis(url) = &effective.config.sessions.store else {
        let said = "sessions.store is no Redis";
        return vec![Finding::skipped(CHECK, said)];
    };
    let shown = url.masked();
    let problem = |why: String| {
        let said = format!("sessions.store: {why}");
        vec![Finding::problem(
            CHECK,
            said,
            format!("redis-cli -u '{shown}' ping"),
        )]
    };
    let parsed: RedisUrl = match url.expose().parse() {
        Ok(url) => url,
        Err(error) => return problem(format!("{error}")),
    };
    let sessions = &effective.config.sessions;
    let prefix = &sessions.store_prefix;
    let connected = RedisStore::connect(&parsed, prefix, sessions.ttl, &sessions.event_log).await;
    let store = match connected {
        Ok(store) => store,
        Err(error) => return problem(error.to_string()),
    };
    let (mut fastest, mut failure) = (None, None);
    for _ in 0..ANSWERS {
        let began = Instant::now();
        match store.ping().await {
            Ok(()) => {
                let took = began.elapsed();
                fastest = Some(fastest.map_or(took, |it: Duration| it.min(took)));
            }
            Err(error) => failure = Some(error),
        }
    }
    let took = match (fastest, failure) {
        (None, Some(error)) => return problem(error.to_string()),
        (took, _) => took.unwrap_or_default(),
    };
    let millis = took.as_secs_f64() * 1000.0;
    vec![match took > ANSWER_MAX {
        true => Finding::warning(
            CHECK,
            format!(
                "Redis answers after {millis:.1} ms at best, and an operation may take 50 ms: run it nearer"
            ),
            format!("redis-cli -u '{shown}' --latency"),
        ),
        false => Finding::ok(
            CHECK,
            format!("Redis is a primary of version 7 or later, and answers after {millis:.1} ms"),
        ),
    }]
}

/// Creates a store that has not connected to Redis yet, for reading Redis's clock; `None` if sessions are not stored in Redis.
pub(super) fn store_of(effective: &Effective) -> Option<Result<RedisStore, String>> {
    let StoreConfig::Redis(url) = &effective.config.sessions.store else {
        return None;
    };
    let made = url
        .expose()
        .parse::<RedisUrl>()
        .map_err(|it| it.to_string());
    let sessions = &effective.config.sessions;
    Some(made.and_then(|url| {
        let prefix = &sessions.store_prefix;
        let store = RedisStore::unconnected(&url, prefix, sessions.ttl, &sessions.event_log);
        store.map_err(|error| error.to_string())
    }))
}
