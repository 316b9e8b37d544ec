use tooldock_base::config::Limits;
use tooldock_base::error::CallErrorCode;
use tooldock_base::policy::ToolPolicy;
use tooldock_protocol::format::{ModernFormat, ResultFormat};
use tooldock_protocol::jsonrpc::ResponseOutcome;
use tooldock_protocol::version::{ProtocolVersion, ServerInfo};

use super::pages::{BYTES_MAX, CURSOR_MAX, PAGES_MAX};
use super::refresh::{CALLS_WAIT, FAILED};
use super::*;

const LEGACY: Era = Era::Legacy;

fn key(method: &str, cursor: Option<&str>) -> PageKey {
    PageKey::of(LEGACY, method, cursor).expect("a list")
}

fn tools(cursor: Option<&str>) -> PageKey {
    key(TOOLS_LIST, cursor)
}

/// A page with one tool, and a cursor for the next page if given.
fn page(tool: &str, next: Option<&str>) -> Bytes {
    let next = next.map_or_else(String::new, |next| format!(r#","nextCursor":"{next}""#));
    format!(r#"{{"tools":[{{"name":"{tool}","inputSchema":{{"type":"object"}}}}]{next}}}"#).into()
}

fn names(list: &ToolList) -> Vec<&str> {
    list.entries().iter().map(ToolEntry::name).collect()
}

/// A connection that lists these pages; the cursor on a page is the index of the next one.
struct Paged {
    opening: &'static str,
    pages: Vec<Bytes>,
}

#[async_trait::async_trait]
impl PageSource for Paged {
    fn server(&self) -> ServerInfo {
        ServerInfo::Legacy(Bytes::from_static(self.opening.as_bytes()))
    }

    async fn page(
        &self,
        _: &'static str,
        params: &serde_json::value::RawValue,
    ) -> Result<ResponseOutcome, CallError> {
        let params: serde_json::Value = serde_json::from_str(params.get()).expect("JSON");
        let cursor = &params["cursor"];
        let number = cursor.as_str().and_then(|it| it.parse().ok());
        let number = number.or(cursor.as_u64()).unwrap_or(0);
        let page = self.pages.get(usize::try_from(number).expect("few"));
        Ok(match page {
            Some(page) => ResponseOutcome::Result(page.clone()),
            None => ResponseOutcome::Error(Bytes::from_static(b"{}")),
        })
    }
}

/// A server with two pages that announces changes.
fn paged() -> Paged {
    Paged {
        opening: r#"{"capabilities":{"tools":{"listChanged":true}}}"#,
        pages: vec![page("a", Some("1")), page("b", None)],
    }
}

async fn read(catalogue: &Catalogue, source: &Paged) -> ReadingOutcome {
    let name = "ns".parse().expect("a name");
    catalogue.read(&name, source).await
}

fn failed() -> CallError {
    CallError::new(CallErrorCode::InternalError, "no")
}

#[test]
fn the_last_good_page_is_there_and_nothing_else() {
    let catalogue = Catalogue::default();
    let (old, new) = (Bytes::from("{\"a\":1}"), Bytes::from("{\"a\":2}"));
    catalogue.remember(key("prompts/list", None), &old);
    catalogue.remember(key("prompts/list", None), &new);
    catalogue.remember(key("prompts/list", Some("2")), &old);
    let recall = |cursor| catalogue.recall(&key("prompts/list", cursor));
    assert_eq!(recall(None), Some(new));
    assert_eq!(recall(Some("2")), Some(old));
    assert_eq!(recall(Some("3")), None);
    let modern = PageKey::of(Era::Modern, "prompts/list", None).expect("a list");
    assert_eq!(catalogue.recall(&modern), None);
    assert_eq!(PageKey::of(LEGACY, "prompts/get", None), None);
}

#[test]
fn a_call_is_repeatable_only_where_the_tool_says_so() {
    let catalogue = Catalogue::default();
    let result = Bytes::from_static(
        br#"{"tools":[
        {"name":"read","annotations":{"readOnlyHint":true}},
        {"name":"put","annotations":{"idempotentHint":true,"readOnlyHint":false}},
        {"name":"add","annotations":{"title":"Add"}},
        {"name":"pay"}
    ]}"#,
    );
    let repeatable = |tool| catalogue.is_repeatable("tools/call", Some(tool));
    assert!(!repeatable("read"));
    catalogue.remember(tools(None), &result);
    assert_eq!(
        ["read", "put", "add", "pay", "new"].map(repeatable),
        [true, true, false, false, false]
    );
    catalogue.changed();
    assert!(!repeatable("read"));
    catalogue.remember(tools(None), &result);
    assert!(repeatable("read"));
    assert!(catalogue.is_repeatable("resources/read", None));
    assert!(!catalogue.is_repeatable("tools/call", None));
    assert!(!catalogue.is_repeatable("x/unknown", None));
}

#[tokio::test]
async fn tools_that_were_read_are_current_until_they_may_be_others() {
    let catalogue = Catalogue::default();
    let announced = catalogue.announced();
    catalogue.changed();
    assert!(announced.has_changed().expect("the sender is there"));
    let version = catalogue.version();
    let list = read(&catalogue, &paged()).await.expect("read");
    assert_eq!((list.version(), names(&list)), (version, vec!["a", "b"]));
    assert!(Arc::ptr_eq(&list, &catalogue.current().expect("read")));
    assert_eq!(
        catalogue.recall(&tools(Some("\"1\""))),
        Some(page("b", None))
    );
    // An equal list changes nothing; a different list does.
    catalogue.remember(tools(None), &page("a", Some("1")));
    assert_eq!(catalogue.version(), version);
    catalogue.remember(tools(None), &page("c", Some("1")));
    assert!(catalogue.version() > version && catalogue.current().is_none());
    // The known tools serve while the server cannot be asked.
    assert_eq!(names(&catalogue.known().expect("known")), ["a", "b"]);
    // A page that followed another first page is gone.
    assert_eq!(catalogue.recall(&tools(Some("\"1\""))), None);
}

#[tokio::test]
async fn what_was_read_before_a_change_is_known_but_not_current() {
    struct Changes<'a>(&'a Catalogue, Paged);
    #[async_trait::async_trait]
    impl PageSource for Changes<'_> {
        fn server(&self) -> ServerInfo {
            self.1.server()
        }

        async fn page(
            &self,
            method: &'static str,
            params: &serde_json::value::RawValue,
        ) -> Result<ResponseOutcome, CallError> {
            self.0.changed();
            self.1.page(method, params).await
        }
    }
    let catalogue = Catalogue::default();
    let name = "ns".parse().expect("a name");
    let source = Changes(&catalogue, paged());
    let list = catalogue.read(&name, &source).await.expect("read");
    assert!(list.version() < catalogue.version());
    assert!(catalogue.current().is_none());
    assert!(Arc::ptr_eq(&list, &catalogue.known().expect("known")));
    assert_eq!(catalogue.recall(&tools(None)), None);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_current_for_its_time_which_is_longer_where_changes_are_announced() {
    let silent = Paged {
        opening: "{}",
        ..paged()
    };
    for (source, fresh) in [(silent, FRESH), (paged(), FRESH_IF_ANNOUNCED)] {
        let catalogue = Catalogue::default();
        read(&catalogue, &source).await.expect("read");
        let second = Duration::from_secs(1);
        tokio::time::advance(fresh - second).await;
        assert!(catalogue.current().is_some());
        tokio::time::advance(second).await;
        assert!(catalogue.current().is_none());
    }
}

