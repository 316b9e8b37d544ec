//! Tests of limit budgets that replicas share.

use tooldock_base::budget::BudgetUse;

use super::*;
use crate::replicas::ReplicaDirectory;

/// Window of the budgets, long compared with the time that a test takes.
const WINDOW: Duration = Duration::from_secs(100_000);

fn used(name: u8, taken: u64, whole_in: u64) -> BudgetUse {
    BudgetUse {
        name: [name; 16],
        taken: Duration::from_secs(taken),
        whole_in: Duration::from_secs(whole_in),
        window: WINDOW,
    }
}

/// Takes from budgets, and returns the answers in seconds, rounded up since some time has passed.
async fn take(store: &RedisStore, used: &[BudgetUse]) -> Vec<u64> {
    let whole_in = store.take_budgets(used, 2).await.expect("works");
    let seconds = |it: &Duration| it.as_secs_f64().ceil() as u64;
    whole_in.iter().map(seconds).collect()
}

/// Asserts that a budget is whole after `expected` seconds, less the time that the test has taken.
fn assert_near(seconds: u64, expected: u64) {
    assert!(
        (expected - 60..=expected).contains(&seconds),
        "{seconds} in place of {expected}"
    );
}

#[tokio::test]
async fn all_replicas_take_from_one_budget_and_each_budget_is_its_own() {
    for server in [RedisServer::start(), RedisServer::cluster()] {
        let url = match server.port() {
            0 => server.url(),
            port => format!("redis+cluster://127.0.0.1:{port}"),
        };
        let [one, two] = [(); 2].map(|()| store_at(&url, &EventLogConfig::default()));
        let answers = take(&one, &[used(1, 1_000, 1_000), used(2, 500, 500)]).await;
        assert_near(answers[0], 1_000);
        assert_near(answers[1], 500);
        let answers = take(&two, &[used(1, 3_000, 3_000)]).await;
        assert_near(answers[0], 4_000);
        let answers = take(&one, &[used(1, 1_000, 2_000)]).await;
        assert_near(answers[0], 5_000);
    }
}

#[tokio::test]
async fn a_redis_that_has_lost_its_data_learns_what_replicas_know() {
    let server = RedisServer::start();
    let store = store_of(&server);
    take(&store, &[used(1, 1_000, 1_000)]).await;
    server.command(&["FLUSHALL"]);
    let answers = take(&store, &[used(1, 500, 9_000)]).await;
    assert_near(answers[0], 9_000);
    // The use is known already, and does not count again.
    let answers = take(&store, &[used(1, 500, 9_000)]).await;
    assert_near(answers[0], 9_500);
}

#[tokio::test]
async fn a_clock_that_was_set_back_blocks_no_budget_for_longer_than_all_replicas_can_empty_it() {
    let server = RedisServer::start();
    let store = store_of(&server);
    take(&store, &[used(1, 1, 1)]).await;
    let key = server.command(&["KEYS", "tooldock:budget:*"]);
    server.command(&["SET", &key, "4000000000000000"]);
    let answers = take(&store, &[used(1, 1_000, 1_000)]).await;
    assert_near(answers[0], 2 * WINDOW.as_secs() + 1_002);
}

#[tokio::test]
async fn a_budget_is_kept_until_it_is_whole() {
    let server = RedisServer::start();
    let store = store_of(&server);
    take(&store, &[used(7, 1_000, 1_000)]).await;
    let key = server.command(&["KEYS", "tooldock:budget:*"]);
    assert_eq!(
        key,
        format!("tooldock:budget:{{budgets}}:{}", "07".repeat(16))
    );
    let life: u64 = server.command(&["TTL", &key]).parse().expect("a number");
    assert_near(life, 1_000);
}
