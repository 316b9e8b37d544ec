//! The document of an API: it is read when a session first needs it, and read again at an interval (key `refresh`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tooldock_base::error::CallError;
use tooldock_base::heavy_work;
use tooldock_base::names::NamespaceName;
use tooldock_openapi::{Api, DOCUMENT_MAX, Document, DocumentError};
use tooldock_workers::remote::{ApiSpec, DocumentSource, RemoteServer, read_document};

use super::super::port::{BackendRequest, Backends, HttpClient, SendError};
use super::{Unread, read};

/// Size of a page of `tools/list`, in bytes. A single larger tool is a page of its own.
const PAGE_MAX: usize = 256 * 1024;
/// Maximum number of issues of a document that are logged one by one, such as operations that are left out.
const ISSUES_MAX: usize = 10;

/// Maximum time for reading a document, from the request to the last byte.
const READ_MAX: Duration = Duration::from_secs(60);
/// Pause after which a document that could not be used is read again, if `refresh` is not shorter. Requests in the pause fail.
const RETRY: Duration = Duration::from_secs(10);

/// The operations of a document, and the list of their tools.
pub(super) struct LoadedApi {
    pub(super) api: Api,
    /// Base path of requests, without a slash at its end.
    pub(super) base: String,
    /// Results of `tools/list` by page, as JSON.
    pages: Vec<String>,
}

impl LoadedApi {
    /// Returns the result of `tools/list` for a cursor, or the first page without one; `None` for an unknown cursor.
    pub(super) fn page(&self, cursor: Option<&str>) -> Option<&str> {
        let at = cursor.map_or(Some(0), |it| it.parse().ok())?;
        self.pages.get(at).map(String::as_str)
    }
}

/// The document of an API, which all its sessions share.
pub(super) struct ApiDocument {
    server: Arc<RemoteServer>,
    client: Arc<dyn HttpClient>,
    /// Backends of the API itself, for a document that is at the API's server.
    own: Arc<dyn Backends>,
    loaded: ArcSwapOption<LoadedApi>,
    /// Number of loads: the first document and each changed document count.
    revision: AtomicU64,
    /// Semaphore with a single permit, which a task holds while it reads the document.
    turn: Semaphore,
    seen: Mutex<DocumentState>,
}

/// Facts about the last reading of the document.
#[derive(Default)]
struct DocumentState {
    read_at: Option<Instant>,
    /// SHA-256 of the document in use.
    digest: Option<[u8; 32]>,
    /// Value of `If-None-Match` for the next request.
    etag: Option<HeaderValue>,
    /// The last failure that was logged or returned; `None` if a later check of the loaded document succeeded.
    failure: Option<String>,
}

/// Outcome of reading the document.
enum DocumentText {
    Unchanged,
    /// Text of the document, and the value of its header `ETag`.
    Text(Bytes, Option<HeaderValue>),
}

/// Reason why the document was not read.
enum ReadFailure {
    /// The request for the document failed before a response arrived.
    Unsent(SendError),
    /// The document cannot be used. Contains a sentence for operators and clients; most begin with "the document".
    Sentence(String),
}

impl ApiDocument {
    pub(super) fn new(
        server: &Arc<RemoteServer>,
        client: &Arc<dyn HttpClient>,
        own: &Arc<dyn Backends>,
    ) -> Arc<Self> {
        Arc::new(Self {
            server: Arc::clone(server),
            client: Arc::clone(client),
            own: Arc::clone(own),
            loaded: ArcSwapOption::empty(),
            revision: AtomicU64::new(0),
            turn: Semaphore::new(1),
            seen: Mutex::default(),
        })
    }

    fn spec(&self) -> &ApiSpec {
        self.server
            .spec
            .api
            .as_ref()
            .expect("only APIs have a document")
    }

    /// Returns the name of the API's namespace.
    pub(super) fn namespace(&self) -> &NamespaceName {
        &self.server.name
    }

    /// Returns the interval at which the document is read again.
    pub(super) fn interval(&self) -> Duration {
        self.spec().refresh
    }

    /// Returns a number that changes when another document is loaded.
    pub(super) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Returns the document's operations. Reads the document if none is loaded.
    ///
    /// # Errors
    ///
    /// The outer error: the request for the document failed. The inner error: a sentence about a document that cannot be used.
    pub(super) async fn loaded(
        &self,
        principal: Option<&Arc<str>>,
    ) -> Result<Result<Arc<LoadedApi>, String>, SendError> {
        if let Some(loaded) = self.loaded.load_full() {
            return Ok(Ok(loaded));
        }
        let _turn = self.turn.acquire().await;
        if let Some(loaded) = self.loaded.load_full() {
            return Ok(Ok(loaded));
        }
        let refused = self.refused();
        if let Some(why) = refused {
            return Ok(Err(why));
        }
        match self.read(principal).await {
            Ok(()) => {}
            Err(ReadFailure::Unsent(error)) => {
                // The requests that wait for this attempt need not make one each.
                let why = format!("the document is not reached: {error}");
                self.seen().failure = Some(self.server.without_secrets(&why));
                return Err(error);
            }
            Err(ReadFailure::Sentence(why)) => {
                let why = self.server.without_secrets(&why);
                self.seen().failure = Some(why.clone());
                return Ok(Err(why));
            }
        }
        let loaded = self.loaded.load_full();
        Ok(loaded.ok_or_else(|| "the document was not read".to_owned()))
    }

