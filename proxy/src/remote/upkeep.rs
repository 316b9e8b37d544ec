//! Regular work for a served pool: health checks, resolving names, closing idle connections, updating gauges.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tooldock_upstream::http_client::{BackendRequest, SendError};
use tooldock_workers::remote::HealthPath;

use super::exchange::is_event_stream;
use super::health::HealthEvent;
use super::lock;
use super::pool::{Pool, PoolMember};

/// Interval at which names, idle connections and gauges are updated.
const TICK: Duration = Duration::from_secs(1);

/// Pause of the loop's health-check timer for a pool without health checks.
const UNCHECKED: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of health checks of one pool that run at the same time.
const CHECKS_MAX: usize = 32;

/// Maximum number of bytes that are read of a health check's response.
const ANSWER_MAX: usize = 64 * 1024;

/// The body of a health check: an MCP request that every server answers with a result or an error. The request names a session
/// that does not exist. Without a session, some servers would open one for each check and keep it.
const PING: &[u8] = br#"{"jsonrpc":"2.0","id":"tooldock-check","method":"ping"}"#;
const NO_SESSION: HeaderValue = HeaderValue::from_static("tooldock-check");

/// Pauses between the first health checks of a pool none of whose backends has ever answered. The last pause is repeated. They
/// are short, so that a server that starts together with the gateway is used soon after it accepts connections.
const FIRST_PAUSES: [Duration; 3] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
];

/// The pause before the next health check, after `checks` checks. Never longer than the configured pause `every`.
fn pause(has_answered: bool, checks: usize, every: Duration) -> Duration {
    if has_answered {
        return every;
    }
    let last = FIRST_PAUSES.len() - 1;
    FIRST_PAUSES[checks.saturating_sub(1).min(last)].min(every)
}

/// Runs the upkeep of a pool until the pool is dropped.
pub(super) async fn keep(pool: Weak<Pool>) {
    let (mut checks, mut next_check) = (0, Instant::now());
    let mut next_tick = next_check;
    loop {
        sleep_until(next_check.min(next_tick)).await;
        let Some(pool) = pool.upgrade() else { return };
        let now = Instant::now();
        // APIs have no health checks, since the gateway sends only requests that the document describes. The requests of calls
        // decide if the API is healthy.
        if pool.server.spec.api.is_some() {
            next_check = now + UNCHECKED;
        } else if next_check <= now {
            check(&pool.members).await;
            checks += 1;
            let has_answered = pool.members.iter().any(|it| it.has_answered());
            let pause = pause(has_answered, checks, pool.server.spec.health.active.every);
            // The random factor spreads the checks of replicas and pools that started at the same time.
            next_check = Instant::now() + pause.mul_f64(0.9 + 0.2 * fastrand::f64());
            #[cfg(test)]
            pool.checked
                .store(true, std::sync::atomic::Ordering::SeqCst);
        }
        if next_tick <= now {
            next_tick = now + TICK;
            tend(&pool, now).await;
        }
    }
}

/// Updates gauges, closes idle connections and resolves names again. Called every second.
async fn tend(pool: &Pool, now: Instant) {
    {
        let mut leaving = lock(&pool.leaving);
        leaving.retain(|member| member.is_busy());
        leaving.iter().for_each(|member| member.show_health(now));
    }
    for member in &pool.members {
        let core = &member.core;
        member.show_health(now);
        core.idle
            .sweep(|address| core.addresses.still_resolves_to(address));
    }
    let mut lookups = JoinSet::new();
    for member in &pool.members {
        let member = Arc::clone(member);
        let limit = member.server.spec.timeouts.connect;
        lookups.spawn(async move { member.core.addresses.refresh(limit).await });
    }
    while lookups.join_next().await.is_some() {}
}

async fn check(members: &[Arc<PoolMember>]) {
    let mut checks = JoinSet::new();
    for member in members {
        if checks.len() >= CHECKS_MAX {
            checks.join_next().await;
        }
        let member = Arc::clone(member);
        checks.spawn(async move { member.note(checked(&member).await) });
    }
    while checks.join_next().await.is_some() {}
}

/// Sends a health check to a backend and returns its result.
pub(super) async fn checked(member: &Arc<PoolMember>) -> HealthEvent {
    let settings = &member.server.spec.health.active;
    let asking = async {
        let mut response = member.ask(request(&settings.path)).await?;
        // The response is read to its end, so that the connection can be reused. If the response is an event stream, reading
        // stops after the first chunk, because the server may keep the stream open.
        let is_stream = is_event_stream(&response.headers);
        let mut left = ANSWER_MAX;
        while let Ok(Some(piece)) = response.body.chunk().await {
            left = left.saturating_sub(piece.len());
            if left == 0 || is_stream {
                break;
            }
        }
        Ok::<_, SendError>(response.status)
    };
    let failed = match (timeout(settings.timeout, asking).await, &settings.path) {
        (Ok(Ok(status)), HealthPath::Off) if !status.is_server_error() => {
            return HealthEvent::CheckPassed;
        }
        (Ok(Ok(status)), HealthPath::Path(_)) if status.is_success() => {
            return HealthEvent::CheckPassed;
        }
        (Ok(Ok(status)), _) => format!("it answered {status}"),
        (Ok(Err(error)), _) => error.message,
        (Err(_), _) => {
            let limit = settings.timeout.as_secs_f32();
            let problem = format!("no answer within {limit} s (health.active.timeout)");
            return HealthEvent::CheckTimedOut(problem);
        }
    };
    HealthEvent::CheckFailed(failed)
}

fn request(path: &HealthPath) -> BackendRequest {
    let mut headers = HeaderMap::new();
    match path {
        HealthPath::Path(path) => BackendRequest {
            target: Some(path.clone()),
            ..BackendRequest::new(Method::GET, headers, Bytes::new())
        },
        HealthPath::Off => {
            let both = HeaderValue::from_static("application/json, text/event-stream");
            headers.insert(header::ACCEPT, both);
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
            headers.insert("mcp-session-id", NO_SESSION);
            BackendRequest::new(Method::POST, headers, Bytes::from_static(PING))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_come_quickly_until_a_backend_has_answered() {
        let (every, soon) = (Duration::from_secs(10), Duration::from_millis(300));
        for (has_answered, checks, every, expected) in [
            (false, 1, every, 250),
            (false, 2, every, 500),
            (false, 3, every, 1000),
            (false, 100, every, 1000),
            (true, 1, every, 10_000),
            (true, 100, every, 10_000),
            (false, 2, soon, 300),
            (true, 1, soon, 300),
        ] {
            let found = pause(has_answered, checks, every);
            assert_eq!(found, Duration::from_millis(expected), "{checks}");
        }
    }
}
