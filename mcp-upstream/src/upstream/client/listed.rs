//! The tools of a server as it lists them, kept for what has to know them beforehand: REST and mirrored parameters.
//!
//! They are read again when they may be others: the server said so, another process took its place, a client was shown
//! another list. A server that announces no changes is asked again every few minutes. One that is away is spoken for by
//! what it listed last, for as long as its pool lets it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use dashmap::DashMap;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::external::ExternalServer;
use tooldock_workers::names::NamespaceName;
use tooldock_workers::registry::{Namespace, UpstreamKind};

use super::ExternalServers;
use super::arguments::InputSchema;
use super::connector::{Connection, Era, Isolation, ServerInfo};
use super::isolation;
use crate::bridge::params::{self, ClientMetadata};
use crate::bridge::server_info;
use crate::jsonrpc::ResponseOutcome;
use crate::jsonrpc::{self, spans};
use crate::protocol::ClientIdentity;
use crate::stdio::metrics::LastGood;
use crate::upstream::catalogue::ToolEntry;
use crate::upstream::{Catalogue, Client};

/// How long a list is good of a server that does not say when it changes …
const FRESH: Duration = Duration::from_secs(300);
/// … and of one that does.
const FRESH_IF_ANNOUNCED: Duration = Duration::from_secs(3600);
/// Pages that are read at most.
const PAGES_MAX: usize = 100;
/// Tools that are read at most.
const TOOLS_MAX: usize = 10_000;
/// Bytes of pages after which no more are read: with the last one it may be a page more.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// What the compiled schemas of a list may weigh that are kept with it. Beyond that they are compiled for each call.
const COMPILED_MAX: usize = 8 * 1024 * 1024;
/// How often a list is read that changes while it is.
const TRIES: usize = 2;
/// How long after its beginning a reading is waited for by calls, which can do without …
const CALLS_WAIT: Duration = Duration::from_secs(3);
/// … and for how long one that took longer and failed is not begun again.
const FAILED: Duration = Duration::from_secs(5);

/// The tools of a server.
#[derive(Debug)]
pub(crate) struct ListedTools {
    tools: Vec<Entry>,
    /// What the compiled schemas of its tools weigh.
    compiled: AtomicUsize,
    /// Of the pages it was made of.
    bytes: usize,
    read: Instant,
    fresh: Duration,
    /// The version of the server's tools when the reading began.
    version: u64,
}

#[derive(Debug)]
struct Entry {
    name: String,
    definition: Box<RawValue>,
    /// What arguments are held against, once a call needed it; `None`: nothing can be.
    input: OnceLock<Option<Arc<InputSchema>>>,
}

/// The tools of all servers that were read: one list for each namespace whose server is not gone.
#[derive(Debug, Default)]
pub(super) struct Listings(DashMap<NamespaceName, Kept>);

#[derive(Debug)]
struct Kept {
    /// Of the server it was read from.
    content: [u8; 32],
    /// That server, where it is one of the registry's. Weak: a list is no reason to keep it.
    server: Option<Weak<ExternalServer>>,
    /// Read once for all who want it.
    reading: Option<Arc<Reading>>,
    /// The one before, for when the server cannot be asked.
    last: Option<Arc<ListedTools>>,
}

type Outcome = Result<Arc<ListedTools>, CallError>;

/// One reading of a list, over or not. It goes on when whoever began it leaves, so that with a server that does not
/// answer its tools nobody waits for more than one.
#[derive(Debug)]
struct Reading {
    started: Instant,
    /// Of the tools, as far as was known then.
    version: u64,
    /// What came of it, and when.
    over: watch::Sender<Option<(Outcome, Instant)>>,
}

impl Reading {
    fn new(version: u64) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            version,
            over: watch::Sender::new(None),
        })
    }

    fn end(&self, outcome: Outcome) {
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            over.get_or_insert((outcome, Instant::now()));
            first
        });
    }

    /// The list, if it was read.
    fn read(&self) -> Option<Arc<ListedTools>> {
        let over = self.over.borrow();
        over.as_ref()?.0.as_ref().ok().cloned()
    }

    /// Whether it serves who wants the tools of that version.
    fn serves(&self, version: u64) -> bool {
        match &*self.over.borrow() {
            // Waited for, so that there is one reading at a time.
            None => true,
            Some((Ok(read), _)) => read.is_good(version),
            // Failing fast costs nothing and may be over; with what took long nobody starts over at once.
            Some((Err(_), at)) => {
                let slow = at.duration_since(self.started) >= CALLS_WAIT;
                slow && self.version == version && at.elapsed() < FAILED
            }
        }
    }

    async fn outcome(&self) -> Outcome {
        let mut over = self.over.subscribe();
        let over = over.wait_for(Option::is_some).await;
        match over.as_deref() {
            Ok(Some((outcome, _))) => outcome.clone(),
            // The sender is `self`, and that is what was waited for.
            Ok(None) | Err(_) => Err(given_up()),
        }
    }
}

