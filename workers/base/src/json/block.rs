//! Search for the special bytes of a string, many at a time.

use std::hint::black_box;

use pulp::Arch;
use wide::u8x32;

/// Number of bytes in a word.
pub(super) const WORD: usize = 8;
/// Number of bytes that are searched in one step.
pub(super) const STEP: usize = 32;
/// Number of bytes that [`plain`] checks at a time for any special byte.
pub(super) const STRIDE: usize = 128;

const LAST_CONTROL: u8 = 0x1f;

/// Bit mask of the bytes that end a string, begin an escape, or are not allowed in a string: a quote, a backslash, or a control
/// character. The lowest bit belongs to the first byte.
#[inline]
pub(super) fn specials(block: &[u8; STEP]) -> u32 {
    // Hides the origin of the bits from the compiler: otherwise it would test every byte separately instead of counting zeros,
    // in ten times the instructions.
    black_box(marks(block).to_bitmask())
}

/// The first byte of a word that [`specials`] would mark, for strings that are too short for a block.
#[inline]
pub(super) fn first_special(word: [u8; WORD]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; WORD]);
    const HIGHEST: u64 = ONES << 7;
    let bytes = u64::from_le_bytes(word);
    // The highest bit of each byte that is less, and possibly of bytes after the first such byte, because of its borrow.
    let less = |bytes: u64, than: u8| bytes.wrapping_sub(ONES * u64::from(than)) & !bytes;
    let is = |byte: u8| less(bytes ^ (ONES * u64::from(byte)), 1);
    let marks = (is(b'"') | is(b'\\') | less(bytes, b' ')) & HIGHEST;
    (marks != 0).then_some(marks.trailing_zeros() as usize / 8)
}

/// Number of bytes at the beginning without any that [`specials`] would mark, as a multiple of [`STRIDE`]. Uses the widest
/// vectors of the processor.
pub(super) fn plain(bytes: &[u8]) -> usize {
    let (strides, _) = bytes.as_chunks::<STRIDE>();
    let plain = Arch::new().dispatch(
        #[inline(always)]
        || strides.iter().position(|stride| !is_plain(stride)),
    );
    plain.unwrap_or(strides.len()) * STRIDE
}

/// Returns true if the stride has no special byte. The loop reads the whole stride, so that the compiler vectorizes it.
#[inline(always)]
fn is_plain(stride: &[u8; STRIDE]) -> bool {
    let is_special = |byte| matches!(byte, b'"' | b'\\' | ..=LAST_CONTROL);
    !stride
        .iter()
        .fold(false, |any, byte| any | is_special(*byte))
}

/// A byte of ones for each marked byte, and of zeros for all others.
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
