//! The memory allocator, and the options that it reads before `main`.
#![allow(unsafe_code)]

use tikv_jemallocator::Jemalloc;

// The gateway frees much memory in another thread than the one that allocated it, and jemalloc is optimized for that. Its
// background threads return memory to the system after a peak.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// The number of allocated bytes after which a thread looks for unneeded memory in its cache. A request allocates about 30 KiB,
/// so the default of 64 KiB means a check for every second request, which took a twentieth of the CPU time of a `ping`. SAFETY:
/// jemalloc declares a weak `const char *` of this name, built with the prefix `_rjem_`, and reads it once. A reference to an
/// array is such a pointer, and the text ends with a zero byte.
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: &[u8; 29] = b"tcache_gc_incr_bytes:1048576\0";