/// Whatever ends the task that reads, those who wait hear of it.
struct EndsOnDrop(Arc<Reading>);

impl Drop for EndsOnDrop {
    fn drop(&mut self) {
        if self.0.over.borrow().is_none() {
            self.0.end(Err(given_up()));
        }
    }
}

fn given_up() -> CallError {
    let reason = "the server's tools were not read to their end";
    CallError::new(CallErrorCode::InternalError, reason)
}

impl Kept {
    fn new(namespace: &Namespace) -> Self {
        Self {
            content: namespace.content_hash,
            server: match &namespace.upstream {
                UpstreamKind::External(server) => Some(Arc::downgrade(server)),
                _ => None,
            },
            reading: None,
            last: None,
        }
    }

    fn is_of(&self, namespace: &Namespace) -> bool {
        let same = match (&self.server, &namespace.upstream) {
            (Some(own), UpstreamKind::External(server)) => {
                std::ptr::eq(own.as_ptr(), Arc::as_ptr(server))
            }
            _ => true,
        };
        same && self.content == namespace.content_hash
    }

    fn is_gone(&self) -> bool {
        let server = self.server.as_ref();
        server.is_some_and(|server| server.strong_count() == 0)
    }
}

impl Listings {
    /// The reading of a namespace's tools at that version, and what was read before it. `true`: it is to be begun.
    fn of(
        &self,
        namespace: &Namespace,
        version: u64,
    ) -> (Arc<Reading>, Option<Arc<ListedTools>>, bool) {
        if !self.0.contains_key(&namespace.name) {
            // Now and then, and when it grows at the latest.
            self.0.retain(|_, kept| !kept.is_gone());
        }
        let entry = self.0.entry(namespace.name.clone());
        let mut kept = entry.or_insert_with(|| Kept::new(namespace));
        if !kept.is_of(namespace) {
            *kept = Kept::new(namespace);
        }
        if let Some(reading) = kept.reading.as_ref().filter(|it| it.serves(version)) {
            return (Arc::clone(reading), kept.last.clone(), false);
        }
        let reading = Reading::new(version);
        let before = kept.reading.replace(Arc::clone(&reading));
        if let Some(read) = before.and_then(|before| before.read()) {
            kept.last = Some(read);
        }
        (reading, kept.last.clone(), true)
    }

    /// What is known of the namespace's tools, be it good or not any more.
    fn known(&self, namespace: &Namespace) -> Option<Arc<ListedTools>> {
        let kept = self.0.get(&namespace.name)?;
        let kept = kept.is_of(namespace).then_some(kept)?;
        let read = kept.reading.as_ref().and_then(|reading| reading.read());
        read.or_else(|| kept.last.clone())
    }
}

impl ListedTools {
    fn new(version: u64, read: Instant) -> Self {
        Self {
            tools: Vec::new(),
            compiled: AtomicUsize::new(0),
            bytes: 0,
            read,
            fresh: FRESH,
            version,
        }
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.tools.iter().find(|entry| entry.name == name)
    }

    /// What the arguments of a tool are held against, if there is such a thing.
    pub(super) fn input_schema(&self, name: &str) -> Option<Arc<InputSchema>> {
        let entry = self.entry(name)?;
        if let Some(kept) = entry.input.get() {
            return kept.clone();
        }
        let compiled = entry.compile();
        let weight = compiled.as_ref().map_or(0, |schema| schema.weight());
        let kept = self.compiled.fetch_add(weight, Ordering::Relaxed) + weight;
        if kept <= COMPILED_MAX {
            // Another call may have been first.
            return entry.input.get_or_init(|| compiled).clone();
        }
        self.compiled.fetch_sub(weight, Ordering::Relaxed);
        compiled
    }

    fn is_good(&self, version: u64) -> bool {
        self.version == version && self.read.elapsed() < self.fresh
    }

