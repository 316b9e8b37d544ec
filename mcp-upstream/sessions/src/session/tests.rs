use serde_json::value::RawValue;

use super::*;
use crate::stream::StreamReaders;

pub(crate) fn session() -> Arc<Session> {
    let binding = Binding {
        namespace: "shared".parse().expect("a name"),
        principal: None,
        version: ProtocolVersion::V2025_11_25,
        transport: SessionTransport::Streamable,
    };
    let id = SessionId::random();
    Arc::new(Session::new(id, binding, Instant::now()))
}

/// A client with these capabilities.
pub(crate) fn facts(capabilities: &str) -> ClientFacts {
    let capabilities = RawValue::from_string(capabilities.to_owned()).expect("JSON");
    ClientFacts {
        capabilities: capabilities.into(),
        info: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_that_arrives_while_waiting_is_seen() {
    let session = session();
    let waiting = tokio::spawn({
        let session = Arc::clone(&session);
        async move { session.confirmed_within(Duration::from_secs(1)).await }
    });
    tokio::task::yield_now().await;
    session.confirm();
    assert!(waiting.await.expect("not cancelled"));
    assert_eq!(session.state(), SessionState::Ready);
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_after_its_patience_or_with_the_session() {
    let session = session();
    let start = Instant::now();
    assert!(!session.confirmed_within(Duration::from_secs(1)).await);
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    session.close();
    session.confirm();
    assert!(!session.confirmed_within(Duration::from_secs(1)).await);
    assert_eq!(session.state(), SessionState::Closed);
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

#[test]
fn debug_output_does_not_hold_the_id() {
    let session = session();
    assert!(!format!("{session:?} {:?}", session.id()).contains(session.id().as_str()));
}

#[tokio::test]
async fn closing_ends_everything_a_session_has() {
    let session = session();
    let (_keep_alive, log, audience) = crate::testing::audience();
    let opened = log
        .open(&session, crate::stream::StreamKind::General, true)
        .await;
    let mut events = opened.expect("memory").read();
    audience.join(&session);
    session.subscriptions().add("test://a").expect("the first");
    let wait = crate::interaction::testing::Wait::new();
    let (question, _told) = crate::interaction::testing::round(&wait);
    session.ask(&question).expect("a request");
    let (call, _registration) = futures_util::future::AbortHandle::new_pair();
    let _entry = InFlightCalls::enter(&session, "1", call.clone(), Arc::new(in_flight::NoNotice));
    session.close();
    assert_eq!(events.next().await, None);
    assert!(!question.is_open());
    assert!(call.is_aborted());
    assert!(!session.is_registered());
    assert!(!session.subscriptions().contains("test://a"));
    assert_eq!(session.streams().len(), 0);
}

#[test]
fn a_session_is_used_while_one_of_its_streams_is_read() {
    let session = session();
    let opened = Instant::now();
    let later = opened + Duration::from_secs(1000);
    let idle = |session: &Session| session.idle_for(Duration::from_secs(100), later);
    assert!(idle(&session));
    session.reader_came();
    session.reader_came();
    assert!(!idle(&session));
    session.reader_left(opened);
    assert!(!idle(&session));
    session.reader_left(later);
    assert_eq!(session.used_at(later + Duration::from_secs(1)), later);
    assert!(!idle(&session));
}

#[test]
fn what_a_client_said_first_about_itself_holds() {
    let session = session();
    assert_eq!(session.client().capabilities.get(), "{}");
    let long = format!("\"{}\"", "x".repeat(client::CLIENT_FACTS_MAX));
    assert_eq!(
        session.set_client(facts(&long)),
        Err(client::ClientFactsTooLong)
    );
    session
        .set_client(facts(r#"{"sampling":{}}"#))
        .expect("short");
    session.set_client(facts("{}")).expect("short");
    assert_eq!(session.client().capabilities.get(), r#"{"sampling":{}}"#);
}

#[test]
fn version_and_log_level_are_those_that_were_settled_last() {
    let session = session();
    assert_eq!(session.version(), ProtocolVersion::V2025_11_25);
    let initialize = |version| SessionPatch::Initialize {
        version,
        client: facts("{}"),
    };
    assert!(session.change(initialize(ProtocolVersion::V2024_11_05)));
    let again = session.apply(&initialize(ProtocolVersion::V2025_06_18));
    assert_eq!(again, Err(PatchRefused::Initialized));
    assert_eq!(session.version(), ProtocolVersion::V2024_11_05);
    assert_eq!(session.log_level(), LogLevel::Info);
    for level in LogLevel::ALL {
        session.change(SessionPatch::LogLevel(level));
        assert_eq!(session.log_level(), level);
    }
}
