use std::time::Duration;

use futures_util::FutureExt;

use super::*;
use crate::session::Session;

const KEEPALIVE: Duration = Duration::from_secs(15);

fn keep_alive() -> (Arc<KeepAlive>, Arc<StreamMetrics>) {
    let metrics = StreamMetrics::unregistered();
    (
        KeepAlive::measured(KEEPALIVE, Arc::clone(&metrics)),
        metrics,
    )
}

fn chunk(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// The chunks that can be read without waiting; the last element is `None` when the stream ended.
fn ready(subscription: &mut Subscription) -> Vec<Option<Bytes>> {
    let mut read = Vec::new();
    while let Some(next) = subscription.next().now_or_never() {
        let end = next.is_none();
        read.push(next);
        if end {
            break;
        }
    }
    read
}

#[tokio::test]
async fn events_are_read_in_order_and_then_the_end() {
    let (keep_alive, _) = keep_alive();
    let stream = Stream::detached(&keep_alive);
    assert!(stream.push(chunk("1")));
    let mut events = stream.read();
    assert!(stream.push(chunk("2")));
    assert_eq!(ready(&mut events), [Some(chunk("1")), Some(chunk("2"))]);
    let waiting = tokio::spawn(async move { (events.next().await, events.next().await) });
    tokio::task::yield_now().await;
    assert!(stream.push(chunk("3")));
    stream.finish();
    assert!(!stream.push(chunk("4")));
    assert!(stream.is_over());
    assert_eq!(waiting.await.expect("no panic"), (Some(chunk("3")), None));
}

#[tokio::test]
async fn a_passing_stream_is_over_when_its_reader_leaves() {
    let (keep_alive, metrics) = keep_alive();
    let stream = Stream::detached(&keep_alive);
    assert!(stream.reader_gone().now_or_never().is_none());
    let events = stream.read();
    assert_eq!(metrics.open(Role::Answer).get(), 1);
    let gone = tokio::spawn({
        let stream = Arc::clone(&stream);
        async move { stream.reader_gone().await }
    });
    tokio::task::yield_now().await;
    assert!(!gone.is_finished());
    drop(events);
    gone.await.expect("no panic");
    assert!(stream.reader_gone().now_or_never().is_some());
    assert!(!stream.push(chunk("1")));
    assert_eq!(metrics.open(Role::Answer).get(), 0);
}

#[tokio::test]
async fn a_reader_that_leaves_too_much_unread_is_ended() {
    let (keep_alive, metrics) = keep_alive();
    let stream = Stream::detached(&keep_alive);
    let mut events = stream.read();
    for _ in 0..=PASSING.events {
        assert!(stream.push(chunk("x")));
    }
    assert!(!stream.push(chunk("x")));
    assert_eq!(ready(&mut events), [None]);
    assert!(stream.reader_gone().now_or_never().is_some());
    assert_eq!(metrics.slow_readers.get(), 1);

    let stream = Stream::detached(&keep_alive);
    let mut events = stream.read();
    let large = Bytes::from(vec![b'x'; PASSING.bytes + 1]);
    assert!(stream.push(large.clone()), "the newest may be of any size");
    assert_eq!(ready(&mut events).len(), 1);
    assert!(stream.push(large.clone()));
    assert!(!stream.push(large));
}

#[tokio::test]
async fn passing_streams_have_a_total_that_spares_readers_who_keep_up() {
    let (keep_alive, metrics) = keep_alive();
    keep_alive.bound_passing(9 * PASSING_SPARED);
    // Including the overhead of an event besides its bytes.
    let half = Bytes::from(vec![b'x'; PASSING_SPARED / 2 - 64]);
    let stream = |()| {
        let stream = Stream::detached(&keep_alive);
        let reader = stream.read();
        (stream, reader)
    };
    let (all, mut readers): (Vec<_>, Vec<_>) = [(); 4].map(stream).into_iter().unzip();
    let mut rounds = 0;
    while all[0].push(half.clone()) {
        rounds += 1;
        assert!(rounds < 100, "there is no total");
        for other in &all[1..3] {
            other.push(half.clone());
        }
    }
    assert_eq!(rounds, 6, "three hold 18 halves, which is all");
    assert_eq!(ready(&mut readers[0]), [None]);
    assert_eq!(metrics.slow_readers.get(), 1);
    // The bytes that one stream freed are room for another.
    assert!(all[1].push(half.clone()));
    keep_alive.bound_passing(0);
    assert!(all[3].push(half.clone()), "a little is spared");
    assert_eq!(ready(&mut readers[3]), [Some(half.clone())]);
    assert!(all[3].push(half.clone()), "and again once it was read");
    assert!(all[3].push(half.clone()));
    assert!(!all[3].push(half));
    assert!(keep_alive.passing_bytes() > 0);
    drop((readers, all));
    assert_eq!(keep_alive.passing_bytes(), 0);
    let unread = Stream::detached(&keep_alive);
    assert!(unread.push(chunk("x")));
    drop(unread);
    assert_eq!(keep_alive.passing_bytes(), 0);
}

#[tokio::test]
async fn a_second_reader_takes_over_where_the_first_one_was() {
    let (keep_alive, metrics) = keep_alive();
    let stream = Stream::detached(&keep_alive);
    let mut first = stream.read();
    stream.push(chunk("1"));
    stream.push(chunk("2"));
    assert_eq!(first.next().await, Some(chunk("1")));
    let mut second = stream.read();
    assert_eq!(ready(&mut first), [None]);
    drop(first);
    assert_eq!(metrics.open(Role::Answer).get(), 1);
    assert_eq!(ready(&mut second), [Some(chunk("2"))]);
    assert!(
        stream.push(chunk("3")),
        "the leaving of the first is not that of the second"
    );
    let replaced = tokio::spawn(async move { (second.next().await, second.next().await) });
    tokio::task::yield_now().await;
    let _third = stream.read();
    assert_eq!(replaced.await.expect("no panic"), (Some(chunk("3")), None));
}

#[tokio::test(start_paused = true)]
async fn an_idle_stream_carries_one_comment_per_keepalive() {
    let (keep_alive, _) = keep_alive();
    let beating = tokio::spawn({
        let keep_alive = Arc::clone(&keep_alive);
        async move { keep_alive.run().await }
    });
    let stream = Stream::detached(&keep_alive);
    let mut events = stream.read();
    let start = Instant::now();
    let mut before = start;
    for number in 0..20 {
        assert_eq!(events.next().await, Some(Bytes::from_static(frame::PING)));
        let silence = before.elapsed();
        assert!(silence <= KEEPALIVE, "{silence:?}");
        assert!(number == 0 || silence >= KEEPALIVE * 9 / 10, "{silence:?}");
        before = Instant::now();
    }
    beating.abort();
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_wrote_carries_no_comment_right_after() {
    let (keep_alive, _) = keep_alive();
    let beating = tokio::spawn({
        let keep_alive = Arc::clone(&keep_alive);
        async move { keep_alive.run().await }
    });
    let streams: Vec<_> = (0..64).map(|_| Stream::detached(&keep_alive)).collect();
    let mut readers: Vec<_> = streams.iter().map(|stream| stream.read()).collect();
    // Busier than the timer, so no comment is needed.
    for _ in 0..200 {
        tokio::time::sleep(KEEPALIVE / 40).await;
        for (stream, reader) in streams.iter().zip(&mut readers) {
            stream.push(chunk("x"));
            assert_eq!(ready(reader), [Some(chunk("x"))]);
        }
    }
    // Afterwards none of them is silent for longer than allowed.
    let last = Instant::now();
    for reader in &mut readers {
        assert_eq!(reader.next().await, Some(Bytes::from_static(frame::PING)));
    }
    let silence = last.elapsed();
    assert!(silence <= KEEPALIVE, "{silence:?}");
    beating.abort();
}

#[tokio::test]
async fn ending_all_spares_answers_and_takes_listeners_with_their_farewell() {
    let (keep_alive, _) = keep_alive();
    let answer = Stream::detached(&keep_alive);
    let mut answered = answer.read();
    let listener = Stream::detached(&keep_alive);
    let mut listening = listener.read();
    listener.listen(chunk("bye"));
    listener.push(chunk("1"));
    let (early, late) = (Stream::detached(&keep_alive), Stream::detached(&keep_alive));
    let mut early_reader = early.read();
    keep_alive.end_all();
    assert!(keep_alive.has_ended());
    listener.push(chunk("2"));
    assert_eq!(
        ready(&mut listening),
        [Some(chunk("1")), Some(chunk("2")), Some(chunk("bye")), None]
    );
    // Made listeners too late to be ended with the rest.
    early.listen(chunk("early"));
    assert_eq!(ready(&mut early_reader), [Some(chunk("early")), None]);
    late.listen(chunk("late"));
    assert_eq!(ready(&mut late.read()), [Some(chunk("late")), None]);
    answer.push(chunk("answer"));
    answer.finish();
    assert_eq!(ready(&mut answered), [Some(chunk("answer")), None]);
}

#[tokio::test]
async fn an_operator_ends_a_listener_with_its_farewell_also_while_its_reader_writes() {
    let (keep_alive, _) = keep_alive();
    let stream = Stream::listening(&keep_alive);
    stream.listen(chunk("farewell"));
    let mut listening = stream.read();
    assert!(stream.push(chunk("1")));
    // No reader waits at this moment.
    assert_eq!(listening.next().await, Some(chunk("1")));
    stream.end_for_operator();
    assert_eq!(ready(&mut listening), [Some(chunk("farewell")), None]);
}

#[tokio::test]
async fn streams_leave_the_keep_alive_timer_with_their_readers() {
    let (keep_alive, metrics) = keep_alive();
    let streams: Vec<_> = (0..100).map(|_| Stream::detached(&keep_alive)).collect();
    let readers: Vec<_> = streams.iter().map(|stream| stream.read()).collect();
    assert_eq!(keep_alive.len(), 100);
    assert_eq!(metrics.open(Role::Answer).get(), 100);
    drop(readers);
    assert_eq!(keep_alive.len(), 0);
    for stream in streams {
        assert_eq!(Arc::strong_count(&stream), 1);
    }
}

#[test]
fn an_idle_stream_and_its_session_are_small() {
    // The goal is 4 KiB with the proxy's task and the store's entries; these types must leave room for them.
    let stream = std::mem::size_of::<Stream>() + std::mem::size_of::<Subscription>();
    let session = std::mem::size_of::<Session>();
    assert!(stream <= 256, "{stream}");
    assert!(session <= 512, "{session}");
}

#[tokio::test(start_paused = true)]
async fn a_writer_waits_for_a_reader_that_is_behind_and_for_nobody_else() {
    let (keep_alive, _) = keep_alive();
    let stream = Stream::detached(&keep_alive);
    let patience = Duration::from_secs(5);
    for _ in 0..PASSING.events {
        assert!(stream.push(chunk("x")));
    }
    let start = Instant::now();
    stream.wait_for_reader(patience).await;
    let mut events = stream.read();
    let waiting = tokio::spawn({
        let stream = Arc::clone(&stream);
        async move { stream.wait_for_reader(patience).await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    while events.next().now_or_never().is_some() {}
    waiting.await.expect("no panic");
    assert_eq!(start.elapsed(), Duration::ZERO);
    for _ in 0..PASSING.events {
        assert!(stream.push(chunk("x")));
    }
    stream.wait_for_reader(patience).await;
    assert_eq!(start.elapsed(), patience, "this one does nothing");
    stream.wait_for_reader(patience).await;
    assert_eq!(start.elapsed(), patience, "and is not waited for again");
    let _another = stream.read();
    stream.wait_for_reader(patience).await;
    assert_eq!(start.elapsed(), 2 * patience, "another reader is");
}
