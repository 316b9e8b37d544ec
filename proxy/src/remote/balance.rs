//! Chooses a usable backend for the next session or request.
//!
//! Round robin, random choice and hashing are implemented by Pingora. Their structures contain the usable backends only. They are
//! rebuilt when that set changes, so that requests are shared among the usable backends by their weights. The backend with the
//! fewest requests is found by comparing counts.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pingora_core::protocols::l4::socket::SocketAddr as PeerAddress;
use pingora_load_balancing::Backend;
use pingora_load_balancing::selection::{
    BackendIter, BackendSelection, Consistent, Random, RoundRobin,
};
use tooldock_workers::remote::{BackendId, Balance};

/// A backend that can be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Index of the backend in the pool.
    pub(super) index: usize,
    pub(super) id: BackendId,
    pub(super) weight: u32,
}

/// Current state of the candidates, read when a backend is chosen.
pub(super) trait CandidateFacts {
    /// The number of requests that the candidate is answering now.
    fn in_flight(&self, index: usize) -> usize;
    /// The fraction of its usual requests that the candidate gets: 1, or less during the slow start after it was down or ejected.
    fn share(&self, index: usize) -> f64;
}

/// The balancing method of a pool, with its candidates and its state.
pub(super) struct PoolBalancer {
    pub(super) among: Vec<Candidate>,
    by: BalancingMethod,
}

enum BalancingMethod {
    Turns(Arc<RoundRobin>),
    Chance(Arc<Random>),
    Hash(Arc<Consistent>),
    LeastBusy(AtomicUsize),
}

impl PoolBalancer {
    pub(super) fn new(balance: Balance, among: Vec<Candidate>) -> Self {
        let backends: BTreeSet<Backend> = among.iter().map(backend).collect();
        let by = match balance {
            Balance::RoundRobin => BalancingMethod::Turns(Arc::new(RoundRobin::build(&backends))),
            Balance::Random => BalancingMethod::Chance(Arc::new(Random::build(&backends))),
            Balance::Hash => BalancingMethod::Hash(Arc::new(Consistent::build(&backends))),
            Balance::LeastBusy => BalancingMethod::LeastBusy(AtomicUsize::new(0)),
        };
        Self { among, by }
    }

    /// Chooses a backend that is not in `avoid`. Returns its index in the pool; `None` if there is no such backend.
    pub(super) fn pick(
        &self,
        avoid: &[BackendId],
        hash: u64,
        facts: &dyn CandidateFacts,
    ) -> Option<usize> {
        let key = hash.to_be_bytes();
        match &self.by {
            BalancingMethod::Turns(turns) => self.first(turns.iter(&key), avoid, Some(facts)),
            BalancingMethod::Chance(chance) => self.first(chance.iter(&key), avoid, Some(facts)),
            // The slow start is ignored here: equal hashes must select the same backend, even if it was down until now.
            BalancingMethod::Hash(ring) => self.first(ring.iter(&key), avoid, None),
            BalancingMethod::LeastBusy(turn) => self.least_busy(turn, avoid, facts),
        }
    }

    fn first(
        &self,
        mut order: impl BackendIter,
        avoid: &[BackendId],
        facts: Option<&dyn CandidateFacts>,
    ) -> Option<usize> {
        // Up to twice as many attempts as candidates, because a random choice may draw the same backend several times.
        for _ in 0..2 * self.among.len() {
            let Some(&index) = order.next().and_then(|it| it.ext.get::<usize>()) else {
                break;
            };
            let avoided = self.avoided(index, avoid);
            if !avoided && facts.is_none_or(|it| fastrand::f64() < it.share(index)) {
                return Some(index);
            }
        }
        let mut rest = self.among.iter().map(|it| it.index);
        rest.find(|&index| !self.avoided(index, avoid))
    }

    fn avoided(&self, index: usize, avoid: &[BackendId]) -> bool {
        let candidate = self.among.iter().find(|it| it.index == index);
        !avoid.is_empty() && candidate.is_none_or(|it| avoid.contains(&it.id))
    }

    /// The candidate with the fewest requests in relation to its weight. Equally busy candidates are chosen by round robin.
    fn least_busy(
        &self,
        turn: &AtomicUsize,
        avoid: &[BackendId],
        facts: &dyn CandidateFacts,
    ) -> Option<usize> {
        let from = turn.fetch_add(1, Ordering::Relaxed) % self.among.len().max(1);
        let (before, after) = self.among.split_at(from);
        let in_turn = after.iter().chain(before);
        let left = in_turn.filter(|it| !avoid.contains(&it.id));
        let load = |it: &Candidate| {
            let capacity = f64::from(it.weight) * facts.share(it.index);
            // The conversion to a float is exact, because counts are far below 2^53.
            (facts.in_flight(it.index) + 1) as f64 / capacity.max(f64::MIN_POSITIVE)
        };
        left.min_by(|a, b| load(a).total_cmp(&load(b)))
            .map(|it| it.index)
    }
}