    /// Reads a loaded document again if its interval is over, so that new sessions see changes even if no stream is open. Returns
    /// at once if another task is reading the document.
    pub(super) async fn refreshed(&self, principal: Option<&Arc<str>>) {
        let is_free = self.turn.available_permits() > 0;
        if is_free && self.loaded.load().is_some() && self.is_due() {
            self.check(principal).await;
        }
    }

    /// Returns true if the last reading is at least an interval ago, or if there was none.
    fn is_due(&self) -> bool {
        let read_at = self.seen().read_at;
        read_at.is_none_or(|it| it.elapsed() >= self.interval())
    }

    /// Reads the document again if its interval is over. If that fails, the document before stays in use, and each new failure is
    /// logged.
    pub(super) async fn check(&self, principal: Option<&Arc<str>>) {
        let _turn = self.turn.acquire().await;
        if !self.is_due() {
            return;
        }
        let why = match self.read(principal).await {
            Ok(()) => {
                self.seen().failure = None;
                return;
            }
            Err(ReadFailure::Unsent(error)) => format!("the document is not reached: {error}"),
            Err(ReadFailure::Sentence(why)) => why,
        };
        let why = self.server.without_secrets(&why);
        let is_new = self
            .seen()
            .failure
            .replace(why.clone())
            .is_none_or(|it| it != why);
        if is_new {
            let name = &self.server.name;
            tracing::warn!(namespace = %name, "{name}: {why}; the one before is used");
        }
    }

