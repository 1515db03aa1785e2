//! What ends the program with another status than 1.

use std::fmt;

/// What the user gave is wrong: an option, a configuration, a trace. The program ends with status 2.
#[derive(Debug)]
pub struct BadInput(String);

impl BadInput {
    /// An error of this text, which names the place, the value and the fix.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}
