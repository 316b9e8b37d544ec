//! Tests that every event log must pass, whatever its store. A maker returns a log with these bounds and the metrics that it
//! counts in.

use std::any::Any;
use std::sync::Arc;

use super::{Seen, as_adopted, data, limits, ready, session, session_of};
use crate::session::Session;
use crate::session::config::EventLogConfig;
use crate::stream::{
    EventLog, ResumeError, Stream, StreamKind, StreamMetrics, StreamOwner, Subscription,
};

/// Defines a test per fact, for a maker of logs. Time stands still unless another test attribute is given: a store over a socket
/// or a file needs `tokio::test`, since with a paused clock timeouts are over before it answers.
macro_rules! holds_for {
    ($make:ident) => {
        contract::holds_for!($make, tokio::test(start_paused = true));
    };
    ($make:ident: $($fact:ident),* $(,)?) => {
        contract::holds_for!($make, tokio::test(start_paused = true): $($fact),*);
    };
    ($make:ident, $test:meta) => {
        contract::holds_for!($make, $test:
            every_event_has_its_own_id_which_names_its_stream,
            a_resumed_stream_goes_on_behind_the_named_event,
            priming_comes_first_and_can_be_resumed_from,
            a_message_is_on_exactly_one_general_stream,
            what_is_said_while_nobody_listens_waits,
            ids_of_others_and_ids_of_nobody_are_refused,
            what_is_older_than_the_window_is_left_out_and_counted,
            a_slow_reader_ends_and_its_log_stays,
            a_second_reader_takes_the_stream_over,
            a_finished_stream_is_read_to_its_end_as_often_as_wanted,
            so_many_finished_streams_are_kept,
            a_closed_session_has_nothing_left,
            a_stream_of_http_sse_has_no_ids_and_keeps_nothing,
            a_broadcast_reaches_each_session_once,
            a_general_stream_that_was_forgotten_goes_on_empty,
            who_fills_the_log_pushes_out_only_what_is_its_own,
        );
    };
    ($make:ident, $test:meta: $($fact:ident),* $(,)?) => {
        mod $make {
            use super::contract;

            $(#[$test]
            async fn $fact() {
                contract::$fact(super::makers::$make).await;
            })*
        }
    };
}
pub(super) use holds_for;

/// A log, and a maker of another process's log over the same store, if that is to be tried.
pub(super) struct Made {
    pub(super) log: Arc<EventLog>,
    pub(super) metrics: Arc<StreamMetrics>,
    pub(super) heir: Option<Box<dyn Fn() -> EventLog>>,
    /// Kept until the test ends: the server of a store.
    pub(super) guard: Box<dyn Any>,
}

/// A log, and a maker of another process's log over the same store.
struct Log(Arc<EventLog>, Option<Box<dyn Fn() -> EventLog>>);

impl Log {
    async fn open(&self, session: &Arc<Session>, kind: StreamKind) -> Arc<Stream> {
        self.0.open(session, kind, false).await.expect("works")
    }

    async fn put(&self, session: &Arc<Session>, stream: &Arc<Stream>, message: &str) {
        self.0.append(session, stream, message.as_bytes()).await;
    }

    async fn say(&self, session: &Arc<Session>, message: &str) -> bool {
        self.0.append_general(session, message.as_bytes()).await
    }

    async fn resume(&self, session: &Arc<Session>, id: &str) -> Subscription {
        self.0.resume(session, id).await.expect("a stream it had")
    }

    /// The events that a client gets when it resumes after this event; from another process that has only the store, if there is
    /// one.
    async fn after(&self, session: &Arc<Session>, id: &str) -> (Vec<Seen>, bool) {
        let Some(heir) = &self.1 else {
            return ready(&mut self.resume(session, id).await);
        };
        let (heir, session) = (heir(), as_adopted(session));
        let resumed = heir.resume(&session, id).await;
        ready(&mut resumed.expect("a stream it had"))
    }
}

macro_rules! fact {
    ($name:ident, |$log:ident, $metrics:ident| $body:block) => {
        fact!($name, 256, 1 << 20, |$log, $metrics| $body);
    };
    ($name:ident, $events:expr, $bytes:expr, |$log:ident, $metrics:ident| $body:block) => {
        pub(super) async fn $name(make: impl Fn(EventLogConfig) -> Made) {
            let Made {
                log,
                metrics: $metrics,
                heir,
                guard: _guard,
            } = make(limits($events, $bytes));
            let $log = Log(log, heir);
            $body
        }
    };
}

