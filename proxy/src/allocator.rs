//! The allocator, and the options that it reads before `main`.
#![allow(unsafe_code)]

use tikv_jemallocator::Jemalloc;

// Frees across threads are the main cost of allocation here, and this allocator is optimized for them; its background threads
// return memory to the system after a peak.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// The interval, in allocated bytes, at which a thread checks its cache of freed memory for unneeded parts. A request allocates
/// some 30 KiB, so the default of 64 KiB means a check with every other request, which was a twentieth of the cost of a `ping`.
// SAFETY: jemalloc declares a weak `const char *` of this name, built with the prefix `_rjem_`, and reads it once. A
// reference to an array is such a pointer, and the text ends with a zero.
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: &[u8; 29] = b"tcache_gc_incr_bytes:1048576\0";