    /// Adds the tools of one page; gives the cursor of the next.
    fn add(&mut self, result: &[u8]) -> Option<Box<RawValue>> {
        self.bytes = self.bytes.saturating_add(result.len());
        let page = spans::raw(result)?;
        let tools: Vec<&RawValue> = spans::member(page, "tools")
            .and_then(|tools| serde_json::from_str(tools.get()).ok())
            .unwrap_or_default();
        for tool in tools {
            let Some(name) = spans::member(tool, "name").and_then(jsonrpc::string) else {
                continue;
            };
            self.tools.push(Entry {
                name: name.into_owned(),
                definition: tool.to_owned(),
                input: OnceLock::new(),
            });
        }
        let next = spans::member(page, "nextCursor")?;
        (next.get() != "null").then(|| next.to_owned())
    }

    /// Whether it is as long as one may be.
    fn is_full(&self) -> bool {
        self.tools.len() >= TOOLS_MAX || self.bytes >= BYTES_MAX
    }
}

impl Catalogue for ListedTools {
    fn tools(&self) -> Box<dyn Iterator<Item = ToolEntry<'_>> + Send + '_> {
        Box::new(self.tools.iter().map(Entry::shown))
    }

    fn tool(&self, name: &str) -> Option<ToolEntry<'_>> {
        self.entry(name).map(Entry::shown)
    }
}

impl Entry {
    /// What the server says of the tool.
    fn shown(&self) -> ToolEntry<'_> {
        ToolEntry::listed(&self.name, &self.definition)
    }

    fn compile(&self) -> Option<Arc<InputSchema>> {
        let schema = spans::member(&self.definition, "inputSchema")?;
        match InputSchema::compile(schema) {
            Ok(schema) => Some(Arc::new(schema)),
            Err(reason) => {
                tracing::debug!(
                    tool = self.name,
                    "the arguments of tool {:?} are not checked against its schema: {reason}",
                    self.name
                );
                None
            }
        }
    }
}

impl ExternalServers {
    /// The tools of a namespace's server, those that the policy denies among them. Read once, whoever asks meanwhile.
    ///
    /// # Errors
    ///
    /// Why they cannot be read.
    pub(crate) async fn tools(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
    ) -> Result<Arc<ListedTools>, CallError> {
        if let UpstreamKind::Failed(error) = &namespace.upstream {
            return Err(error.clone());
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let version = self.processes.known_tools(namespace).version;
            let (reading, last) = self.reading(namespace, version);
            match reading.outcome().await {
                // It may have been begun before the change that this request knows of.
                Ok(read) if read.version < version && tries < TRIES => {}
                Ok(read) => return Ok(read),
                Err(error) => return self.last_tools(namespace, last).ok_or(error),
            }
        }
    }

    /// The same, for a call that cannot wait long for them: where they are not there soon, those known before serve.
    ///
    /// # Errors
    ///
    /// Why none are known.
    pub(super) async fn tools_soon(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
    ) -> Result<Arc<ListedTools>, CallError> {
        let version = self.processes.known_tools(namespace).version;
        let started = self.reading(namespace, version).0.started;
        // Calls come one after the other, and the server may be silent for long: all of them together wait this once.
        let wait = CALLS_WAIT.min(namespace.limits.timeout / 4);
        let outcome = timeout_at(started + wait, self.tools(namespace)).await;
        let late = |_| Err(late(namespace));
        let known = |error| self.tools_known(namespace).ok_or(error);
        outcome.unwrap_or_else(late).or_else(known)
    }

    /// The reading of the tools that serves at that version, begun where there is none, and what was read before it.
    fn reading(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        version: u64,
    ) -> (Arc<Reading>, Option<Arc<ListedTools>>) {
        let (reading, last, is_new) = self.listings.of(namespace, version);
        if is_new {
            let (external, namespace) = (Arc::clone(self), Arc::clone(namespace));
            let (ends, last) = (EndsOnDrop(Arc::clone(&reading)), last.clone());
            // One for each namespace, and bounded by the time of a call.
            tokio::spawn(async move {
                let outcome = external.read_tools(&namespace, last.as_ref()).await;
                ends.0.end(outcome);
            });
        }
        (reading, last)
    }

    /// The same, as far as they are known without asking anybody.
    pub(crate) fn tools_known(&self, namespace: &Namespace) -> Option<Arc<ListedTools>> {
        if let Some(known) = self.listings.known(namespace) {
            return Some(known);
        }
        let known = self.processes.known_tools(namespace);
        let (pages, read) = known.pages?;
        Some(Arc::new(assembled(&pages, known.version, read)))
    }

