//! Increases the capacity of pipes.

use std::os::fd::AsFd;

/// Size of a message, in bytes, from which on its pipe is widened. It is the default capacity of a pipe.
pub const LARGE: usize = 64 * 1024;
/// Capacity of a widened pipe, in bytes. The kernel allows a user without privileges 64 MiB for all pipes together.
const WIDE: usize = 256 * 1024;

/// Widens a pipe that carries large messages, so that fewer alternating reads and writes are needed for each. If the kernel
/// refuses, the capacity is not changed.
pub fn widen(pipe: impl AsFd) {
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, WIDE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_widened_pipe_holds_more_than_a_large_message() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let holds = || rustix::pipe::fcntl_getpipe_size(&reader).expect("a size");
        assert!(holds() <= LARGE);
        widen(&writer);
        assert_eq!(holds(), WIDE);
    }
}
