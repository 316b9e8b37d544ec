//! The driver: the task of a pool that starts and ends processes as the state machine decides, and sends it timer events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::PoolShared;
use super::state::{Order, PoolAction, PoolEvent, ProcessId};
use crate::pool::process::keep::{Command, ProcessTask};

/// Minimum time between two timer events. Timers that are due within it are handled together.
const WAKE_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Capacity of a keeper's command channel. A keeper is sent at most one command to open its process, and one to end it.
const COMMANDS: usize = 2;

/// The task of a pool that carries out the state machine's actions. It ends when the pool is retired and all its processes have
/// ended.
pub(super) struct Driver {
    pool: Arc<PoolShared>,
    keepers: JoinSet<()>,
    /// The process of each keeper, by the id of the keeper's task.
    tasks: HashMap<Id, ProcessId>,
    commands: HashMap<ProcessId, mpsc::Sender<Command>>,
}

impl Driver {
    pub(super) fn new(pool: Arc<PoolShared>) -> Self {
        Self {
            pool,
            keepers: JoinSet::new(),
            tasks: HashMap::new(),
            commands: HashMap::new(),
        }
    }

    /// Runs until the pool has ended. Wakes up for:
    /// - an action of the state machine;
    /// - the next timer;
    /// - the end of a keeper, and so of its process.
    pub(super) async fn run(mut self) {
        loop {
            let (actions, wake_at, over) = {
                let mut inner = self.pool.lock();
                let wake_at = inner.state.wake_at();
                let actions = std::mem::take(&mut inner.actions);
                (actions, wake_at, inner.state.is_over())
            };
            if over && actions.is_empty() && self.keepers.is_empty() {
                self.pool.over.send_replace(true);
                return;
            }
            for action in actions {
                self.obey(action);
            }
            let wake_at = wake_at.map(|at| at.max(Instant::now() + WAKE_INTERVAL_MIN));
            tokio::select! {
                () = self.pool.wake.notified() => {}
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {
                    self.pool.apply(PoolEvent::Tick);
                }
                Some(ended) = self.keepers.join_next_with_id() => {
                    let task = match ended {
                        Ok((task, ())) => task,
                        Err(error) => {
                            tracing::error!(%error, "the task of a server process failed");
                            error.id()
                        }
                    };
                    if let Some(process) = self.tasks.remove(&task) {
                        self.commands.remove(&process);
                        // The keeper has reported the end of its process already, unless its task panicked.
                        self.pool.apply(PoolEvent::Gone { process });
                    }
                }
            }
        }
    }

    fn obey(&mut self, action: PoolAction) {
        match action {
            PoolAction::Start { process, order } => self.keep(process, Some(order)),
            PoolAction::Spare { process } => self.keep(process, None),
            PoolAction::Adopt { process, order } => self.send(process, Command::Open(order)),
            PoolAction::Stop { process, reason } => self.send(process, Command::Stop(reason)),
            // `PoolShared::apply` has already answered the waiting requests.
            PoolAction::Grant { .. } | PoolAction::Refuse { .. } => {}
        }
    }

    fn keep(&mut self, id: ProcessId, order: Option<Order>) {
        if let Some(reason) = order.as_ref().and_then(|order| order.restart) {
            self.pool.launcher.restarted(reason);
        }
        let (sender, commands) = mpsc::channel(COMMANDS);
        self.commands.insert(id, sender);
        let keeper = ProcessTask {
            id,
            pool: Arc::clone(&self.pool),
            commands,
        };
        let task = self.keepers.spawn(keeper.run(order));
        self.tasks.insert(task.id(), id);
    }

    fn send(&mut self, process: ProcessId, command: Command) {
        if let Some(keeper) = self.commands.get(&process) {
            // The channel has room for all commands. If sending fails, the keeper has ended together with its process.
            let _ = keeper.try_send(command);
        }
    }
}
