//! Upgrade without a lost request: a running gateway passes its listening sockets to its successor, a process that was started
//! with `serve --upgrade` on the same data directory (REP-04).
//!
//! ```text
//!   successor                                        running gateway
//!      │── connects to upgrade.sock ───────────────────▶│
//!      │◀─ its replica's name, its listening sockets ───│ serves on
//!      │  starts all parts and accepts nothing           │
//!      │── ready ──────────────────────────────────────▶│ tells the replicas that it leaves
//!      │◀─ go ──────────────────────────────────────────│ accepts no more, ends streams with a `retry`
//!      │  accepts                                        │ answers its requests, and ends
//! ```
//!
//! A successor that fails before it is ready changes nothing. The operator needs no signal; SIGQUIT, which starts an upgrade in
//! other programs, is only logged.
//!
//! A gateway that stops after SIGTERM closes its client addresses immediately, and answers its last requests for up to
//! `replicas.grace`. Meanwhile a `serve` without `--upgrade` on the same data directory can replace it, over the same kind of
//! channel. For that, the socket of a stopping gateway has another name, and only the listening sockets that the gateway still
//! serves are passed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use tokio::sync::mpsc;
use tooldock_base::data_dir::replica_file_name;
use tooldock_base::gateway_process::GatewayProcess;
use tooldock_base::listening;
use tooldock_process::child::left_behind;

use self::channel::{Channel, ChannelListener};
use crate::config::{Effective, ListenAddress, ProfileName, Role};
use crate::sockets::BoundSocket;

mod channel;

/// Packet with which a successor reports that it can serve.
const READY: &[u8] = b"ready";

/// Packet with which a gateway reports that it accepts no more connections. An earlier packet with the same content marks the
/// end of the list of sockets.
const GO: &[u8] = b"go";

/// First packet to a process that cannot become the successor, because another one is starting or has already started.
const BUSY: &[u8] = b"busy";

/// Beginning of the first packet to a successor. The name of the gateway's replica follows.
const NAME: &str = "replica ";

/// Pause after a connection that failed or was refused. It prevents that a process that connects repeatedly fills the log or uses
/// a whole CPU core.
const PAUSE: Duration = Duration::from_secs(1);

/// Time limit for receiving the message of `report_stopped`. The running gateway needs only a fraction of this time to announce
/// its shutdown to the replicas.
const GO_TIME: Duration = Duration::from_secs(10);

/// Maximum time for which a start without `--upgrade` waits for a running gateway to react to a stop signal sent just before.
const SIGNAL_TIME: Duration = Duration::from_secs(1);

/// Pause between two attempts to connect to a gateway that stops.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Beginning of the file name of a running gateway's socket for successors.
const RUNNING: &str = "upgrade";

/// Beginning of the file name of a stopping gateway's socket for successors.
const STOPPING: &str = "stopping";

/// Path of the socket at which a gateway with this configuration waits for successors. `beginning` is [`RUNNING`] or
/// [`STOPPING`].
fn socket_path(effective: &Effective, beginning: &str) -> PathBuf {
    let name = match (effective.role, effective.shared_as()) {
        (Role::Manager, _) => format!("{beginning}-manager.sock"),
        (Role::All | Role::Core, None) => format!("{beginning}.sock"),
        (Role::All | Role::Core, Some(replica)) => {
            format!("{beginning}.{}.sock", replica_file_name(replica))
        }
    };
    effective.data_dir.join(name)
}

/// Connects to the gateway to replace: the running or stopping gateway with the same name, or else the only gateway that runs on
/// the data directory.
fn connect(effective: &Effective) -> anyhow::Result<Channel> {
    let own = socket_path(effective, RUNNING);
    let refused = match Channel::connect(&own) {
        Ok(channel) => return Ok(channel),
        Err(error) => error,
    };
    if let Ok(channel) = Channel::connect(&socket_path(effective, STOPPING)) {
        return Ok(channel);
    }
    let others = match effective.role {
        Role::All | Role::Core => others(&effective.data_dir, &own),
        Role::Manager => Vec::new(),
    };
    let mut running: Vec<_> = others
        .into_iter()
        .filter_map(|path| Some((Channel::connect(&path).ok()?, path)))
        .collect();
    match (running.pop(), running.is_empty()) {
        (Some((channel, _)), true) => Ok(channel),
        (Some(_), false) => Err(anyhow!(
            "--upgrade: several gateways run on this data directory: set REPLICA_ID (replicas.id) to the name of the one to take over from"
        )),
        (None, _) => Err(anyhow!(
            "--upgrade: no running gateway can be reached at {}: {refused}; start without --upgrade where none runs on this data directory",
            own.display()
        )),
    }
}

