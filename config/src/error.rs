//! What is wrong with a configuration.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The text was read, and every fault in it was found.
    #[error("{}", Report(file, faults))]
    Invalid {
        /// The file, as the caller named it.
        file: String,
        /// All faults in the order of their lines; at least one.
        faults: Vec<Fault>,
    },
    /// A word that is none of a list, given outside of a file.
    #[error("\"{word}\" is none of: {}", words.join(", "))]
    UnknownWord {
        /// The word.
        word: String,
        /// What it could have been.
        words: &'static [&'static str],
    },
}

impl ConfigError {
    /// All faults in the order of their lines; empty for errors that are not about a text.
    pub fn faults(&self) -> &[Fault] {
        match self {
            Self::Invalid { faults, .. } => faults,
            Self::Read { .. } | Self::UnknownWord { .. } => &[],
        }
    }
}

/// One fault of a configuration: where, what, the rule, and what to write instead.
///
/// Prints as one line, `limits.pin_share = 1.5: must be a number from 0.0 to 1.0; write at most 1.0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line in the file, from 1. `None` if the configuration did not come from a file.
    pub line: Option<usize>,
    /// Path of the key, `primary.capacity` or `tier[0].paths[1]` (tiers and elements count from 0). Empty if the fault
    /// is the TOML's or the file's.
    pub key: String,
    /// The value as it was written, cut at 60 characters; the line if it is no TOML. Empty if nothing is written.
    pub value: String,
    /// The rule that is broken, `must be a whole number from 1 to 64`.
    pub bound: String,
    /// What to do, `write 32`.
    pub fix: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.key.as_str(), self.value.as_str()) {
            ("", "") => {}
            ("", text) | (text, "") => write!(f, "{text}: ")?,
            (key, value) => write!(f, "{key} = {value}: ")?,
        }
        write!(f, "{}; {}", self.bound, self.fix)
    }
}

/// A headline, then one line a fault in the form that editors jump to.
struct Report<'a>(&'a str, &'a [Fault]);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(file, faults) = self;
        let noun = if faults.len() == 1 { "fault" } else { "faults" };
        write!(f, "{file}: {} {noun}", faults.len())?;
        for fault in *faults {
            match fault.line {
                Some(line) => write!(f, "\n{file}:{line}: {fault}")?,
                None => write!(f, "\n{file}: {fault}")?,
            }
        }
        Ok(())
    }
}