fact!(
    every_event_has_its_own_id_which_names_its_stream,
    |log, metrics| {
        let session = session();
        let mut ids = std::collections::HashSet::new();
        let mut streams = std::collections::HashSet::new();
        for kind in [
            StreamKind::General,
            StreamKind::Request,
            StreamKind::General,
        ] {
            let stream = log.open(&session, kind).await;
            let mut reader = stream.read();
            for _ in 0..10 {
                log.put(&session, &stream, "{}").await;
            }
            let read = ready(&mut reader).0;
            let named: std::collections::HashSet<_> = read
                .iter()
                .map(|seen| seen.id.split('-').next().expect("a stream").to_owned())
                .collect();
            assert_eq!(named.len(), 1);
            streams.extend(named);
            ids.extend(read.into_iter().map(|seen| seen.id));
        }
        assert_eq!((ids.len(), streams.len()), (30, 3));
        assert_eq!(metrics.events.get(), 30);
    }
);

fact!(
    a_resumed_stream_goes_on_behind_the_named_event,
    |log, metrics| {
        let session = session();
        let stream = log.open(&session, StreamKind::General).await;
        let mut reader = stream.read();
        for message in ["1", "2", "3"] {
            log.put(&session, &stream, message).await;
        }
        let ids: Vec<_> = ready(&mut reader)
            .0
            .into_iter()
            .map(|seen| seen.id)
            .collect();
        drop(reader);
        log.put(&session, &stream, "4").await;
        let (again, over) = log.after(&session, &ids[0]).await;
        assert_eq!((data(&again), over), (vec!["2", "3", "4"], false));
        assert_eq!(again[0].id, ids[1], "events keep their ids");
        let mut live = log.resume(&session, &ids[2]).await;
        assert_eq!(data(&ready(&mut live).0), ["4"]);
        log.put(&session, &stream, "5").await;
        assert_eq!(data(&ready(&mut live).0), ["5"]);
        assert_eq!((metrics.replays.get(), metrics.window_misses.get()), (2, 0));
    }
);

fact!(
    priming_comes_first_and_can_be_resumed_from,
    |log, _metrics| {
        let session = session();
        let stream = log
            .0
            .open(&session, StreamKind::Request, true)
            .await
            .expect("works");
        log.put(&session, &stream, "1").await;
        let mut reader = stream.read();
        let first = reader.next().await.expect("the priming event");
        let text = std::str::from_utf8(&first).expect("UTF-8");
        assert!(
            text.contains("retry: ") && text.contains("data: \n"),
            "{text}"
        );
        let id = super::seen(&first).id;
        drop(reader);
        assert_eq!(data(&log.after(&session, &id).await.0), ["1"]);
        let idle = log
            .0
            .open(&session, StreamKind::General, true)
            .await
            .expect("works");
        let first = idle.read().next().await.expect("the priming event");
        let (nothing, over) = log.after(&session, &super::seen(&first).id).await;
        assert_eq!((nothing, over), (vec![], false));
    }
);

fact!(
    a_message_is_on_exactly_one_general_stream,
    |log, _metrics| {
        let session = session();
        assert!(!log.say(&session, "nobody").await);
        log.open(&session, StreamKind::Request).await;
        assert!(!log.say(&session, "no general stream").await);
        let first = log.open(&session, StreamKind::General).await;
        let second = log.open(&session, StreamKind::General).await;
        let (mut one, mut two) = (first.read(), second.read());
        assert!(log.say(&session, "1").await);
        assert_eq!(
            (ready(&mut one).0.len(), data(&ready(&mut two).0)),
            (0, vec!["1"])
        );
        drop(two);
        assert!(log.say(&session, "2").await);
        assert_eq!(data(&ready(&mut one).0), ["2"]);
    }
);

fact!(what_is_said_while_nobody_listens_waits, |log, _metrics| {
    let session = session();
    log.open(&session, StreamKind::General).await;
    let newest = log
        .0
        .open(&session, StreamKind::General, true)
        .await
        .expect("works");
    let id = super::seen(&newest.read().next().await.expect("the priming event")).id;
    assert!(log.say(&session, "1").await);
    assert!(log.say(&session, "2").await);
    assert_eq!(data(&log.after(&session, &id).await.0), ["1", "2"]);
});