/// Paths of the sockets of running gateways with other names than `own`.
fn others(data_dir: &Path, own: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data_dir).into_iter().flatten().flatten();
    let is_of_a_core = |name: &str| {
        let middle = name
            .strip_prefix(RUNNING)
            .and_then(|it| it.strip_suffix("sock"));
        middle.is_some_and(|it| it.starts_with('.'))
    };
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_of_a_core))
        .map(|entry| entry.path())
        .filter(|path| path != own)
        .collect()
}

/// The gateway that this process replaces, with the channel to it.
pub(crate) struct Predecessor {
    channel: Channel,
    /// Name of the replica that this process replaces.
    pub(crate) replica: String,
    /// True if the replaced gateway is stopping and accepts no clients any more; false if it still serves.
    pub(crate) stops: bool,
}

/// A listening socket with its address, as it is passed from a gateway to its successor.
pub(crate) type PassedListener = (ListenAddress, BoundSocket);

impl Predecessor {
    /// Connects to the gateway that runs on the data directory, and receives its listening sockets.
    ///
    /// # Errors
    ///
    /// When no gateway runs there, several gateways run there, or another successor is being started.
    pub(crate) fn connect(effective: &Effective) -> anyhow::Result<(Self, Vec<PassedListener>)> {
        let (predecessor, handed) = Self::greet(connect(effective)?, false)?;
        tracing::info!(
            sockets = handed.len(),
            "upgrade: the listening sockets of the running gateway are here; it serves until this one is ready"
        );
        Ok((predecessor, handed))
    }

    /// Connects to the stopping gateway of the same name that still answers requests, and receives the sockets that it still
    /// serves. `None` if there is no such gateway.
    pub(crate) fn of_stopping_gateway(
        effective: &Effective,
    ) -> Option<(Self, Vec<PassedListener>)> {
        let stopping = socket_path(effective, STOPPING);
        let running = socket_path(effective, RUNNING);
        let deadline = Instant::now() + SIGNAL_TIME;
        let channel = loop {
            if let Ok(channel) = Channel::connect(&stopping) {
                break channel;
            }
            // The running gateway may have received a stop signal just before. Its socket is then renamed soon, so the loop
            // waits a short time for that.
            let may_stop = running.exists() && listening::process(&effective.data_dir).is_some();
            if !may_stop || Instant::now() >= deadline {
                return None;
            }
            thread::sleep(LOOK_EVERY);
        };
        let greeted = trusted(&channel, effective).and_then(|()| Self::greet(channel, true));
        let greeted = greeted.inspect_err(|error| {
            tracing::warn!("the gateway that stops is not succeeded: {error}")
        });
        let (predecessor, handed) = greeted.ok()?;
        tracing::info!(
            "the gateway before stops and still answers requests; this one accepts connections as soon as it is ready"
        );
        Some((predecessor, handed))
    }

    /// Receives the replica name and the listening sockets of the gateway that this process replaces.
    fn greet(channel: Channel, stops: bool) -> anyhow::Result<(Self, Vec<PassedListener>)> {
        let failed = |error| {
            anyhow!("--upgrade: the running gateway did not hand over its sockets: {error}")
        };
        // This sets the time limit of the channel, which also applies to the following packets.
        let first = channel.receive_within(GO_TIME).map_err(failed)?;
        if first == BUSY {
            return Err(anyhow!(
                "--upgrade: another process that takes over from the running gateway is not ready yet: try again when it is"
            ));
        }
        let first = String::from_utf8_lossy(&first).into_owned();
        let replica = first
            .strip_prefix(NAME)
            .ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?
            .to_owned();
        let mut handed = Vec::new();
        loop {
            match channel.receive().map_err(failed)? {
                (address, Some(socket)) => handed.extend(named(&address, socket)),
                (end, None) if end == GO => break,
                (_, None) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
            }
        }
        let predecessor = Self {
            channel,
            replica,
            stops,
        };
        Ok((predecessor, handed))
    }

    /// Reports that this process can serve, and waits until the replaced gateway accepts no more connections. If that gateway has
    /// ended meanwhile, this is not an error.
    pub(crate) fn relieve(self) {
        let told = self.channel.send(READY, None);
        let answered = told.and_then(|()| self.channel.receive_within(GO_TIME));
        match answered {
            Ok(_) => tracing::info!(
                "upgrade: this gateway accepts connections in place of the one before"
            ),
            Err(error) => tracing::warn!(
                %error,
                "upgrade: the gateway before did not say that it accepts no more connections; this one accepts them now"
            ),
        }
    }
}

