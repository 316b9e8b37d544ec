//! The cost of a decision. A change that makes one dearer has to say so: allocations are asserted here, instructions
//! are compared with `cost.json` by `make cost`.

use std::hint::black_box;

use super::*;

#[path = "../../../../tests/support/counted.rs"]
mod counted;

use counted::allocations;

/// Every check with entries to look up, and limits that no request reaches.
const FULL: &str = r#"
    hosts: [gw.example]
    origins: ["https://ok.example"]
    cidrs: { allow: [192.0.2.0/24], deny: [203.0.113.0/24] }
    trusted_proxies: [198.51.100.1]
    flood: { rate: 1000000, burst: 1000000 }
    failures: { free: 1000000 }
    rate_limits:
      - { key: principal, rate: 1000000, burst: 1000000 }
      - { key: address, rate: 1000000, burst: 1000000 }
      - { key: namespace, rate: 1000000, burst: 1000000 }
"#;

fn allocations_of(case: &Case, yaml: &str, is_expected: fn(&Verdict) -> bool) -> u64 {
    let (_, admission) = admission(yaml);
    let parts = case.parts();
    let mut odd = 0;
    let made = allocations(
        || (),
        |()| {
            let verdict = case.admit(black_box(&parts), &admission);
            odd += usize::from(!is_expected(&verdict));
            black_box(verdict);
        },
    );
    assert_eq!(odd, 0);
    made
}

fn is_refusal(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Refused(_))
}

#[test]
fn cost_of_admitting_a_call() {
    let made = allocations_of(&good(), FULL, |it| matches!(it, Verdict::Admitted(_)));
    assert!(made <= 1, "{made} allocations");
}

#[test]
fn cost_of_refusing_a_wrong_token() {
    let case = good().with("authorization", "Bearer change_it");
    let made = allocations_of(&case, FULL, is_refusal);
    assert!(made <= 1, "{made} allocations");
}

#[test]
fn cost_of_refusing_a_namespace_of_others() {
    let case = good().with("x-namespace", "vault");
    let made = allocations_of(&case, FULL, is_refusal);
    assert!(made <= 3, "{made} allocations");
}

#[test]
fn cost_of_refusing_too_many_requests() {
    let (_, admission) = admission(STRICT);
    let (case, parts) = (good(), good().parts());
    // The budget is for one.
    black_box(case.admit(&parts, &admission));
    let mut odd = 0;
    let made = allocations(
        || (),
        |()| {
            let verdict = case.admit(black_box(&parts), &admission);
            odd += usize::from(!is_refusal(&verdict));
            black_box(verdict);
        },
    );
    assert_eq!(odd, 0);
    assert!(made <= 4, "{made} allocations");
}
