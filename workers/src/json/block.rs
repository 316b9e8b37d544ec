//! The bytes at which a string is more than its text, found many at a time.

/// Bytes looked at in one step.
pub(super) const STEP: usize = 32;
/// Bytes of a word of marks.
pub(super) const WORD: usize = 8;

/// All bits of each byte that ends a string, begins an escape, or may not stand in a string: a quote, a backslash, or a
/// control character. The lowest byte of a word is the first one's.
#[inline]
pub(super) fn specials(block: &[u8; STEP]) -> [u64; STEP / WORD] {
    // Written so that the compiler makes a few vector instructions of it.
    let mut marks = [0; STEP];
    for (mark, byte) in marks.iter_mut().zip(block) {
        let all_bits = |is: bool| u8::from(is).wrapping_neg();
        let quote = all_bits(*byte == b'"');
        let backslash = all_bits(*byte == b'\\');
        let control = all_bits(*byte < 0x20);
        *mark = quote | backslash | control;
    }
    let (words, _) = marks.as_chunks();
    let mut all = [0; STEP / WORD];
    for (all, word) in all.iter_mut().zip(words) {
        *all = u64::from_le_bytes(*word);
    }
    all
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
                    for (place, byte) in
                        marks.iter().flat_map(|word| word.to_le_bytes()).enumerate()
                    {
                        let marked = if place == at { special } else { around == b'"' };
                        assert_eq!(byte, if marked { 0xff } else { 0 }, "{block:?} at {place}");
                    }
                }
            }
        }
    }
}
