use std::hint::black_box;

use super::*;
use crate::cost::{allocations, runtime};

const NOTIFICATION: &str = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;

/// Counts the allocations of one message, including those of the backend in memory. A message of 2026-07-28 has no session.
fn allocations_of(is_modern: bool, body: &str) -> u64 {
    let runtime = runtime();
    let _guard = runtime.enter();
    let house = house(1, |_| {});
    let given = match is_modern {
        true => (modern_asker(), modern_head()),
        false => {
            let session = runtime.block_on(house.open());
            (asker(), head(Some(&session), Some("2025-11-25")))
        }
    };
    let body = Bytes::copy_from_slice(body.as_bytes());
    allocations(
        || given.clone(),
        |(caller, head)| {
            let reply = house.harness.service.post(caller, head, body.clone());
            let reply = runtime.block_on(reply);
            assert!(reply.head().status.is_success());
            black_box(reply);
        },
    )
}

#[test]
fn cost_of_a_call_passed_through_in_a_session() {
    let made = allocations_of(false, CALL);
    assert!(made <= 47, "{made} allocations");
}

#[test]
fn cost_of_a_notification_passed_through() {
    let made = allocations_of(false, NOTIFICATION);
    assert!(made <= 21, "{made} allocations");
}

#[test]
fn cost_of_a_modern_call_passed_through() {
    let made = allocations_of(true, &modern_call());
    assert!(made <= 42, "{made} allocations");
}
