//! The members of one object, in their order.

use super::scan::{Scan, Unread};

/// A member of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member<'a> {
    /// Its raw key, quotes included.
    pub(super) key: &'a str,
    /// Its raw value, without white space around it.
    pub(super) value: &'a str,
}

/// The text of a raw string that has no escapes.
pub(super) fn plain(raw: &str) -> Option<&str> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    // Keys are short.
    (!inner.bytes().any(|byte| byte == b'\\')).then_some(inner)
}

/// Reads one object and nothing else. A key may come twice.
#[derive(Debug)]
pub(super) struct Members<'a> {
    text: &'a str,
    scan: Scan<'a>,
    next: Next,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    First,
    Other,
    Nothing,
}

impl<'a> Members<'a> {
    /// Of this text, unless it cannot be an object.
    ///
    /// # Errors
    ///
    /// It does not begin with a brace.
    pub(super) fn of(text: &'a str) -> Result<Self, Unread> {
        let mut scan = Scan::new(text);
        scan.expect(b'{')?;
        let next = Next::First;
        Ok(Self { text, scan, next })
    }

    /// The next member, read to its end. Nothing comes after the last, so that with `None` the whole text has been read.
    ///
    /// # Errors
    ///
    /// The text is no JSON, nested too deep, or goes on after the object. The members before it mean nothing then.
    pub(super) fn next_member(&mut self) -> Result<Option<Member<'a>>, Unread> {
        let scan = &mut self.scan;
        match (self.next, scan.peek()) {
            (Next::Nothing, _) => return Ok(None),
            (_, Some(b'}')) => {
                scan.at += 1;
                if scan.peek().is_some() {
                    return Err(Unread);
                }
                self.next = Next::Nothing;
                return Ok(None);
            }
            (Next::First, _) => self.next = Next::Other,
            (Next::Other, _) => scan.expect(b',')?,
        }
        let (begin, end) = scan.key()?;
        let key = self.text.get(begin..end).ok_or(Unread)?;
        scan.peek();
        let begin = scan.at;
        scan.value(1)?;
        let value = self.text.get(begin..scan.at).ok_or(Unread)?;
        Ok(Some(Member { key, value }))
    }

    /// Whether the whole text has been read, and is an object.
    pub(super) fn is_over(&self) -> bool {
        self.next == Next::Nothing
    }
}
