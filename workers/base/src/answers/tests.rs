use std::net::Ipv4Addr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;

const MIB: usize = 1024 * 1024;

fn budget(total: usize) -> Arc<AnswerBudget> {
    let metrics = AnswerMetrics::new(&prometheus::Registry::new());
    AnswerBudget::new(total, metrics.expect("a fresh registry"))
}

fn account(budget: &Arc<AnswerBudget>, principal: &str) -> AnswerAccount {
    let principal: Arc<str> = principal.into();
    AnswerAccount::new(budget, Some(&principal), Ipv4Addr::LOCALHOST.into())
}

/// Output of a future that is ready at its first poll.
fn at_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn is_closed(waiting: &WaitingAnswer) -> bool {
    at_once(waiting.closed()).is_some()
}

#[tokio::test(start_paused = true)]
async fn bytes_count_until_their_last_part_is_freed() {
    let budget = budget(10 * MIB);
    let account = account(&budget, "a");
    let bytes = Bytes::from(vec![b'x'; MIB]);
    let at = bytes.as_ptr();
    let kept = account.keep(bytes).expect("there is room");
    assert_eq!((kept.as_ptr(), budget.bytes()), (at, MIB));
    let part = kept.slice(5..6);
    drop(kept);
    assert_eq!(budget.bytes(), MIB);
    drop(part);
    assert_eq!(budget.bytes(), 0);
    let small = account.keep(Bytes::from_static(b"small")).expect("small");
    assert_eq!((budget.bytes(), &small[..]), (0, &b"small"[..]));
    assert!(budget.ledger().owners.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_finds_no_room_to_grow_stays_as_it_was() {
    let budget = budget(2 * MIB);
    let claim = account(&budget, "a").claim(MIB).expect("there is room");
    claim.grow(MIB).expect("there is room");
    assert_eq!(claim.grow(1), Err(NoAnswerRoom));
    assert_eq!(budget.bytes(), 2 * MIB);
    drop(claim);
    assert_eq!(budget.bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_principal_within_its_share_displaces_the_unread_answers_of_the_one_that_holds_most() {
    let budget = budget(8 * MIB);
    let (greedy, honest) = (account(&budget, "greedy"), account(&budget, "honest"));
    let unread: Vec<_> = (0..8)
        .map(|_| greedy.claim(MIB).expect("there is room").waiting())
        .collect();
    // The answers of this principal were just written: they do not give way to its own.
    assert!(greedy.claim(MIB).is_err());
    let moderate = honest.claim(2 * MIB).expect("the other gives way");
    assert_eq!(unread.iter().filter(|it| is_closed(it)).count(), 2);
    assert!(is_closed(&unread[0]) && is_closed(&unread[1]));
    // Memory of closed answers is shown until their connections have ended.
    assert_eq!(budget.bytes(), 10 * MIB);
    drop(unread);
    assert_eq!(budget.bytes(), 2 * MIB);
    drop(moderate);
    assert_eq!(budget.bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stands_still_gives_way_to_any_other_of_its_principal() {
    let budget = budget(2 * MIB);
    let account = account(&budget, "a");
    let still = account.claim(MIB).expect("there is room").waiting();
    let read = account.claim(MIB).expect("there is room");
    tokio::time::advance(STANDS_STILL).await;
    let progresses = read.waiting();
    let _next = account.claim(MIB).expect("the first gives way");
    assert!(is_closed(&still) && !is_closed(&progresses));
    assert!(account.claim(MIB).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_room_unless_its_principal_has_its_share_left() {
    let budget = budget(2 * MIB);
    let (full, other) = (account(&budget, "full"), account(&budget, "other"));
    let claim = full.claim(2 * MIB).expect("there is room");
    assert_eq!(at_once(other.room()), Some(Ok(())));
    assert_eq!(full.room().await, Err(NoAnswerRoom));
    let waits = tokio::spawn({
        let full = full.clone();
        async move { full.room().await }
    });
    tokio::task::yield_now().await;
    drop(claim);
    assert_eq!(waits.await.expect("it ends"), Ok(()));
    assert_eq!(at_once(full.room()), Some(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn strangers_share_by_address() {
    let budget = budget(4 * MIB);
    let stranger = |last| AnswerAccount::new(&budget, None, Ipv4Addr::new(192, 0, 2, last).into());
    let unread = stranger(1).claim(4 * MIB).expect("there is room").waiting();
    assert!(stranger(1).claim(MIB).is_err());
    assert!(stranger(2).claim(MIB).is_ok());
    assert!(is_closed(&unread));
}