fact!(
    ids_of_others_and_ids_of_nobody_are_refused,
    |log, _metrics| {
        let (mine, other) = (session(), session());
        let stream = log.open(&mine, StreamKind::General).await;
        let mut reader = stream.read();
        log.put(&mine, &stream, "1").await;
        let id = ready(&mut reader).0.remove(0).id;
        for malformed in ["", "x", "1", "1-", "-1", "1-1-1", "é-1", "1-1\n", " 1-1"] {
            let refused = log.0.resume(&mine, malformed).await;
            assert!(
                matches!(refused, Err(ResumeError::Malformed)),
                "{malformed}"
            );
        }
        let refused = log.0.resume(&other, &id).await;
        assert!(
            matches!(refused, Err(ResumeError::Unknown)),
            "another session's"
        );
        let (number, sequence) = id.split_once('-').expect("two parts");
        let later: u64 = sequence.parse::<u64>().expect("a number") + 1;
        for unknown in [
            format!("{number}-{later}"),
            format!("9{number}-{sequence}"),
            "0-0".into(),
        ] {
            let refused = log.0.resume(&mine, &unknown).await;
            assert!(matches!(refused, Err(ResumeError::Unknown)), "{unknown}");
        }
        // The refused client did not disturb the reader.
        log.put(&mine, &stream, "2").await;
        assert_eq!(data(&ready(&mut reader).0), ["2"]);
    }
);

fact!(
    what_is_older_than_the_window_is_left_out_and_counted,
    3,
    1 << 20,
    |log, metrics| {
        let session = session();
        let stream = log.open(&session, StreamKind::General).await;
        let mut reader = stream.read();
        log.put(&session, &stream, "0").await;
        let id = ready(&mut reader).0.remove(0).id;
        drop(reader);
        for number in 1..=3 {
            log.put(&session, &stream, &number.to_string()).await;
        }
        assert_eq!(data(&log.after(&session, &id).await.0), ["1", "2", "3"]);
        assert_eq!(metrics.window_misses.get(), 0);
        log.put(&session, &stream, "4").await;
        assert_eq!(data(&log.after(&session, &id).await.0), ["2", "3", "4"]);
        assert_eq!(metrics.window_misses.get(), 1);
    }
);

fact!(
    a_slow_reader_ends_and_its_log_stays,
    4,
    1 << 20,
    |log, metrics| {
        let session = session();
        let stream = log.open(&session, StreamKind::General).await;
        let mut reader = stream.read();
        log.put(&session, &stream, "0").await;
        let id = ready(&mut reader).0.remove(0).id;
        // Unread: as many events as the window takes, and the newest one.
        for number in 1..=5 {
            log.put(&session, &stream, &number.to_string()).await;
        }
        assert_eq!(metrics.slow_readers.get(), 0);
        log.put(&session, &stream, "6").await;
        assert_eq!(ready(&mut reader), (vec![], true));
        assert_eq!(metrics.slow_readers.get(), 1);
        assert_eq!(
            data(&log.after(&session, &id).await.0),
            ["3", "4", "5", "6"]
        );
        // After the slow reader is gone, the next message has no reader and is still kept.
        drop(reader);
        assert!(log.say(&session, "7").await);
        assert_eq!(
            data(&log.after(&session, &id).await.0),
            ["4", "5", "6", "7"]
        );
    }
);

fact!(a_second_reader_takes_the_stream_over, |log, _metrics| {
    let session = session();
    let stream = log.open(&session, StreamKind::General).await;
    let mut first = stream.read();
    log.put(&session, &stream, "1").await;
    let id = ready(&mut first).0.remove(0).id;
    log.put(&session, &stream, "2").await;
    let mut second = log.resume(&session, &id).await;
    assert_eq!(ready(&mut first), (vec![], true));
    log.put(&session, &stream, "3").await;
    drop(first);
    log.put(&session, &stream, "4").await;
    assert_eq!(data(&ready(&mut second).0), ["2", "3", "4"]);
    assert!(session.streams().any_read());
    drop(second);
    assert!(!session.streams().any_read());
});

fact!(
    a_finished_stream_is_read_to_its_end_as_often_as_wanted,
    |log, _metrics| {
        let session = session();
        let stream = log
            .0
            .open(&session, StreamKind::Request, true)
            .await
            .expect("works");
        let mut reader = stream.read();
        log.put(&session, &stream, "1").await;
        stream.finish();
        log.put(&session, &stream, "too late").await;
        let (read, over) = ready(&mut reader);
        assert_eq!((data(&read), over), (vec!["", "1"], true));
        for _ in 0..2 {
            let (again, over) = log.after(&session, &read[0].id).await;
            assert_eq!((data(&again), over), (vec!["1"], true));
            assert_eq!(log.after(&session, &read[1].id).await, (vec![], true));
        }
    }
);

fact!(so_many_finished_streams_are_kept, |log, metrics| {
    let session = session();
    let mut ids = Vec::new();
    for _ in 0..40 {
        let stream = log.open(&session, StreamKind::Request).await;
        log.put(&session, &stream, "1").await;
        log.put(&session, &stream, "2").await;
        let mut reader = stream.read();
        ids.push(ready(&mut reader).0.remove(0).id);
        stream.finish();
    }
    let running = log.open(&session, StreamKind::Request).await;
    let mut left = 0;
    for id in &ids {
        let (read, over) = log.after(&session, id).await;
        assert!(over);
        left += read.len();
    }
    assert_eq!(left, 32, "the newest 32 finished ones");
    assert_eq!(metrics.window_misses.get(), 8);
    assert!(!running.is_over());
});