/// Pairs a received socket with its address. A socket is skipped with a warning if its address is of an unknown kind, as from
/// another version, or if it is bound elsewhere: a process that impersonates the gateway has no socket at the gateway's address.
fn named(address: &[u8], socket: OwnedFd) -> Option<PassedListener> {
    let text = String::from_utf8_lossy(address);
    let parsed = text.parse::<ListenAddress>();
    let taken = parsed.map_err(io::Error::other).and_then(|address| {
        let socket = BoundSocket::at(&address, socket)?;
        Ok((address, socket))
    });
    taken
        .inspect_err(|error| tracing::warn!("upgrade: the socket for {text} is not used: {error}"))
        .ok()
}

/// The listening sockets of this gateway, which a successor can request.
#[derive(Clone)]
pub(crate) struct Offer(Arc<OfferState>);

struct OfferState {
    path: PathBuf,
    /// Path to which the channel's socket is renamed when this gateway stops.
    stopping: PathBuf,
    replica: String,
    /// The listening sockets to pass. Sockets on which this gateway no longer accepts are removed: as long as a handle is open,
    /// the kernel would accept connections that no process serves.
    sockets: Mutex<Vec<PassedListener>>,
    /// True when this gateway has bound the channel's socket. Until then, the file may be that of the replaced gateway.
    bound: AtomicBool,
    /// True when a successor has been ready. No other successor is accepted after that.
    succeeded: AtomicBool,
    /// Addresses that are served until this gateway ends or its successor is ready, even while the gateway stops.
    served_to_the_end: Vec<ListenAddress>,
    /// True while a successor is starting. Other processes that connect are then refused.
    busy: AtomicBool,
    ready: mpsc::Sender<Successor>,
}

/// A successor that has reported that it is ready to serve.
pub(crate) struct Successor(Channel);

impl Successor {
    /// Reports to the successor that this gateway no longer accepts connections.
    pub(crate) fn report_stopped(self) {
        if let Err(error) = self.0.send(GO, None) {
            tracing::warn!(%error, "upgrade: the successor could not be told to accept connections");
        }
    }
}

impl Offer {
    /// Creates the offer of `sockets` to a successor. The returned receiver yields the successor when it is ready.
    pub(crate) fn new(
        effective: &Effective,
        replica: &str,
        sockets: Vec<PassedListener>,
    ) -> (Self, mpsc::Receiver<Successor>) {
        // The queue has room for one successor, because only one can follow this gateway.
        let (ready, successors) = mpsc::channel(1);
        let monitored = effective
            .served_listeners()
            .filter(|(_, listener)| listener.profile == ProfileName::Metrics)
            .map(|(_, listener)| listener.address.clone());
        let replicas = effective.replica_address();
        let replicas = replicas.map(|(_, address)| ListenAddress::Tcp(address));
        let offered = OfferState {
            path: socket_path(effective, RUNNING),
            stopping: socket_path(effective, STOPPING),
            replica: replica.to_owned(),
            sockets: Mutex::new(sockets),
            bound: AtomicBool::new(false),
            succeeded: AtomicBool::new(false),
            served_to_the_end: monitored.chain(replicas).collect(),
            busy: AtomicBool::new(false),
            ready,
        };
        (Self(Arc::new(offered)), successors)
    }

    /// Starts to listen for successors, on separate threads. A failure is logged, and the gateway serves its clients
    /// nevertheless.
    pub(crate) fn start(&self) {
        let offered = Arc::clone(&self.0);
        let bound = ChannelListener::bind(&self.0.path).and_then(|listener| {
            offered.bound.store(true, Ordering::Release);
            let thread = thread::Builder::new().name("upgrade".into());
            thread.spawn(move || offered.accept(&listener)).map(drop)
        });
        if let Err(error) = bound {
            let path = self.0.path.display();
            tracing::warn!(%error, "{path}: cannot be bound, so `serve --upgrade` cannot take over from this gateway");
        }
    }

    /// Closes this gateway's copies of the listening sockets, which were kept for a successor.
    pub(crate) fn close(&self) {
        self.0.sockets().clear();
    }

