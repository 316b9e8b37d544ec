//! The time since which a process's client is away.

use tooldock_protocol::jsonrpc::RawId;
use tooldock_protocol::version::ProtocolVersion;
use tooldock_sessions::session::config::EventLogConfig;
use tooldock_sessions::session::{Binding, SessionId, SessionTransport};
use tooldock_sessions::stream::{EventLog, KeepAlive, StreamMetrics, StreamReaders as _};

use super::*;

fn session() -> Arc<Session> {
    let binding = Binding {
        namespace: "shared".parse().expect("a name"),
        principal: None,
        version: ProtocolVersion::V2025_11_25,
        transport: SessionTransport::Streamable,
    };
    Arc::new(Session::new(SessionId::random(), binding, Instant::now()))
}

fn handler(scope: ProcessOwner) -> Arc<InboundHandler> {
    let log: Arc<EventLog> = Arc::new(EventLog::new(
        EventLogConfig::default(),
        KeepAlive::new(Duration::from_secs(15)),
        StreamMetrics::unregistered(),
    ));
    let audience = Audience::new(Arc::clone(&log));
    let name = "shared".parse().expect("a name");
    InboundHandler::new(
        name,
        scope,
        HiddenValues::default(),
        audience,
        log,
        Duration::from_secs(600),
        SessionKey::from_text("a key"),
    )
}

#[tokio::test(start_paused = true)]
async fn a_client_is_away_without_request_stream_and_question() {
    let session = session();
    let handler = handler(ProcessOwner::Session(Arc::downgrade(&session)));
    let ears = HandlerRef(Arc::clone(&handler));
    let opened = Instant::now();
    let later = opened + Duration::from_secs(100);
    assert_eq!(ears.away_since(later), Some(opened));

    session.reader_came();
    assert_eq!(ears.away_since(later), None, "it listens");
    session.reader_left(opened + Duration::from_secs(7));
    let left = opened + Duration::from_secs(7);
    assert_eq!(ears.away_since(later), Some(left));

    let (call, _registration) = futures_util::future::AbortHandle::new_pair();
    let entry = tooldock_sessions::session::InFlightCalls::enter(
        &session,
        "1",
        call,
        Arc::new(tooldock_sessions::session::in_flight::NoNotice),
    );
    assert_eq!(ears.away_since(later), None, "it waits for an answer");
    drop(entry);

    let wait = tooldock_sessions::interaction::testing::Wait::new();
    let (question, _told) = tooldock_sessions::interaction::testing::round(&wait);
    handler.asked.note(RawId::new("1"), &question);
    session.touch(opened);
    assert_eq!(ears.away_since(later), None, "it is asked something");
    question.fail(ask_failed("no"));
    question.deliver();
    assert!(ears.away_since(later).is_some());
}

#[tokio::test]
async fn of_a_session_that_is_gone_and_of_a_single_call_nothing_is_known() {
    let later = Instant::now() + Duration::from_secs(100);
    let gone = ProcessOwner::Session(Arc::downgrade(&session()));
    for scope in [gone, ProcessOwner::Call] {
        assert_eq!(HandlerRef(handler(scope)).away_since(later), None);
    }
}