#[tokio::test]
async fn a_server_that_refuses_or_has_no_end_of_pages_is_read_as_far_as_it_goes() {
    let catalogue = Catalogue::default();
    let refuses = Paged {
        pages: vec![page("a", Some("7"))],
        ..paged()
    };
    let refused = read(&catalogue, &refuses).await.expect_err("refused");
    assert!(refused.message.contains("does not list its tools"));
    assert!(catalogue.known().is_none());
    let endless = Paged {
        pages: (0..150)
            .map(|at| page(&format!("t{at}"), Some(&(at + 1).to_string())))
            .collect(),
        ..paged()
    };
    let list = read(&catalogue, &endless).await.expect("read");
    assert_eq!(list.entries().len(), 100);
    // A repeated cursor ends the reading, at once or later.
    for pages in [
        vec![page("a", Some("0"))],
        vec![page("a", Some("1")), page("b", Some("0"))],
    ] {
        let count = pages.len();
        let circle = Paged { pages, ..paged() };
        let list = read(&catalogue, &circle).await.expect("read");
        assert_eq!(list.entries().len(), count);
    }
}

#[tokio::test]
async fn careless_pages_are_mended_on_every_way() {
    let first = Bytes::from_static(
        br##"{"tools":[{"name":"a","title":null},{"name":"b","inputSchema":{"$ref":"#/$defs/B"}}],"nextCursor":1}"##,
    );
    let second = Bytes::from_static(
        br#"{"tools":[{"name":"a"},{"name":"c","inputSchema":{"type":["object","null"]}}],"nextCursor":null}"#,
    );
    let source = Paged {
        pages: vec![first.clone(), second.clone()],
        ..paged()
    };
    let shown = [
        r##"{"tools":[{"name":"a","inputSchema":{"type":"object"}},{"name":"b","inputSchema":{"$ref":"#/$defs/B","type":"object"}}],"nextCursor":"tooldock:cursor:1"}"##,
        r#"{"tools":[{"name":"c","inputSchema":{"type":"object"}}]}"#,
    ];
    let read_by_gateway = Catalogue::default();
    let list = read(&read_by_gateway, &source).await.expect("read");
    assert_eq!(names(&list), ["a", "b", "c"]);
    let asked_by_client = Catalogue::default();
    let name = "ns".parse().expect("a name");
    for (at, page) in [first, second].into_iter().enumerate() {
        let key = tools((at == 1).then_some("1"));
        let kept = read_by_gateway.recall(&key).expect("kept");
        assert_eq!(kept, shown[at]);
        let list = (ListKind::Tools, Some(&key));
        let mended = asked_by_client.mended(&name, list, (&page, Era::Legacy));
        let mended = mended.expect("mended");
        assert_eq!(mended, shown[at]);
        asked_by_client.remember(key.clone(), &mended);
        // A page that is already kept is not mended again.
        let again = asked_by_client.mended(&name, list, (&mended, Era::Legacy));
        assert_eq!(again, None);
    }
    assert!(!asked_by_client.lists().reports().is_empty());
    let raw = Catalogue::default();
    raw.set_lists(ListMode::Raw);
    let list = read(&raw, &source).await.expect("read");
    assert_eq!(names(&list), ["a", "b", "a", "c"]);
}

