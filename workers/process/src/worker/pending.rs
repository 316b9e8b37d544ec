//! The calls that a peer (a worker or a stdio server) has not answered yet: ids, completion and cancellation. Uses no channels
//! and no I/O.
//!
//! The entries are in a slab. An id consists of the index of a slot and the number of times the slot was used, so finding an
//! entry is one index operation, and a late or repeated response never matches the next call in the same slot. Ids stay below
//! 2^53, up to which every JSON reader is exact. Id 0 is never used.

/// Number of bits of a call's id that contain the slot's index; the other bits count the slot's uses.
const INDEX_BITS: u32 = 16;
/// Maximum number of concurrently pending calls of one connection.
pub const PENDING_MAX: usize = 1 << INDEX_BITS;
const USES_MAX: u64 = (1 << (53 - INDEX_BITS)) - 1;
const NO_SLOT: u32 = u32::MAX;

/// All pending calls of one connection.
#[derive(Debug)]
pub struct Pending<T> {
    slots: Vec<Slot<T>>,
    /// Index of the first free slot; free slots form a linked list.
    free: u32,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    /// Number of times that the slot was used, including a current use.
    uses: u64,
    content: Content<T>,
}

#[derive(Debug)]
enum Content<T> {
    Taken(T),
    Free { next: u32 },
}

/// The reason why an answer of a worker belongs to no pending call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPendingCall {
    /// The id was used by a call that was cancelled or answered before.
    Over,
    /// The id was never used by a call.
    Unknown,
}

impl<T> Pending<T> {
    /// Creates a table without pending calls.
    pub fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: NO_SLOT,
            len: 0,
        }
    }

    /// Number of pending calls.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no call is pending.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stores an entry under a new id; `None` when [`PENDING_MAX`] entries are stored already.
    pub fn insert(&mut self, entry: T) -> Option<u64> {
        let index = if self.free == NO_SLOT {
            if self.slots.len() == PENDING_MAX {
                return None;
            }
            self.slots.push(Slot {
                uses: 0,
                content: Content::Free { next: NO_SLOT },
            });
            u32::try_from(self.slots.len() - 1).expect("bounded by PENDING_MAX")
        } else {
            self.free
        };
        let slot = &mut self.slots[index as usize];
        if let Content::Free { next } = slot.content {
            self.free = next;
        }
        slot.uses = if slot.uses == USES_MAX {
            1
        } else {
            slot.uses + 1
        };
        slot.content = Content::Taken(entry);
        self.len += 1;
        Some(slot.uses << INDEX_BITS | u64::from(index))
    }

    /// Returns the entry of a pending call.
    ///
    /// # Errors
    ///
    /// [`NoPendingCall`], when no call with this id is pending.
    pub fn get(&self, id: u64) -> Result<&T, NoPendingCall> {
        let (slot, uses) = self.slot(id).ok_or(NoPendingCall::Unknown)?;
        match &slot.content {
            Content::Taken(entry) if slot.uses == uses => Ok(entry),
            _ => Err(unmatched(slot, uses)),
        }
    }

    /// Returns the entry of a pending call for changes.
    ///
    /// # Errors
    ///
    /// [`NoPendingCall`], when no call with this id is pending.
    pub fn get_mut(&mut self, id: u64) -> Result<&mut T, NoPendingCall> {
        let slot = self.slots.get_mut(index_of(id) as usize);
        let slot = slot.ok_or(NoPendingCall::Unknown)?;
        if slot.uses != id >> INDEX_BITS || matches!(slot.content, Content::Free { .. }) {
            return Err(unmatched(slot, id >> INDEX_BITS));
        }
        match &mut slot.content {
            Content::Taken(entry) => Ok(entry),
            Content::Free { .. } => Err(NoPendingCall::Over),
        }
    }

    /// Removes the entry of a pending call, and returns it.
    ///
    /// # Errors
    ///
    /// [`NoPendingCall`], when no call with this id is pending.
    pub fn remove(&mut self, id: u64) -> Result<T, NoPendingCall> {
        self.get(id)?;
        let index = index_of(id);
        let free = Content::Free { next: self.free };
        match std::mem::replace(&mut self.slots[index as usize].content, free) {
            Content::Taken(entry) => {
                self.free = index;
                self.len -= 1;
                Ok(entry)
            }
            Content::Free { .. } => Err(NoPendingCall::Over),
        }
    }

    /// The entries of all pending calls.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| match &slot.content {
            Content::Taken(entry) => Some(entry),
            Content::Free { .. } => None,
        })
    }

    /// Removes the entries of all pending calls, and returns them.
    pub fn drain(&mut self) -> Vec<T> {
        let slots = std::mem::take(self).slots;
        slots
            .into_iter()
            .filter_map(|slot| match slot.content {
                Content::Taken(entry) => Some(entry),
                Content::Free { .. } => None,
            })
            .collect()
    }

    fn slot(&self, id: u64) -> Option<(&Slot<T>, u64)> {
        let slot = self.slots.get(index_of(id) as usize)?;
        Some((slot, id >> INDEX_BITS))
    }
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self::new()
    }
}

