//! Comparison of the files on disk with the served namespaces: which of them need another process, and why.

use std::sync::Arc;

use tooldock_base::config::NamespacesConfig;
use tooldock_process::child::variables::worker_variables;
use tooldock_process::environment::{EnvironmentError, Toolchain};
use tooldock_process::worker::Declarations;

use super::{Change, Run};
use crate::registry::{Namespace, UpstreamKind};
use crate::reload::automatic::{FILES_CHANGED, FUNCTIONS_CHANGED, ReloadScope};
use crate::reload::lock;
use crate::reload::wanted::{
    DesiredNamespace, Identity, build_of, call_error, declared_by, noted, relimited,
};
use crate::scan::NamespaceSource;

impl Run {
    /// Compares the folders with the served namespaces. Changes that need no new process are applied directly; the namespaces
    /// that need one are returned.
    pub(super) fn want(
        &mut self,
        sources: Vec<NamespaceSource>,
        toolchain: Option<&Result<Arc<Toolchain>, EnvironmentError>>,
    ) -> Vec<DesiredNamespace> {
        let config = Arc::clone(&lock(&self.reloader.namespaces));
        let id = toolchain
            .and_then(|made| made.as_ref().ok())
            .map(|toolchain| toolchain.id.as_str());
        let mut changed = Vec::new();
        for source in sources {
            let current = self.before.namespaces.get(&source.name).cloned();
            let current = current.as_deref();
            let running = current.and_then(|current| self.running(current));
            let secrets = source.secrets(&config, &self.secrets);
            // If no toolchain is available, each worker is compared with the one that it uses, so that none is replaced.
            let own = running.as_ref().and_then(|it| it.toolchain.as_deref());
            let environment = |name: &str| std::env::var(name).ok();
            let wanted = DesiredNamespace::new(source, &config, secrets, &environment, id.or(own));
            if let Some(failure) = wanted.failure.clone() {
                self.relimit(current, running.as_ref(), &config);
                self.fail(&wanted, failure.code, call_error(&failure));
                continue;
            }
            if !wanted.source.has_code() {
                let is_empty =
                    current.is_some_and(|current| matches!(current.upstream, UpstreamKind::Empty));
                if !(is_empty && current.is_some_and(|current| wanted.is_same_as(current))) {
                    self.change(wanted.namespace(
                        current,
                        UpstreamKind::Empty,
                        &Declarations::default(),
                        &[],
                    ));
                }
                continue;
            }
            let reason = current.map_or(Some("it is new"), |current| {
                self.reason_to_replace(current, running.as_ref(), &wanted, id)
            });
            match (current, reason) {
                (Some(current), None) => {
                    self.reloader.settle(&current.name, false);
                    if !wanted.is_same_as(current) {
                        self.rewrap(current, &wanted);
                    }
                }
                (_, reason) => {
                    tracing::info!(namespace = %wanted.source.name, reason, "bringing the namespace up");
                    self.relimit(current, running.as_ref(), &config);
                    self.note_reload(current, running.as_ref(), &wanted);
                    changed.push(wanted);
                }
            }
        }
        changed
    }

    /// Returns the identity (files, settings) with which the worker or server of a folder was started; `None` for other
    /// namespaces.
    pub(super) fn running(&self, current: &Namespace) -> Option<Identity> {
        self.reloader.identity_of_upstream(&current.upstream)
    }

    /// Applies the operator's current limits to a served namespace immediately. An update of the namespace may take long, or fail
    /// because of its files, but tools and principals that the operator has excluded must be refused in any case.
    fn relimit(
        &mut self,
        current: Option<&Namespace>,
        running: Option<&Identity>,
        config: &NamespacesConfig,
    ) {
        let (Some(current), Some(running)) = (current, running) else {
            return;
        };
        if let Some(namespace) = relimited(current, running, config) {
            tracing::info!(namespace = %namespace.name, "the namespace has new limits; its processes stay");
            self.changes
                .insert(namespace.name.clone(), Change::Publish(namespace));
        }
    }