/// Converts a candidate to Pingora's type. Its address is only a hash of the backend's id and is never connected to. Since it
/// depends only on the id, hashing selects the same backend in each replica and after each reload.
fn backend(candidate: &Candidate) -> Backend {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, candidate.id.as_str()).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    let address = Ipv6Addr::from((half(0) << 64) | half(1));
    let mut ext = pingora_load_balancing::Extensions::new();
    ext.insert(candidate.index);
    Backend {
        addr: PeerAddress::Inet(SocketAddr::new(address.into(), 1)),
        weight: usize::try_from(candidate.weight).unwrap_or(usize::MAX),
        ext,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FixedFacts {
        in_flight: Vec<usize>,
        share: Vec<f64>,
    }

    impl CandidateFacts for FixedFacts {
        fn in_flight(&self, index: usize) -> usize {
            self.in_flight[index]
        }
        fn share(&self, index: usize) -> f64 {
            self.share[index]
        }
    }

    fn idle() -> FixedFacts {
        FixedFacts {
            in_flight: vec![0; 3],
            share: vec![1.0; 3],
        }
    }

    fn id(index: usize) -> BackendId {
        BackendId::new(&format!("b{index}:80"))
    }

    fn choice(balance: Balance, weights: [u32; 3]) -> PoolBalancer {
        let among = weights.into_iter().enumerate();
        let candidate = |(index, weight)| Candidate {
            index,
            id: id(index),
            weight,
        };
        PoolBalancer::new(balance, among.map(candidate).collect())
    }

    fn counts(
        choice: &PoolBalancer,
        avoid: &[BackendId],
        facts: &FixedFacts,
        picks: u64,
    ) -> [usize; 3] {
        let mut counts = [0; 3];
        for hash in 0..picks {
            counts[choice.pick(avoid, hash, facts).expect("one is left")] += 1;
        }
        counts
    }

    #[test]
    fn turns_follow_the_weights_exactly() {
        let choice = choice(Balance::RoundRobin, [1, 2, 3]);
        assert_eq!(counts(&choice, &[], &idle(), 600), [100, 200, 300]);
    }

    #[test]
    fn chance_and_hashing_follow_the_weights_roughly() {
        for balance in [Balance::Random, Balance::Hash] {
            let counts = counts(&choice(balance, [1, 1, 2]), &[], &idle(), 4000);
            for (count, expected) in counts.into_iter().zip([1000, 1000, 2000]) {
                assert!(
                    count > expected / 2 && count < expected * 2,
                    "{balance:?}: {counts:?}"
                );
            }
        }
    }

    #[test]
    fn a_hash_stays_with_its_backend_when_another_one_goes() {
        let all = choice(Balance::Hash, [1, 1, 1]);
        let among = all.among[..2].to_vec();
        let fewer = PoolBalancer::new(Balance::Hash, among);
        for hash in 0..200 {
            let before = all.pick(&[], hash, &idle());
            assert_eq!(before, all.pick(&[], hash, &idle()));
            if before != Some(2) {
                assert_eq!(fewer.pick(&[], hash, &idle()), before);
            }
        }
    }

    #[test]
    fn avoided_backends_are_not_picked_whatever_the_policy() {
        for balance in [
            Balance::RoundRobin,
            Balance::LeastBusy,
            Balance::Random,
            Balance::Hash,
        ] {
            let choice = choice(balance, [5, 1, 1]);
            let counts = counts(&choice, &[id(0), id(2)], &idle(), 50);
            assert_eq!(counts, [0, 50, 0], "{balance:?}");
            assert_eq!(
                choice.pick(&[id(0), id(1), id(2)], 7, &idle()),
                None,
                "{balance:?}"
            );
        }
    }

    #[test]
    fn the_least_busy_has_the_fewest_requests_for_its_weight() {
        let choice = choice(Balance::LeastBusy, [1, 4, 1]);
        let mut facts = idle();
        let mut given = [0; 3];
        for hash in 0..60 {
            let index = choice.pick(&[], hash, &facts).expect("one");
            facts.in_flight[index] += 1;
            given[index] += 1;
        }
        assert_eq!(given, [10, 40, 10]);
        facts.in_flight = vec![3, 7, 0];
        assert_eq!(choice.pick(&[], 0, &facts), Some(2));
    }

    #[test]
    fn a_backend_that_comes_back_gets_less_at_first() {
        for balance in [Balance::RoundRobin, Balance::Random] {
            let mut facts = idle();
            facts.share[0] = 0.1;
            let counts = counts(&choice(balance, [1, 1, 1]), &[], &facts, 3000);
            assert!(counts[0] > 0 && counts[0] < 400, "{balance:?}: {counts:?}");
        }
    }
}