    /// Takes them from what the pool read, where that is no older than what was there before; else asks the server.
    async fn read_tools(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        last: Option<&Arc<ListedTools>>,
    ) -> Result<Arc<ListedTools>, CallError> {
        let known = self.processes.known_tools(namespace);
        let version = known.version;
        if let Some((pages, read)) = known.pages
            && last.is_none_or(|last| last.version != version)
            && read.elapsed() < FRESH
        {
            let mut listed = assembled(&pages, version, read);
            listed.fresh = self.freshness(namespace);
            return Ok(Arc::new(listed));
        }
        let asked = async {
            let isolation = self.processes.isolation(namespace);
            // What everybody shares lists for everybody, even where calls have processes of their own.
            let isolation = match isolation {
                Some(Isolation::Principal | Isolation::Session) | None => Isolation::Shared,
                Some(isolation) => isolation,
            };
            let speaks = self
                .processes
                .speaks(namespace, Client::Plain.own_era())
                .await?;
            let place = isolation::place(isolation, speaks, &Client::Plain, None, "tools/list");
            let leased = self.lease_at(namespace, &Client::Plain, place).await?;
            let mut read = read(namespace, &*leased.process, version).await?;
            leased.process.answered();
            read.fresh = freshness(leased.process.opening());
            Ok(Arc::new(read))
        };
        let limit = namespace.limits.timeout;
        let outcome = timeout(limit, asked).await;
        outcome.unwrap_or_else(|_| Err(late(namespace)))
    }

    /// What a server that cannot be asked listed before.
    fn last_tools(
        &self,
        namespace: &Namespace,
        last: Option<Arc<ListedTools>>,
    ) -> Option<Arc<ListedTools>> {
        // Whether its last words still count is the pool's to say.
        self.processes.last_opening(namespace, Era::Legacy)?;
        let last = last.or_else(|| self.tools_known(namespace))?;
        self.processes.fell_back(namespace, LastGood::List);
        Some(last)
    }

    fn freshness(&self, namespace: &Namespace) -> Duration {
        let opening = self.processes.last_opening(namespace, Era::Legacy);
        opening.as_ref().map_or(FRESH, freshness)
    }
}

fn freshness(opening: &ServerInfo) -> Duration {
    match server_info::declares(opening, &["tools", "listChanged"]) {
        true => FRESH_IF_ANNOUNCED,
        false => FRESH,
    }
}

/// The list that these pages are.
fn assembled(pages: &[Bytes], version: u64, read: Instant) -> ListedTools {
    let mut listed = ListedTools::new(version, read);
    for page in pages {
        if listed.is_full() {
            break;
        }
        listed.add(page);
    }
    listed
}

