//! Limits of the memory and time that a document may take. A small document with many references to a large value reaches them,
//! too.

use std::cell::Cell;

use serde_json::Value;

/// Cost of a JSON value in a budget, in bytes, in addition to the length of its strings and keys.
const VALUE_COST: usize = 64;

/// Number of bytes that may still be copied or inspected.
pub(crate) struct Budget(Cell<usize>);

/// Error of a budget that is spent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Spent;

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Cell::new(bytes))
    }

    /// Takes `bytes` from the budget. Fails if fewer are left; the budget is empty after that.
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), Spent> {
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.unwrap_or_default());
        left.map(drop).ok_or(Spent)
    }

    /// Takes the size of a value from the budget. Stops at the first part that exceeds the budget, so that the time is limited,
    /// too.
    pub(crate) fn charge_value(&self, value: &Value) -> Result<(), Spent> {
        self.charge(VALUE_COST)?;
        match value {
            Value::String(text) => self.charge(text.len()),
            Value::Array(items) => items.iter().try_for_each(|it| self.charge_value(it)),
            Value::Object(members) => members.iter().try_for_each(|(key, it)| {
                self.charge(key.len())?;
                self.charge_value(it)
            }),
            _ => Ok(()),
        }
    }

    /// Copies a value, and takes its size from the budget.
    pub(crate) fn copied(&self, value: &Value) -> Result<Value, Spent> {
        self.charge_value(value)?;
        Ok(value.clone())
    }
}