    /// Changes the offer for a stopping gateway: only the sockets that it still serves remain, and processes started without
    /// `--upgrade` can receive them, too.
    pub(crate) fn stop(&self) {
        let offered = &self.0;
        offered
            .sockets()
            .retain(|(address, _)| offered.served_to_the_end.contains(address));
        if !offered.bound.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = std::fs::rename(&offered.path, &offered.stopping) {
            tracing::debug!(%error, "a start must wait until this gateway has ended");
        }
    }
}

impl OfferState {
    fn accept(self: Arc<Self>, listener: &ChannelListener) {
        loop {
            let channel = match listener.accept() {
                Ok(channel) => channel,
                Err(error) => {
                    tracing::warn!(%error, "upgrade: a successor could not connect");
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            if let Err(reason) = is_successor(&channel) {
                tracing::warn!("upgrade: a process is refused the listening sockets: {reason}");
                drop(channel);
                thread::sleep(PAUSE);
                continue;
            }
            if self.busy.swap(true, Ordering::AcqRel) {
                let _ = channel.send(BUSY, None);
                continue;
            }
            let offered = Arc::clone(&self);
            let serving = thread::Builder::new()
                .name("successor".into())
                .spawn(move || {
                    let handed = offered.hand_to(channel);
                    offered.busy.store(false, Ordering::Release);
                    if let Err(error) = handed {
                        tracing::warn!(%error, "upgrade: the successor ended before it was ready; this gateway goes on");
                    }
                });
            if serving.is_err() {
                self.busy.store(false, Ordering::Release);
            }
        }
    }

    fn hand_to(&self, channel: Channel) -> io::Result<()> {
        if self.succeeded.load(Ordering::Acquire) {
            return channel.send(BUSY, None);
        }
        tracing::info!("upgrade: a successor starts; this gateway serves until it is ready");
        // The sockets are cloned and the lock is released before they are sent. Otherwise a successor that does not read would
        // delay the drain.
        let sockets: Vec<_> = {
            let sockets = self.sockets();
            let cloned = sockets.iter();
            cloned
                .map(|(address, socket)| Ok((address.to_string(), socket.try_clone()?)))
                .collect::<io::Result<_>>()?
        };
        channel.send(format!("{NAME}{}", self.replica).as_bytes(), None)?;
        for (address, socket) in &sockets {
            channel.send(address.as_bytes(), Some(socket.as_fd()))?;
        }
        drop(sockets);
        channel.send(GO, None)?;
        if channel.receive()?.0 != READY {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // An error means that the gateway is stopping already. The channel is then closed, and the successor continues without
        // `report_stopped`.
        self.succeeded.store(true, Ordering::Release);
        let _ = self.ready.try_send(Successor(channel));
        Ok(())
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<PassedListener>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns an error if the process at the other end may not be the stopping gateway: it belongs to another user, or it is not
/// the gateway that is recorded in the data directory. The record is checked only for gateways that do not share their data
/// directory, because a shared directory records only the gateway that started most recently.
fn trusted(channel: &Channel, effective: &Effective) -> anyhow::Result<()> {
    let peer = channel.peer()?;
    let is_noted = || {
        let noted = listening::process(&effective.data_dir);
        let pid = peer.pid.map(|it| it.as_raw_nonzero().get());
        noted.is_some_and(|noted| Some(noted.pid()) == pid)
    };
    let is_alone = effective.role != Role::Manager && effective.shared_as().is_none();
    if !is_of_gateway_user(peer.uid) || is_alone && !is_noted() {
        return Err(anyhow!("another process listens in its place"));
    }
    Ok(())
}

/// Returns an error for processes of other users and for processes that this gateway has started: tools run as the same user and
/// must not get the sockets.
fn is_successor(channel: &Channel) -> Result<(), String> {
    let peer = channel
        .peer()
        .map_err(|error| format!("its credentials are unknown: {error}"))?;
    if !is_of_gateway_user(peer.uid) {
        return Err(format!("it runs as user {}", peer.uid));
    }
    match peer.pid {
        None => Err("it runs in another PID namespace (another container)".into()),
        Some(pid) if left_behind::has_started(GatewayProcess::this(), pid) => {
            Err("this gateway has started it".into())
        }
        Some(_) => Ok(()),
    }
}

/// Returns true if the user is that of this process or root.
fn is_of_gateway_user(uid: u32) -> bool {
    uid == rustix::process::getuid().as_raw() || uid == 0
}

/// The folder of a socket's path. An error if the path has none.
fn folder_of(path: &Path) -> io::Result<&Path> {
    path.parent()
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