    /// Returns the reason of a failure within the last [`RETRY`] pause, so that the document is not read again for each request;
    /// `None` if the document may be read.
    fn refused(&self) -> Option<String> {
        let seen = self.seen();
        let pause = RETRY.min(self.interval());
        let is_recent = seen.read_at.is_some_and(|it| it.elapsed() < pause);
        seen.failure.clone().filter(|_| is_recent)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, DocumentState> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the document, and loads it if it has changed.
    async fn read(&self, principal: Option<&Arc<str>>) -> Result<(), ReadFailure> {
        // An attempt counts from its beginning: its request may be given up, and the next one must not begin it anew.
        self.seen().read_at = Some(Instant::now());
        let text = timeout(READ_MAX, self.text(principal)).await;
        self.seen().read_at = Some(Instant::now());
        let text = text.unwrap_or_else(|_elapsed| {
            let seconds = READ_MAX.as_secs();
            Err(ReadFailure::Sentence(format!(
                "the document was not read within {seconds} s"
            )))
        });
        let (text, etag) = match text? {
            DocumentText::Unchanged => return Ok(()),
            DocumentText::Text(text, etag) => (text, etag),
        };
        let digest: [u8; 32] = Sha256::digest(&text).into();
        let is_known = self.seen().digest == Some(digest);
        if !is_known {
            let server = Arc::clone(&self.server);
            let parsed = heavy_work::run(&principal.cloned(), move || load(&text, &server)).await;
            let parsed = parsed.map_err(|error| ReadFailure::Sentence(error.message))?;
            let loaded = parsed.map_err(ReadFailure::Sentence)?;
            self.report(&loaded);
            self.loaded.store(Some(Arc::new(loaded)));
            self.revision.fetch_add(1, Ordering::AcqRel);
        }
        let mut seen = self.seen();
        seen.digest = Some(digest);
        seen.etag = etag;
        Ok(())
    }

    /// Logs the number of tools, and the issues of the document.
    fn report(&self, loaded: &LoadedApi) {
        let name = &self.server.name;
        let tools = loaded.api.operations().len();
        tracing::info!(namespace = %name, tools, "{name}: the document of the API has {tools} tools");
        let issues = loaded.api.issues();
        for issue in issues.iter().take(ISSUES_MAX) {
            tracing::warn!(namespace = %name, "{name}: {issue}");
        }
        if issues.len() > ISSUES_MAX {
            let more = issues.len() - ISSUES_MAX;
            tracing::warn!(namespace = %name, "{name}: {more} more operations are no tools");
        }
    }

    /// Reads the document's text, from its file or by a request to its server.
    async fn text(&self, principal: Option<&Arc<str>>) -> Result<DocumentText, ReadFailure> {
        let (backends, target) = match &self.spec().source {
            DocumentSource::File(path) => {
                let path = path.clone();
                let read = tokio::task::spawn_blocking(move || read_document(&path)).await;
                let read = read.unwrap_or_else(|error| Err(error.to_string()));
                let text =
                    read.map_err(|why| ReadFailure::Sentence(format!("the document {why}")))?;
                return Ok(DocumentText::Text(text.into(), None));
            }
            DocumentSource::SameServer(target) => (Arc::clone(&self.own), Some(target.clone())),
            DocumentSource::OtherServer(server) => (self.client.backends(server), None),
        };
        let sentence = |why: String| ReadFailure::Sentence(format!("the document {why}"));
        let backend = backends.pick(&[], 0);
        let backend =
            backend.ok_or_else(|| sentence("is at a server that does not answer".into()))?;
        let mut headers = HeaderMap::new();
        let accept = HeaderValue::from_static("application/json, application/yaml, */*;q=0.8");
        headers.insert(header::ACCEPT, accept);
        if let Some(etag) = self.seen().etag.clone() {
            headers.insert(header::IF_NONE_MATCH, etag);
        }
        let request = BackendRequest {
            target,
            on_behalf_of: principal.cloned(),
            ..BackendRequest::new(Method::GET, headers, Bytes::new())
        };
        let sent = backend.send(request).await;
        let mut response = sent.map_err(ReadFailure::Unsent)?;
        match response.status {
            StatusCode::NOT_MODIFIED => return Ok(DocumentText::Unchanged),
            StatusCode::OK => {}
            status if status.is_redirection() => {
                return Err(sentence(format!(
                    "was not found at its URL (HTTP {}), which leads elsewhere: write the URL where it is",
                    status.as_str()
                )));
            }
            status => {
                return Err(sentence(format!(
                    "was not found: its server answered HTTP {}",
                    status.as_str()
                )));
            }
        }
        let etag = response.headers.get(header::ETAG).cloned();
        match read(&mut response, DOCUMENT_MAX as u64, None).await {
            Ok(text) => Ok(DocumentText::Text(text, etag)),
            Err(Unread::TooLarge(_)) => Err(sentence(DocumentError::TooLarge.to_string())),
            Err(Unread::Cut(error)) => Err(sentence(format!("was not read completely: {error}"))),
            Err(Unread::NoRoom(no_room)) => Err(sentence(format!(
                "was not read: {}",
                CallError::from(no_room).message
            ))),
        }
    }
}

/// Parses a document, and builds its tools and the pages of `tools/list`.
fn load(text: &[u8], server: &RemoteServer) -> Result<LoadedApi, String> {
    let told = |error: DocumentError| format!("the document {error}");
    let spec = server.spec.api.as_ref().ok_or("the server is no API")?;
    let document = Document::parse(text).map_err(told)?;
    let base = spec.base_path(&document, &server.spec)?;
    let api = Api::read(document, &spec.settings).map_err(told)?;
    let tools = api.operations().iter().map(|it| it.tool().to_string());
    let pages = pages(tools);
    Ok(LoadedApi { api, base, pages })
}

/// Divides the definitions of tools into results of `tools/list` of about [`PAGE_MAX`] bytes each. The cursor of a page is its
/// number, from 0 on.
fn pages(tools: impl Iterator<Item = String>) -> Vec<String> {
    let mut pages = vec![String::new()];
    for tool in tools {
        if let Some(page) = pages
            .last_mut()
            .filter(|it| it.len() + tool.len() <= PAGE_MAX)
        {
            page.push_str(if page.is_empty() { "" } else { "," });
            page.push_str(&tool);
        } else if pages[0].is_empty() {
            pages[0] = tool;
        } else {
            pages.push(tool);
        }
    }
    let last = pages.len() - 1;
    let finished = pages.into_iter().enumerate();
    let finished = finished.map(|(at, tools)| match at == last {
        true => format!("{{\"tools\":[{tools}]}}"),
        false => format!("{{\"tools\":[{tools}],\"nextCursor\":\"{}\"}}", at + 1),
    });
    finished.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_large_list_is_cut_into_pages_that_lead_to_each_other() {
        let tool =
            |number: usize| json!({ "name": number, "text": "x".repeat(100_000) }).to_string();
        let pages = pages((0..5).map(tool));
        let mut names = Vec::new();
        let mut cursor = None;
        for (at, page) in pages.iter().enumerate() {
            assert!(page.len() <= PAGE_MAX + 100);
            let page: Value = serde_json::from_str(page).expect("JSON");
            let tools = page["tools"].as_array().expect("a list");
            names.extend(tools.iter().map(|it| it["name"].clone()));
            assert_eq!(cursor.unwrap_or(json!("0")), json!(at.to_string()));
            cursor = page.get("nextCursor").cloned();
        }
        assert_eq!((pages.len(), cursor), (3, None));
        assert_eq!(json!(names), json!([0, 1, 2, 3, 4]));
    }

    #[test]
    fn a_list_without_tools_and_a_tool_above_the_size_of_a_page_are_pages() {
        assert_eq!(pages(std::iter::empty()), ["{\"tools\":[]}"]);
        assert_eq!(pages(std::iter::once("x".repeat(PAGE_MAX + 1))).len(), 1);
    }
}