    /// Publishes the reason for an automatic reload of a namespace as an issue of the namespace, until the reload's result is
    /// known.
    fn note_reload(
        &mut self,
        current: Option<&Namespace>,
        running: Option<&Identity>,
        wanted: &DesiredNamespace,
    ) {
        let (ReloadScope::Only(_), Some(current)) = (&self.scope, current) else {
            return;
        };
        let name = &wanted.source.name;
        let code = reason_for(running, wanted);
        tracing::warn!(namespace = %name, code, "the namespace reloads itself");
        // If this run has given the namespace new limits that are not published yet, the version with these limits is used.
        let current = match self.changes.get(name) {
            Some(Change::Publish(relimited)) => relimited,
            _ => current,
        };
        if let UpstreamKind::Worker(_) = &current.upstream {
            let message = format!("{}; it is being reloaded", sentence(code));
            let noted = noted(current, code, message);
            self.changes.insert(name.clone(), Change::Publish(noted));
        }
    }

    /// Returns the reason why the serving process must be replaced; `None` if a new process would not differ from it.
    fn reason_to_replace(
        &self,
        current: &Namespace,
        running: Option<&Identity>,
        wanted: &DesiredNamespace,
        toolchain: Option<&str>,
    ) -> Option<&'static str> {
        let Some(running) = running else {
            return Some(match current.upstream {
                UpstreamKind::Worker(_) => "its worker is ending",
                _ => "nothing serves it",
            });
        };
        let (build, environment) = match &current.upstream {
            UpstreamKind::Worker(worker) => {
                let spec = worker.spec();
                (Some(build_of(&spec.python)), &spec.environment)
            }
            UpstreamKind::External(server) => match &server.folder {
                Some(folder) => (folder.environment.as_deref(), &server.spec.env),
                None => return Some("nothing serves it"),
            },
            _ => return Some("nothing serves it"),
        };
        let (variables, _) = worker_variables(build, wanted.defaults(), wanted.secrets.clone());
        let is_gone = match &current.upstream {
            UpstreamKind::Worker(worker) => {
                let spec = worker.spec();
                !spec.python.is_file() || !spec.venv.join("bin/python").is_file()
            }
            UpstreamKind::External(server) => {
                let folder = server.folder.as_ref();
                folder.is_some_and(|it| !it.packages.is_dir())
            }
            _ => false,
        };
        if !wanted.identity(toolchain).is_served_by(running) {
            Some("its files, its runtime or a limit of the process changed")
        } else if self.reloader.is_unsettled(&current.name) {
            // The files may have the scanned content again, although the process loaded other content that they had in between.
            Some("its files changed while it started")
        } else if variables != *environment {
            Some("its variables or secrets changed")
        } else if is_gone {
            // The process still runs, but without its environment it could not be started again.
            Some("its environment is gone")
        } else if matches!(&current.upstream, UpstreamKind::Worker(worker) if worker.is_outdated())
        {
            Some("a process of the namespace could not be started again unchanged")
        } else {
            None
        }
    }

    /// Publishes the namespace with new limits and the same worker or server.
    fn rewrap(&mut self, current: &Namespace, wanted: &DesiredNamespace) {
        let issues = match &current.upstream {
            UpstreamKind::Worker(worker) => {
                let declared = worker.declared();
                let declared = declared.as_deref();
                let (_, skipped) = worker_variables(
                    Some(build_of(&worker.spec().python)),
                    wanted.defaults(),
                    wanted.secrets.clone(),
                );
                let declared = declared.iter().flat_map(|declared| &declared.issues);
                declared.chain(&skipped).cloned().collect()
            }
            UpstreamKind::External(server) => {
                let found = self.reloader.folder_server(server);
                found.map_or_else(Vec::new, |(_, issues)| issues)
            }
            _ => return,
        };
        self.change(wanted.namespace(
            Some(current),
            current.upstream.clone(),
            &declared_by(current),
            &issues,
        ));
    }
}

/// Returns the code of the reason for an automatic reload of a namespace. `running` is the identity that the serving worker was
/// started with.
pub(super) fn reason_for(running: Option<&Identity>, wanted: &DesiredNamespace) -> &'static str {
    let same_files = running.is_some_and(|it| it.files_hash == wanted.source.files_hash);
    match same_files {
        true => FUNCTIONS_CHANGED,
        false => FILES_CHANGED,
    }
}

pub(super) fn sentence(code: &str) -> &'static str {
    match code {
        FUNCTIONS_CHANGED => {
            "a process of the namespace was started again and declared other functions than those listed"
        }
        _ => {
            "a process of the namespace had to be started again, and its files were no longer those that had been loaded"
        }
    }
}
