//! Aggregates in a reload: each configured aggregate's file becomes a namespace and is read again in every reload.

mod serve;

use std::sync::Arc;

use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::{Kind, Names, Origin};
use tooldock_base::server_failure::INVALID;

use super::run::{Change, Changes};
use super::{ReloadFailure, ReloadReport, Reloader, lock};
use crate::aggregate::{AggregateSpec, refused_nesting};
use crate::registry::{Snapshot, UpstreamKind};

pub use serve::{AggregateInputs, namespace};

/// The configured aggregates, each with the content of its file or the reason why the file cannot be used.
pub(super) type Read = Vec<(NamespaceName, Result<AggregateSpec, String>)>;

impl Reloader {
    /// Reads the files of the aggregates that are to be served under their names.
    pub(super) async fn aggregates(&self, names: &Names) -> Read {
        let configured = Arc::clone(&lock(&self.aggregates));
        let mut aggregates = Read::new();
        for (name, config) in &*configured {
            let (source, kind) = (config.source, Kind::Aggregate);
            if !names.serves(name, Origin { source, kind }) {
                continue;
            }
            let config = config.clone();
            let read = tokio::task::spawn_blocking(move || config.read()).await;
            let read = read.unwrap_or_else(|_| Err("reading the file was interrupted".into()));
            aggregates.push((name.clone(), read));
        }
        aggregates
    }
}

/// Compares the configured aggregates with the served ones, and applies the differences.
pub(super) fn settle(
    aggregates: Read,
    names: &Names,
    before: &Snapshot,
    around: &AggregateInputs<'_>,
    changes: &mut Changes,
    report: &mut ReloadReport,
) {
    for (name, read) in nested(aggregates, before) {
        if let Err(message) = &read {
            tracing::warn!(namespace = %name, "the aggregate {name} cannot be brought up to date: {message}");
            report.failed.push(ReloadFailure {
                namespace: name.to_string(),
                code: INVALID,
                message: message.clone(),
            });
        }
        let current = before.namespaces.get(&name).map(|it| &**it);
        let mut next = namespace(&name, read, current, around);
        next.issues.extend(names.issues(&name));
        if !current.is_some_and(|current| super::same_namespace(current, &next)) {
            tracing::info!(namespace = %name, "the aggregate {name} is new or has changed");
            changes.insert(name, Change::Publish(Arc::new(next)));
        }
    }
}

/// Refuses aggregates that contain each other in a circle or are nested too deep. An unusable file is represented by its
/// previous content, since that is still served.
fn nested(mut aggregates: Read, before: &Snapshot) -> Read {
    let served = |name: &NamespaceName| match &before.namespaces.get(name)?.upstream {
        UpstreamKind::Aggregate(serving) => Some(&serving.spec),
        _ => None,
    };
    let specs = aggregates.iter().filter_map(|(name, read)| {
        let spec = read.as_ref().ok().or_else(|| served(name))?;
        Some((name, spec))
    });
    let mut refused = refused_nesting(&specs.collect());
    for (name, read) in &mut aggregates {
        if let Some(reason) = refused.remove(name).filter(|_| read.is_ok()) {
            *read = Err(reason);
        }
    }
    aggregates
}
