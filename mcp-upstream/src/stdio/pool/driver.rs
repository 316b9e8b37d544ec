//! The one task of a pool: starts and ends processes as the state machine decided, and wakes it up in time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::PoolShared;
use super::state::{Action, Event, Order, ProcessId};
use crate::stdio::process::keep::{Command, Keeper};

/// The least time between two looks at what is due: many things that are due at nearly the same time are one look.
const PULSE: Duration = Duration::from_millis(10);
/// Commands a keeper is ever sent: to open, and to end.
const COMMANDS: usize = 2;

/// The task that does what the state machine decided. Ends when the pool is retired and nothing of it is left.
pub(super) struct Driver {
    pool: Arc<PoolShared>,
    keepers: JoinSet<()>,
    /// Whose task is whose.
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

    /// Wakes up for:
    /// - something that was decided;
    /// - the time something is due;
    /// - the end of a keeper, which is the end of its process.
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
            let wake_at = wake_at.map(|at| at.max(Instant::now() + PULSE));
            tokio::select! {
                () = self.pool.wake.notified() => {}
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {
                    self.pool.apply(Event::Tick);
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
                        // Said already, unless the task broke off.
                        self.pool.apply(Event::Gone { process });
                    }
                }
            }
        }
    }

    fn obey(&mut self, action: Action) {
        match action {
            Action::Start { process, order } => self.keep(process, Some(order)),
            Action::Spare { process } => self.keep(process, None),
            Action::Adopt { process, order } => self.send(process, Command::Open(order)),
            Action::Stop { process, reason } => self.send(process, Command::Stop(reason)),
            // Those are for waiters, who were told.
            Action::Grant { .. } | Action::Refuse { .. } => {}
        }
    }

    fn keep(&mut self, id: ProcessId, order: Option<Order>) {
        if let Some(reason) = order.as_ref().and_then(|order| order.restart) {
            self.pool.launcher.restarted(reason);
        }
        let (sender, commands) = mpsc::channel(COMMANDS);
        self.commands.insert(id, sender);
        let keeper = Keeper {
            id,
            pool: Arc::clone(&self.pool),
            commands,
        };
        let task = self.keepers.spawn(keeper.run(order));
        self.tasks.insert(task.id(), id);
    }

    fn send(&mut self, process: ProcessId, command: Command) {
        if let Some(keeper) = self.commands.get(&process) {
            // There is room for all it is ever sent; if it is gone, so is its process.
            let _ = keeper.try_send(command);
        }
    }
}