#[tokio::test]
async fn an_empty_string_is_a_cursor() {
    let first = page("a", Some(""));
    let Paged { opening, .. } = paged();
    struct Empty(&'static str, Bytes);
    #[async_trait::async_trait]
    impl PageSource for Empty {
        fn server(&self) -> ServerInfo {
            ServerInfo::Legacy(Bytes::from_static(self.0.as_bytes()))
        }

        async fn page(
            &self,
            _: &'static str,
            params: &serde_json::value::RawValue,
        ) -> Result<ResponseOutcome, CallError> {
            let params: serde_json::Value = serde_json::from_str(params.get()).expect("JSON");
            Ok(ResponseOutcome::Result(match params["cursor"].as_str() {
                Some("") => page("b", None),
                _ => self.1.clone(),
            }))
        }
    }
    let catalogue = Catalogue::default();
    let name = "ns".parse().expect("a name");
    let list = catalogue.read(&name, &Empty(opening, first)).await;
    assert_eq!(names(&list.expect("read")), ["a", "b"]);
}

#[test]
fn a_page_that_is_all_of_them_needs_no_reading() {
    let catalogue = Catalogue::default();
    catalogue.remember(tools(None), &page("a", None));
    assert_eq!(names(&catalogue.current().expect("shown")), ["a"]);
    // A malformed list leaves the tools unknown.
    catalogue.remember(tools(None), &Bytes::from_static(br#"{"tools":7}"#));
    assert!(catalogue.current().is_none());
}

#[test]
fn versions_of_two_servers_are_never_the_same() {
    let (one, other) = (Catalogue::default(), Catalogue::default());
    one.changed();
    other.changed();
    assert_ne!(one.version(), other.version());
}

#[test]
fn there_is_an_end_to_what_is_kept() {
    let catalogue = Catalogue::default();
    let large = Bytes::from(vec![b' '; BYTES_MAX / 2 + 1]);
    catalogue.remember(tools(None), &large);
    catalogue.remember(key("prompts/list", None), &large);
    assert!(catalogue.recall(&tools(None)).is_some());
    assert!(catalogue.recall(&key("prompts/list", None)).is_none());
    // An equal list replaces the kept one.
    catalogue.remember(tools(None), &large);
    assert_eq!(catalogue.lock().pages.size(), (1, large.len()));
    // A page without room is not news each time it is shown.
    catalogue.remember(tools(Some("1")), &large.slice(1..));
    let version = catalogue.version();
    let larger = Bytes::from(vec![b' '; BYTES_MAX]);
    catalogue.remember(tools(Some("1")), &larger);
    assert_eq!(catalogue.version(), version);
}

#[test]
fn cursors_count_and_inventions_of_clients_are_not_kept() {
    let catalogue = Catalogue::default();
    let first = page("a", None);
    catalogue.remember(tools(None), &first);
    let now = || (catalogue.version(), catalogue.lock().pages.size().1);
    let known = now();
    assert_eq!(known.1, first.len());
    // A server that ignores cursors shows its first page for any of them.
    for cursor in 0..10 {
        catalogue.remember(tools(Some(&cursor.to_string())), &first);
    }
    let long = "c".repeat(CURSOR_MAX + 1);
    assert_eq!(PageKey::of(LEGACY, TOOLS_LIST, Some(&long)), None);
    assert_eq!(now(), known);
    let second = page("b", None);
    catalogue.remember(tools(Some("\"n\"")), &second);
    assert!(catalogue.version() > known.0);
    assert_eq!(now().1, known.1 + second.len() + 3);
    catalogue.remember(tools(None), &second);
    assert_eq!(now().1, second.len());
    for page in 0..PAGES_MAX + 10 {
        let text = Bytes::from(format!("{{\"n\":{page}}}"));
        catalogue.remember(key("prompts/list", Some(&page.to_string())), &text);
    }
    assert_eq!(catalogue.lock().pages.size().0, PAGES_MAX);
}

#[tokio::test(start_paused = true)]
async fn one_reading_serves_all_who_wait_and_what_failed_slowly_is_not_begun_again_at_once() {
    let catalogue = Catalogue::default();
    let (reading, begun) = catalogue.begin();
    // A running reading is waited for, whatever the version.
    catalogue.changed();
    let (same, none) = catalogue.begin();
    assert!(Arc::ptr_eq(&reading, &same) && none.is_none());
    begun.expect("the first").end(Err(failed()));
    assert!(reading.outcome().await.is_err());
    // The reading failed fast, so another begins.
    let (slow, begun) = catalogue.begin();
    tokio::time::advance(CALLS_WAIT).await;
    assert!(slow.is_slow());
    begun.expect("another one").end(Err(failed()));
    let (same, none) = catalogue.begin();
    assert!(Arc::ptr_eq(&slow, &same) && none.is_none());
    assert!(same.outcome().await.is_err());
    // The server was replaced.
    catalogue.changed();
    let (_, begun) = catalogue.begin();
    tokio::time::advance(CALLS_WAIT).await;
    begun.expect("of the new version").end(Err(failed()));
    tokio::time::advance(FAILED).await;
    assert!(catalogue.begin().1.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_reading_whose_process_is_gone_says_nothing_of_the_server_however_long_it_took() {
    let catalogue = Catalogue::default();
    let (reading, begun) = catalogue.begin();
    tokio::time::advance(CALLS_WAIT).await;
    drop(begun.expect("the first"));
    let outcome = reading.outcome().await.expect_err("abandoned");
    assert_eq!(outcome.code, CallErrorCode::WorkerUnavailable);
    assert!(!reading.is_slow());
    assert!(catalogue.begin().1.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_connection_has_its_turn_when_no_other_reading_runs_and_its_tools_are_not_known() {
    let catalogue = Arc::new(Catalogue::default());
    let (_, begun) = catalogue.begin();
    let turn = |era| {
        let catalogue = Arc::clone(&catalogue);
        tokio::spawn(async move { catalogue.turn(era).await.is_some() })
    };
    let (legacy, modern) = (turn(LEGACY), turn(Era::Modern));
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(!legacy.is_finished() && !modern.is_finished());
    let list = read(&catalogue, &paged()).await;
    begun.expect("the first").end(list);
    assert!(!legacy.await.expect("no panic"));
    assert!(modern.await.expect("no panic"));
}

#[test]
fn a_written_list_is_kept_for_its_form_and_its_view_alone() {
    let list = ToolList::of_page(r#"{"tools":[{"name":"a"}]}"#);
    let mut wide = crate::testing::namespace("ns");
    wide.limits = Limits::default();
    let mut narrow = wide.clone();
    narrow.limits.tools_deny = vec!["a".into()];
    narrow.policy = ToolPolicy::new(&narrow.limits).expect("patterns");
    let mut scoped = crate::testing::caller();
    scoped.visibility = crate::caller::Visibility::Only(Arc::new(|_| true));
    let caller = crate::testing::caller();
    let reader = crate::testing::caller_with_scopes(&["read"]);
    let views = [
        View::of(&caller, &wide),
        View::of(&caller, &narrow),
        View::of(&scoped, &wide),
        View::of(&reader, &wide),
    ];
    let formats = [
        ResultFormat::Legacy(ProtocolVersion::V2025_03_26),
        ResultFormat::Legacy(ProtocolVersion::V2025_11_25),
        ResultFormat::Modern(ModernFormat::new(wide.name.clone())),
    ];
    let forms = || formats.iter().flat_map(|it| views.map(|view| (it, view)));
    let text = |at: usize| [u8::try_from(at).expect("few")];
    for (at, (format, view)) in forms().enumerate() {
        assert_eq!(list.written(format, view), None);
        list.keep_written(format, view, &text(at));
    }
    for (at, (format, view)) in forms().enumerate() {
        assert_eq!(list.written(format, view).as_deref(), Some(&text(at)[..]));
    }
    let another = ToolList::of_page(r#"{"tools":[]}"#);
    another.keep_written(&formats[0], views[0], &vec![b' '; 256 * 1024 + 1]);
    assert_eq!(another.written(&formats[0], views[0]), None);
}