async fn read(
    namespace: &Namespace,
    process: &dyn Connection,
    version: u64,
) -> Result<ListedTools, CallError> {
    let mut listed = ListedTools::new(version, Instant::now());
    let mut cursor: Option<Box<RawValue>> = None;
    for _ in 0..PAGES_MAX {
        let cursor_member = cursor.map(|cursor| format!(r#""cursor":{}"#, cursor.get()));
        let meta_member = match process.opening() {
            ServerInfo::Legacy(_) => None,
            ServerInfo::Modern(_) => {
                let metadata = ClientMetadata {
                    capabilities: "{}",
                    info: ClientIdentity::gateway().info.get(),
                    log_level: None,
                };
                let meta = params::modern_meta("{}", metadata);
                Some(format!(r#""_meta":{meta}"#))
            }
        };
        let members: Vec<_> = cursor_member.into_iter().chain(meta_member).collect();
        let params = format!("{{{}}}", members.join(","));
        let params = RawValue::from_string(params).map_err(|_| unreadable(namespace))?;
        let sent = process.request("tools/list", Some(&params), None)?;
        let answer = sent.answer.await.map_err(|unanswered| unanswered.error)?;
        match answer.outcome() {
            ResponseOutcome::Result(page) => cursor = listed.add(&page),
            ResponseOutcome::Error(_) => return Err(unreadable(namespace)),
        }
        if cursor.is_none() {
            return Ok(listed);
        }
        if listed.is_full() {
            break;
        }
    }
    tracing::warn!(
        namespace = %namespace.name,
        tools = listed.tools.len(),
        bytes = listed.bytes,
        "the server of namespace {} lists more tools than are read: {PAGES_MAX} pages, {TOOLS_MAX} tools or \
         {BYTES_MAX} bytes",
        namespace.name
    );
    Ok(listed)
}

fn late(namespace: &Namespace) -> CallError {
    let name = &namespace.name;
    let reason = format!("the server of namespace {name} did not list its tools in time");
    CallError::new(CallErrorCode::ExecutionTimeout, reason)
}

fn unreadable(namespace: &Namespace) -> CallError {
    CallError::new(
        CallErrorCode::InternalError,
        format!(
            "the server of namespace {} does not list its tools",
            namespace.name
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_add_up_and_definitions_keep_their_bytes() {
        let mut listed = ListedTools::new(1, Instant::now());
        let first = br#"{"tools":[{"name":"a","x":1},{"x":1}],"nextCursor":"n"}"#;
        let cursor = listed.add(first).expect("another page");
        assert_eq!(cursor.get(), "\"n\"");
        assert!(
            listed
                .add(br#"{"tools":[{"name":"b","inputSchema":{"n":1.50}}],"nextCursor":null}"#)
                .is_none()
        );
        assert_eq!(listed.tools().count(), 2);
        let tool = listed.tool("b").expect("it is there");
        let schema = tool.input_schema().expect("a schema").get();
        assert!(schema.contains("1.50"));
    }

    #[test]
    fn a_schema_is_compiled_once_and_only_so_much_is_kept() {
        let mut listed = ListedTools::new(1, Instant::now());
        let page = br#"{"tools":[{"name":"a","inputSchema":{"type":"object"}},{"name":"odd","inputSchema":{"type":5}},{"name":"b","inputSchema":{}}]}"#;
        listed.add(page);
        let first = listed.input_schema("a").expect("a schema");
        let again = listed.input_schema("a").expect("a schema");
        assert!(Arc::ptr_eq(&first, &again));
        assert!(listed.input_schema("odd").is_none());
        assert!(listed.input_schema("missing").is_none());
        listed.compiled.store(COMPILED_MAX, Ordering::Relaxed);
        let first = listed.input_schema("b").expect("a schema");
        let again = listed.input_schema("b").expect("a schema");
        assert!(!Arc::ptr_eq(&first, &again));
        assert_eq!(listed.compiled.load(Ordering::Relaxed), COMPILED_MAX);
    }

    #[test]
    fn there_is_an_end_to_a_list() {
        let mut listed = ListedTools::new(1, Instant::now());
        let page = vec![b' '; BYTES_MAX];
        assert!(!listed.is_full());
        listed.add(&page);
        assert!(listed.is_full());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_good_for_its_version_and_for_its_time() {
        let listings = Listings::default();
        let namespace = crate::testing::namespace("git");
        let (reading, last, is_new) = listings.of(&namespace, 1);
        assert!(last.is_none() && is_new);
        // Being read, it is waited for, whatever the version.
        let (same, _, is_new) = listings.of(&namespace, 2);
        assert!(Arc::ptr_eq(&reading, &same) && !is_new);
        let read = Arc::new(ListedTools::new(2, Instant::now()));
        reading.end(Ok(Arc::clone(&read)));
        assert!(!listings.of(&namespace, 2).2);
        tokio::time::advance(FRESH).await;
        let (later, last, is_new) = listings.of(&namespace, 2);
        assert!(last.is_some() && is_new);
        later.end(Ok(read));
        let mut other = crate::testing::namespace("git");
        other.content_hash = [1; 32];
        let (_, last, is_new) = listings.of(&other, 2);
        assert!(is_new && last.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_slowly_is_not_begun_again_at_once_but_what_failed_fast_is() {
        let listings = Listings::default();
        let namespace = crate::testing::namespace("git");
        listings.of(&namespace, 1).0.end(Err(given_up()));
        let (slow, _, is_new) = listings.of(&namespace, 1);
        assert!(is_new);
        tokio::time::advance(CALLS_WAIT).await;
        drop(EndsOnDrop(Arc::clone(&slow)));
        let (same, _, is_new) = listings.of(&namespace, 1);
        assert!(!is_new);
        assert!(same.outcome().await.is_err());
        // The server is another one now.
        assert!(listings.of(&namespace, 2).2);
        let (slow, _, _) = listings.of(&namespace, 2);
        tokio::time::advance(CALLS_WAIT).await;
        slow.end(Err(given_up()));
        tokio::time::advance(FAILED).await;
        assert!(listings.of(&namespace, 2).2);
    }
}
