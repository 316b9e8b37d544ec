use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tooldock_sessions::caller::RelayPeer;
use tooldock_sessions::session::config::EventLogConfig;
use tooldock_sessions::session::table::{SessionTable, TableLimits};
use tooldock_sessions::stream::{EventLog, KeepAlive, StreamMetrics};
use tooldock_workers::aggregate::{
    ActivePatterns, AggregateOptions, AggregateSpec, Member, MemberKind,
};
use tooldock_workers::registry::AggregateMember;

use super::state::MemberReadiness;
use super::*;
use crate::metrics::UpstreamMetrics;

/// A kind of upstream that panics when its lists are read.
#[derive(Default)]
struct Panicking(AtomicUsize);

impl Upstream for Panicking {
    fn serves(&self, _: &Namespace) -> bool {
        true
    }

    fn tool_lists(&self) -> &dyn ToolLists {
        self
    }

    fn server_facts(&self) -> &dyn ServerFacts {
        self
    }

    fn prepare<'a>(
        &'a self,
        _: &'a CallContext<'a>,
        _: IncomingRequest<'a>,
    ) -> MaybeReady<'a, Result<PreparedRequest, RequestError>> {
        unreachable!("nobody gets so far")
    }

    fn call_tool(
        &self,
        _: &CallContext<'_>,
        _: &str,
        _: Bytes,
    ) -> Result<Arc<dyn UpstreamCall>, CallError> {
        unreachable!("nobody gets so far")
    }

    fn discover<'a>(
        &'a self,
        _: &'a CallContext<'a>,
        _: &'a str,
        _: &'a [&'a str],
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("a fault")
    }

    fn initialize<'a>(
        &'a self,
        _: &'a CallContext<'a>,
        _: &'a str,
        _: &'a Arc<Session>,
        _: ProtocolVersion,
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>> {
        unreachable!("nobody gets so far")
    }

    fn listen<'a>(
        &'a self,
        _: &'a CallContext<'a>,
        _: Filter,
    ) -> MaybeReady<'a, Result<GrantedSubscription, RequestError>> {
        unreachable!("nobody gets so far")
    }
}

impl ToolLists for Panicking {
    fn tools<'a>(
        &'a self,
        _: &'a Arc<Namespace>,
        _: Option<&'a Arc<str>>,
        _: ToolsWait,
    ) -> MaybeReady<'a, Result<Arc<ToolList>, CallError>> {
        unreachable!("nobody gets so far")
    }

    fn tools_known(&self, _: &Namespace) -> Option<Arc<ToolList>> {
        None
    }
}

