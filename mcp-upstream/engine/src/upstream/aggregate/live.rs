//! A running aggregate: its members, and the catalogue of their current offers.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures_util::future::join_all;
use tooldock_base::names::NamespaceName;
use tooldock_sessions::catalogue::ToolList;
use tooldock_sessions::session::Toolset;
use tooldock_workers::aggregate::ActivationScope;
use tooldock_workers::registry::Aggregate;

use super::catalogue::{Catalogue, EntryKind};
use super::member::MemberSlot;
use super::own::{self, CatalogueView};
use super::state::CatalogueOffer;
use super::toolsets::SharedSets;

/// A running aggregate, for as long as its configuration is unchanged.
pub(super) struct RunningAggregate {
    pub(super) name: NamespaceName,
    pub(super) aggregate: Arc<Aggregate>,
    /// The members, in the order of the aggregate's file.
    pub(super) slots: Vec<Arc<MemberSlot>>,
    /// The catalogue that was built last, with the offers from which it was built.
    built: Mutex<Option<BuiltCatalogue>>,
    /// Warnings about the catalogue that were already logged, so that only new ones are logged.
    warned: Mutex<HashSet<String>>,
    /// The active sets that the aggregate stores for principals or for all clients. They survive a reload of the configuration.
    pub(super) sets: Arc<SharedSets>,
}

#[derive(Clone)]
struct BuiltCatalogue {
    offers: Vec<CatalogueOffer>,
    catalogue: Arc<Catalogue>,
    version: u64,
    /// All tools of the catalogue, for looking up the tool of a call. Built on first use.
    tools: Arc<OnceLock<Arc<ToolList>>>,
}

impl RunningAggregate {
    /// Creates an aggregate with these members. It takes over the active sets and the logged warnings of its previous version.
    pub(super) fn new(
        name: NamespaceName,
        aggregate: Arc<Aggregate>,
        slots: Vec<Arc<MemberSlot>>,
        before: Option<&Self>,
    ) -> Self {
        let warned = before.map(|before| {
            let warned = before.warned.lock();
            warned.unwrap_or_else(PoisonError::into_inner).clone()
        });
        Self {
            name,
            aggregate,
            slots,
            built: Mutex::default(),
            warned: Mutex::new(warned.unwrap_or_default()),
            sets: before.map_or_else(Arc::default, |before| Arc::clone(&before.sets)),
        }
    }

    /// The catalogue of the members' current offers.
    pub(super) fn catalogue(&self) -> Arc<Catalogue> {
        self.built().catalogue
    }

    /// Publishes a member's offer with `publish` and builds the new catalogue now, so that no request builds it on a message
    /// thread.
    pub(super) fn publishing(&self, publish: impl FnOnce()) {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        publish();
        self.build(&mut built);
    }

    fn built(&self) -> BuiltCatalogue {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        self.build(&mut built)
    }

    /// Builds the catalogue of the members' current offers; returns the existing catalogue if the offers are unchanged.
    fn build(&self, built: &mut Option<BuiltCatalogue>) -> BuiltCatalogue {
        let offers: Vec<_> = self.slots.iter().map(|slot| slot.offered()).collect();
        if let Some(built) = &*built
            && same_offers(&built.offers, &offers)
        {
            return built.clone();
        }
        let version = built.as_ref().map_or(1, |built| built.version + 1);
        let spec = &self.aggregate.spec;
        let (catalogue, warnings) = Catalogue::new(spec, &offers, &own::names(&spec.options));
        self.warn(warnings);
        let catalogue = Arc::new(catalogue);
        let next = BuiltCatalogue {
            offers,
            catalogue,
            version,
            tools: Arc::default(),
        };
        *built = Some(next.clone());
        next
    }

    /// All tools, active or not, for looking up calls. This list is not shown to callers.
    pub(super) fn tool_list(&self) -> Arc<ToolList> {
        let built = self.built();
        let list = built.tools.get_or_init(|| {
            let options = &self.aggregate.spec.options;
            // Only the description of `toolman_activate` contains the catalogue's text, and calls do not read that description.
            // So a view without entries is sufficient.
            let nothing = CatalogueView {
                catalogue: &built.catalogue,
                toolset: &Toolset::default(),
                visible: &|_| false,
            };
            let own = own::names(options).into_iter();
            let own = own.map(|name| own::definition(name, &nothing, options, "").to_string());
            let tools = built.catalogue.of(EntryKind::Tool);
            let tools = tools.map(|entry| entry.definition.to_string());
            let page: Vec<_> = own.chain(tools).collect();
            let page = format!(r#"{{"tools":[{}]}}"#, page.join(","));
            Arc::new(ToolList::listed(built.version, &page.into()))
        });
        Arc::clone(list)
    }

    /// Version number of the current catalogue. A list that was built for the same version is still current.
    pub(super) fn version(&self) -> u64 {
        self.built().version
    }

    /// Logs those warnings about the offers that were not logged before.
    fn warn(&self, warnings: Vec<String>) {
        let aggregate = &self.name;
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        for warning in warnings.iter().filter(|it| !warned.contains(*it)) {
            tracing::warn!(%aggregate, "{aggregate}: {warning}");
        }
        *warned = warnings.into_iter().collect();
    }

    /// Waits until each member has an offer, has failed, or exceeds its time limit.
    pub(super) async fn settled(&self) {
        join_all(self.slots.iter().map(|slot| slot.settled())).await;
    }

    pub(super) fn scope(&self) -> ActivationScope {
        let options = &self.aggregate.spec.options;
        options.activation_scope.unwrap_or(ActivationScope::Session)
    }
}

fn same_offers(one: &[CatalogueOffer], other: &[CatalogueOffer]) -> bool {
    let same = |(one, other): (&CatalogueOffer, &CatalogueOffer)| {
        let offers = match (&one.offer, &other.offer) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        offers && one.now == other.now
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}
