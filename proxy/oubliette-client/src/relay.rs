//! The connection to the host: the calls in flight, and reconnects after the connection is lost.
//!
//! ```text
//!   connect ──▶ request the tools ──▶ read frames ──▶ lost: calls in flight fail, then a pause ──▶ connect …
//! ```
//!
//! Each call is answered exactly once, by the thread that removes it from the table of calls in flight: the thread that reads
//! the host's answer, the thread that finds the connection lost, or the thread that could not send the call.

use std::collections::HashMap;
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;

use crate::frame::{self, Call, CallResult, Incoming, Outcome};
use crate::lines::{self, InputLine};
use crate::message::Era;
use crate::options::ApiKey;
use crate::output::Output;
use crate::pause::{self, Pauses};
use crate::tools::{ToolOwner, Tools};
use crate::warning;

/// Maximum length of a frame from the host, in bytes.
const FRAME_MAX: usize = 64 * 1024 * 1024;
/// Maximum number of calls in flight; further calls fail at once. The host allows fewer on one connection.
const CALLS_MAX: usize = 256;
/// Time limit for writing one frame to the host; afterwards the connection is closed.
const SEND_TIME: Duration = Duration::from_secs(10);
/// Pauses between attempts to connect to the host.
const PAUSES: Pauses = Pauses {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(5),
};
/// Minimum duration of a connection after which the pauses between attempts to connect begin again with the shortest.
const GOOD: Duration = Duration::from_secs(10);
/// Pauses between requests for the host's tools, after a request failed on an open connection.
const ASK_PAUSES: Pauses = Pauses {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};
/// Error code of the relay for an invalid API key. The request for the tools is then not repeated on this connection.
const INVALID_KEY: i64 = -32001;

const LOST: &str = "The host closed the connection while the call was running. Whether the tool ran to its end is not known. \
                    The connection is opened again by itself: look at what is there before you call the tool again.";
const AWAY: &str = "The host is not reachable at the moment, and the tool was not called. The connection is opened again by \
                    itself: call the tool again in a few seconds.";

/// The connection to the host, which is opened again when it is lost. Clones share it.
#[derive(Clone)]
pub(crate) struct Relay(Arc<RelayConnector>);

struct RelayConnector {
    socket: PathBuf,
    key: Option<ApiKey>,
    output: Arc<Output>,
    /// The stream to which frames are written; `None` while there is no connection. The lock is held while a frame is written.
    writer: Mutex<Option<UnixStream>>,
    /// The state of the connection. The lock is never held during I/O or a wait.
    state: Mutex<RelayState>,
    changed: Condvar,
}

#[derive(Default)]
struct RelayState {
    last_id: u64,
    calls: HashMap<u64, RelayCall>,
    /// Id of the request for the host's tools while it is unanswered; `None` if there is no such request.
    asked: Option<u64>,
    ask_pause: Option<Duration>,
    tools: Tools,
    /// True if the first request for the host's tools was answered or could not be sent; the start of the program waits for this.
    looked: bool,
    connected: bool,
    /// Number of connections opened so far.
    connections: u64,
    caller_known: bool,
    /// True if the MCP client has opened a session, in which it receives notifications.
    session: bool,
    /// Ids of the `subscriptions/listen` requests that subscribe to changes of the tool list.
    listeners: Vec<Box<RawValue>>,
}

struct RelayCall {
    id: Box<RawValue>,
    era: Era,
}

