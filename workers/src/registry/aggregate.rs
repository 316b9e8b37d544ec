//! Aggregates as they are served: their members, each a namespace.

use std::sync::Arc;

use tooldock_base::names::NamespaceName;

use super::Namespace;
use crate::aggregate::AggregateSpec;

/// A served aggregate: several servers published as one namespace.
#[derive(Debug)]
pub struct Aggregate {
    /// Content of the aggregate's file.
    pub spec: AggregateSpec,
    /// Members, in the order of the file, as many as in the spec.
    pub members: Vec<AggregateMember>,
}

/// The namespace of a member.
#[derive(Debug, Clone)]
pub enum AggregateMember {
    /// A server that only this aggregate uses. Its namespace is in no list of namespaces.
    Own(Arc<Namespace>),
    /// A namespace of the gateway, found in the current snapshot.
    Served(NamespaceName),
}

impl Aggregate {
    /// The namespace of a server that only the aggregate has, by its name.
    pub(crate) fn member(&self, name: &str) -> Option<&Arc<Namespace>> {
        let mut own = self.own_namespaces();
        own.find(|namespace| namespace.name.as_str() == name)
    }

    /// The namespaces of the servers that only the aggregate has.
    pub fn own_namespaces(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        self.members.iter().filter_map(|member| match member {
            AggregateMember::Own(namespace) => Some(namespace),
            AggregateMember::Served(_) => None,
        })
    }

    /// Returns true if the other aggregate serves the same members in the same way.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same = |(one, other): (&AggregateMember, &AggregateMember)| match (one, other) {
            (AggregateMember::Own(one), AggregateMember::Own(other)) => Arc::ptr_eq(one, other),
            (AggregateMember::Served(one), AggregateMember::Served(other)) => one == other,
            _ => false,
        };
        self.spec == other.spec
            && self.members.len() == other.members.len()
            && self.members.iter().zip(&other.members).all(same)
    }
}
