//! Reads nested JSON objects in one pass. The caller enters the objects that it needs and skips the others.

use std::ops::Range;

use super::scan::{DEPTH_MAX, InvalidJson, Scan};

/// A position in a text. All text before it has been read and checked.
#[derive(Debug)]
pub struct Walk<'a> {
    scan: Scan<'a>,
    /// Number of objects that were entered and have not ended.
    open: usize,
}

impl<'a> Walk<'a> {
    /// Creates a position at the beginning of the text.
    pub fn new(text: &'a str) -> Self {
        Self {
            scan: Scan::new(text),
            open: 0,
        }
    }

    /// Skips white space, and returns the position at which the next value begins.
    #[inline]
    pub fn place(&mut self) -> usize {
        self.scan.peek();
        self.scan.at
    }

    /// Enters the next value if it is an object; its first key must be read next. Otherwise returns false and reads nothing.
    ///
    /// # Errors
    ///
    /// The object would be nested deeper than [`DEPTH_MAX`].
    #[inline]
    pub fn step_in(&mut self) -> Result<bool, InvalidJson> {
        if self.scan.peek() != Some(b'{') {
            return Ok(false);
        }
        if self.open == DEPTH_MAX {
            return Err(InvalidJson);
        }
        self.open += 1;
        self.scan.at += 1;
        Ok(true)
    }

    /// Reads the first key of an object that was just entered. Returns its span, including the quotes; `None` if the object is
    /// empty.
    ///
    /// # Errors
    ///
    /// The text is not valid JSON.
    #[inline]
    pub fn first_key(&mut self) -> Result<Option<Range<usize>>, InvalidJson> {
        if self.scan.peek() == Some(b'}') {
            return Ok(self.step_out());
        }
        self.key()
    }

    /// Reads the next key of the innermost object, after a value. Returns its span; `None` if the object has ended.
    ///
    /// # Errors
    ///
    /// As for [`Self::first_key`].
    #[inline]
    pub fn next_key(&mut self) -> Result<Option<Range<usize>>, InvalidJson> {
        match self.scan.peek() {
            Some(b'}') => Ok(self.step_out()),
            Some(b',') => {
                self.scan.at += 1;
                self.key()
            }
            _ => Err(InvalidJson),
        }
    }

    /// Reads a value. Returns its span without the white space around it.
    ///
    /// # Errors
    ///
    /// As for [`Self::first_key`], or the value is nested deeper than [`DEPTH_MAX`].
    #[inline]
    pub fn value(&mut self) -> Result<Range<usize>, InvalidJson> {
        let begin = self.place();
        self.scan.value(self.open)?;
        Ok(begin..self.scan.at)
    }

    /// The position after the last value or object that was read.
    #[inline]
    pub fn end(&self) -> usize {
        self.scan.at
    }

    /// Returns an error if anything but white space remains.
    ///
    /// # Errors
    ///
    /// More text remains.
    #[inline]
    pub fn over(&mut self) -> Result<(), InvalidJson> {
        match self.scan.peek() {
            None => Ok(()),
            Some(_) => Err(InvalidJson),
        }
    }

    #[inline]
    fn key(&mut self) -> Result<Option<Range<usize>>, InvalidJson> {
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