fact!(a_closed_session_has_nothing_left, |log, _metrics| {
    let session = session();
    let stream = log.open(&session, StreamKind::General).await;
    let mut reader = stream.read();
    log.put(&session, &stream, "1").await;
    let id = ready(&mut reader).0.remove(0).id;
    session.close();
    log.0.forget(session.id()).await.expect("works");
    assert_eq!(ready(&mut reader), (vec![], true));
    assert!(!log.say(&session, "2").await);
    let (nothing, over) = log.after(&session, &id).await;
    assert_eq!((nothing, over), (vec![], true));
});

fact!(
    a_stream_of_http_sse_has_no_ids_and_keeps_nothing,
    |log, _metrics| {
        let session = session();
        let stream = log.open(&session, StreamKind::Sse).await;
        let mut reader = stream.read();
        log.put(&session, &stream, "1").await;
        assert!(log.say(&session, "2").await);
        let reached = log.0.broadcast(&[&session], b"3").await;
        assert_eq!(reached, 1);
        let read = ready(&mut reader).0;
        assert_eq!(data(&read), ["1", "2", "3"]);
        assert!(read.iter().all(|seen| seen.id.is_empty()));
        drop(reader);
        assert!(stream.is_over());
        let refused = log.0.resume(&session, "0-1").await;
        assert!(matches!(refused, Err(ResumeError::Unknown)));
    }
);

fact!(a_broadcast_reaches_each_session_once, |log, _metrics| {
    let sessions = [session(), session(), session()];
    let mut readers = Vec::new();
    for (session, streams) in sessions.iter().zip([1, 3, 0]) {
        let mut own = Vec::new();
        for _ in 0..streams {
            own.push(log.open(session, StreamKind::General).await.read());
        }
        readers.push(own);
    }
    let owners: Vec<&dyn StreamOwner> = sessions.iter().map(|session| session as _).collect();
    let reached = log.0.broadcast(&owners, b"{\n}").await;
    assert_eq!(reached, 2);
    let counts = readers.iter_mut().map(|own| {
        let read = own.iter_mut().flat_map(|reader| ready(reader).0);
        read.map(|seen| seen.data).collect::<Vec<_>>()
    });
    assert_eq!(
        counts.collect::<Vec<_>>(),
        [vec!["{ }"], vec!["{ }"], vec![]]
    );
});

fact!(
    a_general_stream_that_was_forgotten_goes_on_empty,
    |log, metrics| {
        let session = session();
        let stream = log.open(&session, StreamKind::General).await;
        log.put(&session, &stream, "1").await;
        let id = ready(&mut stream.read()).0.remove(0).id;
        for _ in 0..40 {
            log.open(&session, StreamKind::General).await;
        }
        assert!(session.streams().len() <= 34);
        let mut reader = log.resume(&session, &id).await;
        assert_eq!(metrics.window_misses.get(), 1);
        assert!(log.say(&session, "2").await);
        assert_eq!(data(&ready(&mut reader).0), ["2"]);
    }
);

pub(super) async fn who_fills_the_log_pushes_out_only_what_is_its_own(
    make: impl Fn(EventLogConfig) -> Made,
) {
    let made = make(EventLogConfig {
        total: bytesize::ByteSize::kib(64),
        ..limits(16, 4096)
    });
    let log = Log(made.log, made.heir);
    let quiet = session_of(Some("quiet"));
    let kept = log.open(&quiet, StreamKind::Request).await;
    log.put(&quiet, &kept, "kept").await;
    let message = "x".repeat(1000);
    // More sessions than there is room for, each within its own bound, all newer than the kept events.
    let mut noisy = Vec::new();
    for number in 0..100 {
        let session = session_of(Some("noisy"));
        let stream = log.open(&session, StreamKind::General).await;
        log.put(&session, &stream, &format!("{number} {message}"))
            .await;
        noisy.push((session, stream));
    }
    let id = |stream: &Stream| format!("{}-0", stream.number());
    assert_eq!(data(&log.after(&quiet, &id(&kept)).await.0), ["kept"]);
    let (first, stream) = &noisy[0];
    assert!(log.after(first, &id(stream)).await.0.is_empty());
    let (last, stream) = &noisy[99];
    assert_eq!(log.after(last, &id(stream)).await.0.len(), 1);
}
