//! Served aggregates: their members, each of which is a namespace.

use std::sync::Arc;

use tooldock_base::names::NamespaceName;

use super::Namespace;
use crate::aggregate::AggregateSpec;

/// A served aggregate: several servers published as one namespace.
#[derive(Debug)]
pub struct Aggregate {
    /// Content of the aggregate's file.
    pub spec: AggregateSpec,
    /// Members, in the order of the aggregate's file; one for each member of the spec.
    pub members: Vec<AggregateMember>,
}

/// Namespace of an aggregate's member.
#[derive(Debug, Clone)]
pub enum AggregateMember {
    /// A server that belongs only to this aggregate. Its namespace is in no list of namespaces.
    Own(Arc<Namespace>),
    /// A namespace of the gateway, which is looked up by name in the current snapshot.
    Served(NamespaceName),
}

impl Aggregate {
    /// Finds the namespace of a server that belongs only to the aggregate, by its name.
    pub(crate) fn member(&self, name: &str) -> Option<&Arc<Namespace>> {
        let mut own = self.own_namespaces();
        own.find(|namespace| namespace.name.as_str() == name)
    }

    /// The namespaces of the servers that belong only to the aggregate.
    pub fn own_namespaces(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        self.members.iter().filter_map(|member| match member {
            AggregateMember::Own(namespace) => Some(namespace),
            AggregateMember::Served(_) => None,
        })
    }

    /// Returns true if both aggregates have the same members with the same settings.
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
