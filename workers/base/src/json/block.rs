//! Finds the special bytes of a JSON string, many bytes at a time.

use std::hint::black_box;

use pulp::Arch;
use wide::u8x32;

/// Number of bytes that are searched as one machine word.
pub(super) const WORD: usize = 8;
/// Number of bytes of a block, which is searched for special bytes in one step.
pub(super) const STEP: usize = 32;
/// Number of bytes that [`plain`] checks in one step.
pub(super) const STRIDE: usize = 128;

const LAST_CONTROL: u8 = 0x1f;

/// Returns a bit mask of the special bytes: those that end a string (a quote), begin an escape (a backslash), or are not allowed
/// in a string (control characters). The lowest bit belongs to the first byte.
#[inline]
pub(super) fn specials(block: &[u8; STEP]) -> u32 {
    // `black_box` hides from the compiler where the bits come from. Otherwise it would test each byte separately instead of
    // counting zeros, which takes ten times the instructions.
    black_box(marks(block).to_bitmask())
}

/// Index of the first special byte in a word; `None` if there is none. Used for strings that are shorter than a block. Special
/// bytes are the same as in [`specials`].
#[inline]
pub(super) fn first_special(word: [u8; WORD]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; WORD]);
    const HIGHEST: u64 = ONES << 7;
    let bytes = u64::from_le_bytes(word);
    // Sets the highest bit of each byte that is less than `than`. Because of the borrow, bytes after the first such byte may be
    // marked, too. That does no harm, since only the first mark is used.
    let less = |bytes: u64, than: u8| bytes.wrapping_sub(ONES * u64::from(than)) & !bytes;
    let is = |byte: u8| less(bytes ^ (ONES * u64::from(byte)), 1);
    let marks = (is(b'"') | is(b'\\') | less(bytes, b' ')) & HIGHEST;
    (marks != 0).then_some(marks.trailing_zeros() as usize / 8)
}

/// Number of bytes at the beginning that contain no special byte, rounded down to a multiple of [`STRIDE`]. Uses the widest
/// vectors that the processor has.
pub(super) fn plain(bytes: &[u8]) -> usize {
    let (strides, _) = bytes.as_chunks::<STRIDE>();
    let plain = Arch::new().dispatch(
        #[inline(always)]
        || strides.iter().position(|stride| !is_plain(stride)),
    );
    plain.unwrap_or(strides.len()) * STRIDE
}

/// Returns true if the stride contains no special byte. The loop always reads the whole stride, so that the compiler can
/// vectorize it.
#[inline(always)]
fn is_plain(stride: &[u8; STRIDE]) -> bool {
    let is_special = |byte| matches!(byte, b'"' | b'\\' | ..=LAST_CONTROL);
    !stride
        .iter()
        .fold(false, |any, byte| any | is_special(*byte))
}

/// Returns a vector in which the bytes at the positions of special bytes are `0xff` and all others are 0.
#[inline(always)]
fn marks(block: &[u8; STEP]) -> u8x32 {
    let bytes = u8x32::new(*block);
    let is = |byte| bytes.simd_eq(u8x32::splat(byte));
    let is_control = bytes.min(u8x32::splat(LAST_CONTROL)).simd_eq(bytes);
    is(b'"') | is(b'\\') | is_control
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_more_than_text_is_seen_wherever_it_stands() {
        for byte in 0..=u8::MAX {
            let special = matches!(byte, b'"' | b'\\' | 0..=0x1f);
            for at in 0..STRIDE {
                for around in [b'a', 0xff, 0x20] {
                    let mut stride = [around; STRIDE];
                    stride[at] = byte;
                    let bytes = [&[b'a'; STRIDE][..], &stride, &[b'a'; STRIDE - 1]].concat();
                    let expected = if special { STRIDE } else { 2 * STRIDE };
                    assert_eq!(plain(&bytes), expected, "{byte} at {at}");
                }
            }
        }
    }

    #[test]
    fn the_first_byte_of_a_word_that_is_more_than_text_is_found() {
        for byte in 0..=u8::MAX {
            let special = matches!(byte, b'"' | b'\\' | 0..=0x1f);
            for at in 0..WORD {
                // Bytes behind it must not be found first, whatever their values, and text before it must not count.
                for (before, behind) in [
                    (b'a', b'a'),
                    (0x20, b'"'),
                    (0xff, 0),
                    (0x80, b'!'),
                    (b'#', b']'),
                ] {
                    let mut word = [before; WORD];
                    word[at + 1..].fill(behind);
                    word[at] = byte;
                    let behind_it = (at + 1 < WORD && matches!(behind, b'"' | 0)).then_some(at + 1);
                    let expected = if special { Some(at) } else { behind_it };
                    assert_eq!(first_special(word), expected, "{word:?}");
                }
            }
        }
    }

    #[test]
    fn every_byte_is_told_rightly_wherever_it_stands() {
        for byte in 0..=u8::MAX {
            let special = matches!(byte, b'"' | b'\\' | 0..=0x1f);
            for at in 0..STEP {
                for around in [b'a', b'"', 0xff, 0x20] {
                    let mut block = [around; STEP];
                    block[at] = byte;
                    let marks = specials(&block);
                    let others = if around == b'"' { !(1 << at) } else { 0 };
                    let expected = others | u32::from(special) << at;
                    assert_eq!(marks, expected, "{block:?}");
                }
            }
        }
    }
}
