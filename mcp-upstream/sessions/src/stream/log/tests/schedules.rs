//! Writes to a stored stream while its client resumes the stream, in many orders of the operations at the store.

use std::cell::RefCell;

use super::*;
use crate::testing::schedule::{Schedule, Task, some};

const MESSAGES: [&str; 3] = ["1", "2", "3"];

/// Runs one task to its end and returns its result.
fn alone<T>(schedule: &mut Schedule, task: impl Future<Output = T>) -> T {
    let result = RefCell::new(None);
    schedule.run(vec![Box::pin(async {
        result.replace(Some(task.await));
    })]);
    result.take().expect("it has ended")
}

/// Resumes a stream and adds its events to `read`, until there are as many as [`MESSAGES`] or the stream ends.
async fn read_behind(log: &EventLog, session: &Arc<Session>, id: &str, read: &RefCell<Vec<Seen>>) {
    let mut reader = log.resume(session, id).await.expect("the event is known");
    while read.borrow().len() < MESSAGES.len() {
        match reader.next().await {
            Some(frame) => read.borrow_mut().push(seen(&frame)),
            None => return,
        }
    }
}

/// Runs two writers, a reader, and a second reader that takes the stream over. If `fails`, one write to the store fails. Checks
/// that each event is read once, and can be resumed from.
fn replayed_once(schedule: &mut Schedule, fails: bool) {
    let shadow = Arc::new(Shadow::default());
    let log = log(limits(256, 1 << 20)).0;
    let log = log.with_store(shadow.stores().events);
    let session = session();
    let stream = alone(schedule, log.open(&session, StreamKind::General, true));
    let stream = stream.expect("memory");
    let first = ready(&mut stream.read()).0.remove(0).id;

    let (left, taken) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let (begun, next) = (RefCell::new(false), tokio::sync::Notify::new());
    let tasks: Vec<Task<'_>> = vec![
        Box::pin(async { put(&log, &session, &stream, MESSAGES[0]).await }),
        Box::pin(async {
            put(&log, &session, &stream, MESSAGES[1]).await;
            put(&log, &session, &stream, MESSAGES[2]).await;
        }),
        Box::pin(async {
            let reading = read_behind(&log, &session, &first, &left);
            begun.replace(true);
            next.notify_one();
            reading.await;
        }),
        Box::pin(async {
            next.notified().await;
            read_behind(&log, &session, &first, &taken).await;
        }),
        Box::pin(async { shadow.fail(usize::from(fails)) }),
    ];
    // The run panics if a task waits for ever: the reader that attaches last must get all events, whichever reader that is.
    schedule.run(tasks);
    assert!(begun.take());

    let (left, taken) = (left.take(), taken.take());
    let (all, part) = match left.len() == MESSAGES.len() {
        true => (&left, &taken),
        false => (&taken, &left),
    };
    let mut sorted = data(all);
    sorted.sort_unstable();
    assert_eq!(sorted, MESSAGES, "an event is lost or comes twice");
    assert_eq!(
        part[..],
        all[..part.len()],
        "readers get the same events in one order"
    );
    assert!(
        sorted_after(data(all), "2", "3"),
        "a writer's order is kept"
    );
    // A client may resume after any event: at this process, and also at another process if every write was stored.
    let other = log_over(limits(256, 1 << 20), &StreamMetrics::unregistered());
    let other = other.with_store(shadow.stores().events);
    let there = as_adopted(&session);
    for (at, event) in all.iter().enumerate() {
        let mut here = alone(schedule, log.resume(&session, &event.id)).expect("known");
        assert_eq!(ready(&mut here).0, all[at + 1..]);
        if !fails {
            let mut moved = alone(schedule, other.resume(&there, &event.id)).expect("known");
            assert_eq!(ready(&mut moved).0, all[at + 1..]);
        }
    }
}

fn sorted_after(all: Vec<&str>, before: &str, after: &str) -> bool {
    let at = |wanted: &str| all.iter().position(|it| *it == wanted);
    at(before) < at(after)
}

#[test]
fn in_many_orders_each_event_is_read_once_and_resumed_from() {
    some(1_000, |schedule| replayed_once(schedule, false));
}

#[test]
fn in_many_orders_a_write_that_fails_loses_no_event_for_clients_of_the_process() {
    some(500, |schedule| replayed_once(schedule, true));
}
