//! Tests of a log with a store: events are stored, then shown, in their order.

use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;
use futures_util::poll;
use tokio::sync::oneshot;

use super::*;
use crate::stream::store::{AppendOutcome, Replay};

/// A store that answers when the test tells it to. Openings are answered at once.
#[derive(Default)]
struct Slow {
    writes: Mutex<VecDeque<oneshot::Sender<AppendOutcome>>>,
}

impl Slow {
    /// Answers an open write, counted from the oldest.
    fn answer(&self, which: usize) {
        self.answer_as(which, AppendOutcome::Kept);
    }

    fn answer_as(&self, which: usize, appended: AppendOutcome) {
        let write = self.writes.lock().expect("not poisoned").remove(which);
        write
            .expect("an open write")
            .send(appended)
            .expect("awaited");
    }
}

#[async_trait]
impl EventStore for Slow {
    async fn append(
        &self,
        _: StreamRef<'_>,
        event: &StoredEvent,
    ) -> Result<AppendOutcome, StoreError> {
        if let EventKind::Opened { .. } = event.kind {
            return Ok(AppendOutcome::Kept);
        }
        let (answer, answered) = oneshot::channel();
        self.writes.lock().expect("not poisoned").push_back(answer);
        answered.await.map_err(|_| StoreError("gone".into()))
    }

    async fn read(&self, _: StreamRef<'_>, _: usize) -> Result<Replay, StoreError> {
        Ok(Replay::default())
    }

    async fn forget(&self, _: &SessionId) -> Result<(), StoreError> {
        Ok(())
    }
}

async fn scene() -> (Arc<Slow>, EventLog, Arc<Session>, Arc<Stream>) {
    let store = Arc::new(Slow::default());
    let log = log(limits(256, 1 << 20)).0;
    let log = log.with_store(Arc::clone(&store) as _);
    let session = session();
    let stream = open(&log, &session, StreamKind::General).await;
    (store, log, session, stream)
}

#[tokio::test]
async fn an_event_is_shown_once_it_is_stored_and_not_before_an_earlier_one() {
    let (store, log, session, stream) = scene().await;
    let mut reader = stream.read();
    let mut first = Box::pin(put(&log, &session, &stream, "1"));
    let mut second = Box::pin(put(&log, &session, &stream, "2"));
    let mut third = Box::pin(put(&log, &session, &stream, "3"));
    for put in [&mut first, &mut second, &mut third] {
        assert!(poll!(put).is_pending());
    }
    store.answer(1);
    second.await;
    assert!(ready(&mut reader).0.is_empty(), "the first is not stored");
    store.answer(0);
    first.await;
    assert_eq!(data(&ready(&mut reader).0), ["1", "2"]);
    store.answer(0);
    third.await;
    assert_eq!(data(&ready(&mut reader).0), ["3"]);
}

#[tokio::test]
async fn a_writer_that_gives_up_and_a_store_that_fails_hold_up_nobody() {
    let (store, log, session, stream) = scene().await;
    let mut reader = stream.read();
    let mut given_up = Box::pin(put(&log, &session, &stream, "1"));
    let mut failed = Box::pin(put(&log, &session, &stream, "2"));
    assert!(poll!(&mut given_up).is_pending() && poll!(&mut failed).is_pending());
    drop(given_up);
    store.writes.lock().expect("not poisoned").clear();
    failed.await;
    assert_eq!(data(&ready(&mut reader).0), ["1", "2"]);
}

#[tokio::test]
async fn an_event_of_a_session_that_another_replica_has_is_shown_without_an_id_or_not_at_all() {
    for (kind, shown) in [
        (StreamKind::General, &[][..]),
        (StreamKind::Request, &["1"]),
    ] {
        let (store, log, session, _) = scene().await;
        let stream = open(&log, &session, kind).await;
        let mut reader = stream.read();
        let mut foreign = Box::pin(put(&log, &session, &stream, "1"));
        assert!(poll!(&mut foreign).is_pending());
        store.answer_as(0, AppendOutcome::Foreign);
        foreign.await;
        let events = ready(&mut reader).0;
        assert_eq!(data(&events), shown);
        assert!(events.iter().all(|event| event.id.is_empty()), "{kind:?}");
    }
}

#[tokio::test]
async fn nothing_is_shown_of_a_session_that_ended_meanwhile() {
    let (store, log, session, stream) = scene().await;
    let mut reader = stream.read();
    let mut put = Box::pin(put(&log, &session, &stream, "1"));
    assert!(poll!(&mut put).is_pending());
    session.close();
    store.answer(0);
    put.await;
    assert_eq!(ready(&mut reader), (vec![], true));
    assert_eq!(log.ledger.bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn streams_of_an_earlier_process_are_found_by_their_kind_and_the_others_are_not() {
    let made = makers::taken_over(limits(256, 1 << 20));
    let (log, before) = (made.log, session());
    let general = open(&log, &before, StreamKind::General).await;
    let request = open(&log, &before, StreamKind::Request).await;
    put(&log, &before, &general, "general").await;
    put(&log, &before, &request, "request").await;
    let heir = made.heir.expect("a store")();
    let session = as_adopted(&before);
    let after = async |number: u32| {
        let resumed = heir.resume(&session, &format!("{number}-0")).await;
        let (read, over) = ready(&mut resumed.ok()?);
        let read: Vec<_> = read.into_iter().map(|seen| seen.data).collect();
        Some((read, over))
    };
    let said = |data: &str| vec![data.to_owned()];
    assert_eq!(after(2).await, Some((said("general"), false)));
    assert_eq!(after(1).await, Some((said("request"), true)));
    assert_eq!((after(4).await, after(3).await), (None, None));
    // New streams get other numbers.
    let next = open(&heir, &session, StreamKind::General).await;
    assert_eq!(next.number(), 4);
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_for_what_an_earlier_process_owed_gets_an_error_once() {
    let made = makers::taken_over(limits(256, 1 << 20));
    let (log, before) = (made.log, session());
    let owes: [Box<str>; 3] = ["7".into(), r#""a""#.into(), "8".into()];
    let opened = log.open_for_requests(&before, StreamKind::Request, true, &owes);
    let stream = opened.await.expect("memory");
    put(
        &log,
        &before,
        &stream,
        r#"{"jsonrpc":"2.0","id":"a","result":{}}"#,
    )
    .await;
    // A question to the client has an id of its own.
    put(
        &log,
        &before,
        &stream,
        r#"{"jsonrpc":"2.0","id":8,"method":"roots/list"}"#,
    )
    .await;
    let id = format!("{}-{}", stream.number(), 0);
    let mut seen = Vec::new();
    for _ in 0..2 {
        let heir = made.heir.as_ref().expect("a store")();
        let session = as_adopted(&before);
        let mut resumed = heir.resume(&session, &id).await.expect("a stream it had");
        let (read, over) = ready(&mut resumed);
        assert!(over);
        seen.push(read);
    }
    assert_eq!(seen[0], seen[1], "the errors are events like the others");
    let errors = seen[0][2..].iter().map(|seen| {
        let error: serde_json::Value = serde_json::from_str(&seen.data).expect("JSON");
        (error["id"].clone(), error["error"]["data"]["code"].clone())
    });
    let lost = |id: i32| (id.into(), "worker_unavailable".into());
    assert_eq!(errors.collect::<Vec<_>>(), [lost(7), lost(8)]);
}
