//! The bytes at which a string is more than its text, found many at a time.

use wide::u8x32;

/// Bytes looked at in one step.
pub(super) const STEP: usize = 32;

/// A bit for each byte that ends a string, begins an escape, or may not stand in a string: a quote, a backslash, or a
/// control character. The lowest bit is the first byte's.
#[inline]
pub(super) fn specials(block: &[u8; STEP]) -> u32 {
    let bytes = u8x32::new(*block);
    let quotes = bytes.simd_eq(u8x32::splat(b'"'));
    let backslashes = bytes.simd_eq(u8x32::splat(b'\\'));
    let controls = bytes.min(u8x32::splat(0x1f)).simd_eq(bytes);
    (quotes | backslashes | controls).to_bitmask()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_told_rightly_wherever_it_stands() {
        for byte in 0..=u8::MAX {
            let special = matches!(byte, b'"' | b'\\' | 0..=0x1f);
            for at in 0..STEP {
                for around in [b'a', b'"', 0xff, 0x20] {
                    let mut block = [around; STEP];
                    block[at] = byte;
                    let marks = specials(&block);
                    for (place, _) in block.iter().enumerate() {
                        let marked = if place == at { special } else { around == b'"' };
                        assert_eq!(marks >> place & 1 == 1, marked, "{block:?} at {place}");
                    }
                }
            }
        }
    }
}