fn index_of(id: u64) -> u32 {
    u32::try_from(id & (PENDING_MAX as u64 - 1)).expect("masked to INDEX_BITS")
}

fn unmatched<T>(slot: &Slot<T>, uses: u64) -> NoPendingCall {
    if uses == 0 || uses > slot.uses {
        NoPendingCall::Unknown
    } else {
        NoPendingCall::Over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_taken_out_once_and_its_id_is_never_the_next_one() {
        let mut pending = Pending::new();
        let first = pending.insert("a").expect("empty");
        assert_eq!(pending.get(first), Ok(&"a"));
        assert_eq!(pending.get_mut(first), Ok(&mut "a"));
        assert_eq!(pending.remove(first), Ok("a"));
        assert_eq!(pending.remove(first), Err(NoPendingCall::Over));
        let second = pending.insert("b").expect("empty");
        assert_ne!(first, second);
        assert_eq!(pending.remove(first), Err(NoPendingCall::Over));
        assert_eq!(pending.get_mut(first), Err(NoPendingCall::Over));
        assert_eq!(pending.remove(second), Ok("b"));
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn ids_nobody_gave_out_are_unknown() {
        let mut pending = Pending::new();
        let id = pending.insert(()).expect("empty");
        for unknown in [0, 1, id + 1, id + (1 << INDEX_BITS), u64::MAX] {
            assert_eq!(pending.get_mut(unknown), Err(NoPendingCall::Unknown));
            assert_eq!(
                pending.remove(unknown),
                Err(NoPendingCall::Unknown),
                "{unknown}"
            );
        }
        assert_eq!(pending.len(), 1);
    }

    #[test]
    fn ids_stay_exact_in_json_when_a_slot_was_used_as_often_as_can_be() {
        let mut pending = Pending::new();
        let id = pending.insert(0).expect("empty");
        pending.remove(id).expect("pending");
        pending.slots[0].uses = USES_MAX - 1;
        let last = pending.insert(1).expect("empty");
        assert!(last < 1 << 53);
        pending.remove(last).expect("pending");
        let wrapped = pending.insert(2).expect("empty");
        assert_eq!(wrapped >> INDEX_BITS, 1);
    }

    #[test]
    fn holds_a_bounded_number_and_gives_back_all_of_them() {
        let mut pending = Pending::new();
        let ids: Vec<u64> = (0..PENDING_MAX)
            .map(|entry| pending.insert(entry).expect("not full yet"))
            .collect();
        assert_eq!(pending.insert(0), None);
        assert_eq!(pending.remove(ids[7]), Ok(7));
        assert!(pending.insert(7).is_some());
        assert_eq!(pending.drain().len(), PENDING_MAX);
        assert_eq!(pending.len(), 0);
    }
}
