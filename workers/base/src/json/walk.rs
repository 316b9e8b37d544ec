//! Reads nested objects in one pass: a reader enters the objects that it needs and skips the others.

use std::ops::Range;

use super::scan::{DEPTH_MAX, Scan, Unread};

/// A position in a text, which moves on over text that has been read and checked.
#[derive(Debug)]
pub struct Walk<'a> {
    scan: Scan<'a>,
    /// Objects that were stepped into and have not ended.
    open: usize,
}

impl<'a> Walk<'a> {
    /// Starts at the beginning of the text.
    pub fn new(text: &'a str) -> Self {
        Self {
            scan: Scan::new(text),
            open: 0,
        }
    }

    /// Begin of the next value, after white space.
    #[inline]
    pub fn place(&mut self) -> usize {
        self.scan.peek();
        self.scan.at
    }

    /// Enters the next value if it is an object; its first key is read next. Otherwise returns false and reads nothing.
    ///
    /// # Errors
    ///
    /// The object would be nested deeper than [`DEPTH_MAX`].
    #[inline]
    pub fn step_in(&mut self) -> Result<bool, Unread> {
        if self.scan.peek() != Some(b'{') {
            return Ok(false);
        }
        if self.open == DEPTH_MAX {
            return Err(Unread);
        }
        self.open += 1;
        self.scan.at += 1;
        Ok(true)
    }

    /// The first key of the object that was entered, raw with its quotes. `None` if the object is empty.
    ///
    /// # Errors
    ///
    /// The text is not valid JSON.
    #[inline]
    pub fn first_key(&mut self) -> Result<Option<Range<usize>>, Unread> {
        if self.scan.peek() == Some(b'}') {
            return Ok(self.step_out());
        }
        self.key()
    }

    /// The key after a value of the innermost object. `None`: the object has ended.
    ///
    /// # Errors
    ///
    /// As for [`Self::first_key`].
    #[inline]
    pub fn next_key(&mut self) -> Result<Option<Range<usize>>, Unread> {
        match self.scan.peek() {
            Some(b'}') => Ok(self.step_out()),
            Some(b',') => {
                self.scan.at += 1;
                self.key()
            }
            _ => Err(Unread),
        }
    }

    /// Reads a value; returns its span without the white space around it.
    ///
    /// # Errors
    ///
    /// As for [`Self::first_key`], or the value is nested deeper than [`DEPTH_MAX`].
    #[inline]
    pub fn value(&mut self) -> Result<Range<usize>, Unread> {
        let begin = self.place();
        self.scan.value(self.open)?;
        Ok(begin..self.scan.at)
    }

    /// End of the last value, or of the last object.
    #[inline]
    pub fn end(&self) -> usize {
        self.scan.at
    }

    /// Requires that only white space remains.
    ///
    /// # Errors
    ///
    /// More text remains.
    #[inline]
    pub fn over(&mut self) -> Result<(), Unread> {
        match self.scan.peek() {
            None => Ok(()),
            Some(_) => Err(Unread),
        }
    }

    #[inline]
    fn key(&mut self) -> Result<Option<Range<usize>>, Unread> {
        let (begin, end) = self.scan.key()?;
        Ok(Some(begin..end))
    }

    #[inline]
    fn step_out(&mut self) -> Option<Range<usize>> {
        self.open -= 1;
        self.scan.at += 1;
        None
    }
}