impl ServerFacts for Panicking {
    fn gets_client_messages(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_task_panics_keeps_no_list_waiting_and_is_asked_again() {
    let faulty = Arc::new(Panicking::default());
    let kind: Arc<dyn Upstream> = Arc::clone(&faulty) as _;
    let registry = Arc::new(Registry::default());
    let name: NamespaceName = "calc".parse().unwrap();
    registry.swap(Snapshot {
        generation: 1,
        namespaces: [(
            name.clone(),
            Arc::new(tooldock_sessions::testing::namespace("calc")),
        )]
        .into(),
    });
    let (_keep_alive, _events, audience) = tooldock_sessions::testing::audience();
    let home = Home {
        registry,
        kinds: Arc::new(Kinds {
            servers: Arc::clone(&kind),
            workers: kind,
        }),
        aggregates: Weak::new(),
        audience,
        control: Handle::current(),
    };
    let spec = member(&name);
    let aggregate: NamespaceName = "all".parse().unwrap();
    let slot = MemberSlot::start(&home, &aggregate, AggregateMember::Served(name), &spec);
    slot.settled().await;
    assert!(matches!(slot.state(), MemberReadiness::Gone { .. }));
    while faulty.0.load(Ordering::Relaxed) < 2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn member(name: &NamespaceName) -> Member {
    Member {
        prefix: "a".into(),
        kind: MemberKind::Namespace(name.clone()),
        connect_timeout: Duration::from_secs(30),
        pin: None,
    }
}

fn aggregates(registry: &Arc<Registry>, audience: Arc<Audience>) -> AggregateUpstream {
    let metrics = UpstreamMetrics::new(&prometheus::Registry::new());
    let metrics = Arc::new(metrics.expect("a fresh registry"));
    let keep_alive = KeepAlive::new(Duration::from_secs(15));
    let config = EventLogConfig::default();
    let events = EventLog::new(config, keep_alive, StreamMetrics::unregistered());
    let limits = TableLimits {
        ttl: Duration::from_secs(60),
        unused_ttl: Duration::from_secs(60),
        max: 100,
        per_principal: 100,
        bytes: usize::MAX,
        bytes_per_principal: usize::MAX,
    };
    let key = SessionKey::from_text("a key");
    let table = SessionTable::new(
        limits,
        key.clone(),
        Arc::new(events),
        None,
        tooldock_sessions::replicas::Replicas::alone(),
    );
    let changes = SessionChanges::new(Arc::new(table), Arc::clone(&metrics));
    let kind: Arc<dyn Upstream> = Arc::new(Panicking::default());
    AggregateUpstream::new(
        Arc::clone(registry),
        (Arc::clone(&kind), kind),
        audience,
        changes,
        key,
        metrics.toolman.clone(),
        Handle::current(),
    )
}

/// The namespace `all`, an aggregate of `calc`.
fn aggregate_of_calc() -> Arc<Namespace> {
    let served: NamespaceName = "calc".parse().unwrap();
    let spec = AggregateSpec {
        file: "tools.toml".into(),
        members: vec![member(&served)],
        active: ActivePatterns::default(),
        options: AggregateOptions::default(),
    };
    let members = vec![AggregateMember::Served(served)];
    let aggregate = Arc::new(Aggregate { spec, members });
    Arc::new(Namespace {
        upstream: UpstreamKind::Aggregate(aggregate),
        ..tooldock_sessions::testing::namespace("all")
    })
}

#[tokio::test]
async fn the_toolset_of_a_caller_without_a_session_goes_to_a_handle_and_by_the_relay_nowhere() {
    let registry = Arc::new(Registry::default());
    let namespace = aggregate_of_calc();
    registry.swap(Snapshot {
        generation: 1,
        namespaces: [(namespace.name.clone(), Arc::clone(&namespace))].into(),
    });
    let (_keep_alive, _events, audience) = tooldock_sessions::testing::audience();
    let all = aggregates(&registry, audience);
    let body = Bytes::new();
    let keep_of = |caller: &Caller| {
        let cx = CallContext::plain(caller, &body, &namespace, &all);
        let asked = AggregateRequest::new(&all.0, &cx, None).expect("it is served");
        asked.active.keep.form()
    };
    assert_eq!(keep_of(&tooldock_sessions::testing::caller()), "handle");
    let peer = RelayPeer {
        uid: 0,
        gid: 0,
        pid: None,
        project: None,
    };
    let by_relay = Caller {
        relay: Some(Arc::new(peer)),
        ..tooldock_sessions::testing::caller()
    };
    assert_eq!(keep_of(&by_relay), "nowhere");
}

#[tokio::test]
async fn an_old_request_does_not_begin_an_aggregate_again_that_was_removed() {
    let registry = Arc::new(Registry::default());
    let namespace = aggregate_of_calc();
    registry.swap(Snapshot {
        generation: 1,
        namespaces: [(namespace.name.clone(), Arc::clone(&namespace))].into(),
    });
    let (_keep_alive, _events, audience) = tooldock_sessions::testing::audience();
    let AggregateUpstream(shared) = aggregates(&registry, audience);
    assert!(shared.of(&namespace).is_some());
    registry.swap(Snapshot {
        generation: 2,
        namespaces: [].into(),
    });
    shared.follow(&registry.snapshot());
    assert!(shared.of(&namespace).is_none());
    assert!(shared.live.lock().unwrap().is_empty());
}
