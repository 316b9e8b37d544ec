//! The bytes at which a string is more than its text, found many at a time.

/// Bytes looked at in one step.
pub(super) const STEP: usize = 32;
/// Bytes of which it is only asked whether there is any such byte among them, while there is none.
pub(super) const STRIDE: usize = 128;
/// Bytes of a word of marks.
pub(super) const WORD: usize = 8;

/// The highest bit of each byte.
const HIGH: u64 = u64::from_ne_bytes([0x80; WORD]);
const LOW: u64 = !HIGH;

/// The highest bit of each byte of a word that is plain text in a string, and other bits. No sum carries over to the next
/// byte, so that no byte is told by its neighbour.
#[inline(always)]
fn plain(word: u64) -> u64 {
    const QUOTE: u64 = u64::from_ne_bytes([b'"'; WORD]);
    const BACKSLASH: u64 = u64::from_ne_bytes([b'\\'; WORD]);
    const FROM_SPACE: u64 = u64::from_ne_bytes([0x80 - 0x20; WORD]);
    let differs = |from: u64| {
        let bits = word ^ from;
        ((bits & LOW) + LOW) | bits
    };
    let is_no_control = ((word & LOW) + FROM_SPACE) | word;
    differs(QUOTE) & differs(BACKSLASH) & is_no_control
}

/// The highest bit of each byte that ends a string, begins an escape, or may not stand in a string: a quote, a backslash,
/// or a control character. The lowest byte of a word is the first one's.
#[inline]
pub(super) fn specials(block: &[u8; STEP]) -> [u64; STEP / WORD] {
    let (words, _) = block.as_chunks();
    let mut marks = [0; STEP / WORD];
    for (marks, word) in marks.iter_mut().zip(words) {
        *marks = !plain(u64::from_le_bytes(*word)) & HIGH;
    }
    marks
}

/// Whether none of these bytes is one of those that [`specials`] marks.
#[inline]
pub(super) fn is_plain(stride: &[u8; STRIDE]) -> bool {
    let (words, _) = stride.as_chunks();
    // No word ends it early, so that the compiler takes several of them at once.
    let words = words.iter().map(|word| plain(u64::from_le_bytes(*word)));
    words.fold(HIGH, |all, word| all & word) == HIGH
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
                    assert_eq!(is_plain(&stride), !special, "{byte} at {at}");
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
                    for (place, byte) in
                        marks.iter().flat_map(|word| word.to_le_bytes()).enumerate()
                    {
                        let marked = if place == at { special } else { around == b'"' };
                        assert_eq!(byte, if marked { 0x80 } else { 0 }, "{block:?} at {place}");
                    }
                }
            }
        }
    }
}