impl Relay {
    /// Starts a thread that connects to the host, and reconnects for as long as the process runs.
    pub(crate) fn start(socket: PathBuf, key: Option<ApiKey>, output: Arc<Output>) -> Self {
        let shared = Arc::new(RelayConnector {
            socket,
            key,
            output,
            writer: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let relay = Self(shared);
        let keeper = relay.clone();
        let spawned = thread::Builder::new()
            .name("relay".into())
            .spawn(move || keeper.keep());
        if let Err(error) = spawned {
            warning!("no thread for the host's connection: {error}; none of its tools are offered");
            relay.state().looked = true;
        }
        relay
    }

    /// Waits until the tools were fetched or the attempt failed. Returns true if the host is connected.
    pub(crate) fn wait_for_tools(&self, limit: Duration) -> bool {
        let state = self.wait(limit, |state| state.looked);
        if !state.looked {
            warning!(
                "the host has not listed its tools within {limit:?}; they are offered when it does"
            );
        }
        state.connected
    }

    /// Waits until the host has listed the tools of the caller (which started this container), the connection is lost, or `limit`
    /// has passed.
    pub(crate) fn wait_for_caller(&self, limit: Duration) {
        drop(self.wait(limit, |state| state.caller_known || !state.connected));
    }

    /// Waits until every call in flight is answered, or `limit` has passed.
    pub(crate) fn wait_for_answers(&self, limit: Duration) {
        drop(self.wait(limit, |state| state.calls.is_empty()));
    }

    fn wait(
        &self,
        limit: Duration,
        until: impl Fn(&RelayState) -> bool,
    ) -> MutexGuard<'_, RelayState> {
        let waited = self
            .0
            .changed
            .wait_timeout_while(self.state(), limit, |state| !until(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn state(&self) -> MutexGuard<'_, RelayState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the tools for `tools/list`: a JSON array.
    pub(crate) fn tools(&self) -> String {
        self.state().tools.list()
    }

    /// Finds a tool by the name that the MCP client sees. Returns the tool's owner and its name there.
    pub(crate) fn find(&self, name: &str) -> Option<(ToolOwner, String)> {
        self.state().tools.find(name)
    }

    /// Records that the MCP client has opened a session.
    pub(crate) fn session_opened(&self) {
        self.state().session = true;
    }

    /// Records a `subscriptions/listen` request of the MCP client. Returns false if there are too many.
    pub(crate) fn listen(&self, id: &RawValue) -> bool {
        let listeners = &mut self.state().listeners;
        let room = listeners.len() < CALLS_MAX;
        if room {
            listeners.push(id.to_owned());
        }
        room
    }

    /// Sends a call to the host. The response is written to the MCP client when it arrives.
    pub(crate) fn call(&self, id: &RawValue, era: Era, call: &Call<'_>) {
        let number = {
            let mut state = self.state();
            if state.calls.len() >= CALLS_MAX {
                drop(state);
                let text = "Too many calls at once: call again when others are answered";
                return self.0.output.failed_call(id, era, text);
            }
            let number = state.next_id();
            let id = id.to_owned();
            state.calls.insert(number, RelayCall { id, era });
            number
        };
        if !self.send(&call.frame(number, self.0.key.as_ref())) {
            self.fail(number, AWAY);
        }
    }

    /// Cancels the call or the subscription with this id, which then gets no response.
    pub(crate) fn cancel(&self, id: &RawValue) {
        let number = {
            let mut state = self.state();
            state
                .listeners
                .retain(|listener| listener.get() != id.get());
            let mut calls = state.calls.iter();
            let found = calls.find(|(_, call)| call.id.get() == id.get());
            let number = found.map(|(number, _)| *number);
            if let Some(number) = number {
                state.calls.remove(&number);
            }
            number
        };
        self.0.changed.notify_all();
        if let Some(number) = number {
            self.send(&frame::cancelled(number));
        }
    }

    fn fail(&self, number: u64, text: &str) {
        let call = self.state().calls.remove(&number);
        if let Some(call) = call {
            self.0.output.failed_call(&call.id, call.era, text);
        }
        self.0.changed.notify_all();
    }

    /// Writes a frame. Returns false if it could not be written completely; the connection is then closed.
    fn send(&self, frame: &str) -> bool {
        let writer = self.0.writer.lock();
        let mut writer = writer.unwrap_or_else(PoisonError::into_inner);
        let Some(stream) = &mut *writer else {
            return false;
        };
        if stream.write_all(frame.as_bytes()).is_ok() {
            return true;
        }
        // After the shutdown, the thread that reads frames finds the end of the stream and reconnects.
        let _ = stream.shutdown(std::net::Shutdown::Both);
        *writer = None;
        false
    }

    /// Connects, serves the connection and reconnects, in an endless loop.
    fn keep(&self) {
        let mut pause = PAUSES.first;
        let mut told = false;
        loop {
            match UnixStream::connect(&self.0.socket) {
                Ok(stream) => {
                    told = false;
                    let began = Instant::now();
                    let why = self.serve(stream);
                    warning!("the connection to the host is lost: {why}; it is opened again");
                    if began.elapsed() >= GOOD {
                        pause = PAUSES.first;
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        let socket = self.0.socket.display();
                        warning!(
                            "cannot connect to {socket}: {error}; it is tried again and again"
                        );
                    }
                    self.looked(false);
                }
            }
            thread::sleep(pause::spread(pause));
            pause = PAUSES.after(pause);
        }
    }

    /// Records that the first request for the tools was answered or failed, and wakes the waiting threads.
    fn looked(&self, connected: bool) {
        let mut state = self.state();
        state.looked = true;
        state.connected = connected;
        drop(state);
        self.0.changed.notify_all();
    }

    /// Reads frames until the connection is lost, and returns the reason.
    fn serve(&self, stream: UnixStream) -> String {
        let writer = stream
            .set_write_timeout(Some(SEND_TIME))
            .and_then(|()| stream.try_clone());
        match writer {
            Ok(writer) => {
                *self.0.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer)
            }
            Err(error) => return error.to_string(),
        }
        {
            let mut state = self.state();
            state.connected = true;
            state.connections += 1;
            state.ask_pause = None;
        }
        self.ask_for_tools();
        let mut reader = BufReader::new(stream);
        let why = loop {
            match lines::next(&mut reader, FRAME_MAX) {
                Ok(Some(InputLine::Whole(line))) => self.take(&line),
                Ok(Some(InputLine::TooLong | InputLine::NotText)) => {
                    break "it sent what is no frame".to_owned();
                }
                Ok(None) => break "the host closed it".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        *self.0.writer.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let calls = {
            let mut state = self.state();
            state.connected = false;
            state.asked = None;
            std::mem::take(&mut state.calls)
        };
        for call in calls.into_values() {
            self.0.output.failed_call(&call.id, call.era, LOST);
        }
        self.looked(false);
        why
    }

    fn ask_for_tools(&self) {
        let Some(key) = &self.0.key else {
            return self.looked(true);
        };
        let number = {
            let mut state = self.state();
            let number = state.next_id();
            state.asked = Some(number);
            number
        };
        self.send(&frame::ask_for_tools(number, key));
    }

    fn take(&self, line: &str) {
        match Incoming::of(line) {
            Incoming::Answer(number, outcome) => {
                let mut state = self.state();
                if state.asked == Some(number) {
                    state.asked = None;
                    drop(state);
                    return self.take_tools(outcome);
                }
                let call = state.calls.remove(&number);
                drop(state);
                if let Some(call) = call {
                    self.answer(&call, outcome);
                }
                self.0.changed.notify_all();
            }
            Incoming::Progress => self.0.output.say(line),
            Incoming::CallerTools { caller, tools } => {
                let mut state = self.state();
                state.caller_known = true;
                let changed = state.tools.set_caller(caller, tools);
                self.announce(state, changed);
                self.0.changed.notify_all();
            }
            Incoming::Other => {}
        }
    }

    fn answer(&self, call: &RelayCall, outcome: Outcome) {
        let output = &self.0.output;
        match outcome {
            Outcome::Result(result) => match serde_json::from_str::<CallResult>(result.get()) {
                Ok(result) => output.content(&call.id, call.era, &result.content, result.is_error),
                Err(_) => output.failed_call(&call.id, call.era, "The host's answer is no result"),
            },
            Outcome::Error { message, .. } => output.failed_call(&call.id, call.era, &message),
        }
    }

    /// Handles the host's response to the request for the tools.
    fn take_tools(&self, outcome: Outcome) {
        let tools = match &outcome {
            Outcome::Result(result) => frame::tools(result),
            Outcome::Error { .. } => None,
        };
        if let Some(tools) = tools {
            let mut state = self.state();
            let changed = state.tools.set_host(tools);
            self.announce(state, changed);
            return self.looked(true);
        }
        let why = match outcome {
            Outcome::Result(_) => "the host's answer is no list of tools".to_owned(),
            Outcome::Error { code, message } => {
                if code == INVALID_KEY {
                    warning!("the host's tools could not be fetched: {message}; none are offered");
                    let mut state = self.state();
                    let changed = state.tools.set_host(Vec::new());
                    self.announce(state, changed);
                    return self.looked(true);
                }
                message
            }
        };
        let mut state = self.state();
        let pause = match state.ask_pause {
            Some(before) => ASK_PAUSES.after(before),
            None => {
                // The warning is logged once per connection.
                warning!("the host's tools could not be fetched: {why}; they are asked for again");
                ASK_PAUSES.first
            }
        };
        state.ask_pause = Some(pause);
        let connection = state.connections;
        drop(state);
        let again = self.clone();
        // At most one thread waits to repeat the request: the next one is only started after the response to this request.
        let _ = thread::Builder::new().spawn(move || {
            thread::sleep(pause);
            let state = again.state();
            let current = state.connected && state.connections == connection;
            drop(state);
            if current {
                again.ask_for_tools();
            }
        });
        self.looked(true);
    }

    /// Notifies the MCP client that the tool list has changed.
    fn announce(&self, state: MutexGuard<'_, RelayState>, changed: bool) {
        if !changed {
            return;
        }
        let session = state.session;
        let listeners = state.listeners.clone();
        drop(state);
        const METHOD: &str = "notifications/tools/list_changed";
        if session {
            let message = format!(r#"{{"jsonrpc":"2.0","method":"{METHOD}"}}"#);
            self.0.output.say(&message);
        }
        for id in listeners {
            self.0.output.say(&format!(
                r#"{{"jsonrpc":"2.0","method":"{METHOD}","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}}}"#
            ));
        }
    }
}

impl RelayState {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}
