//! The ways into and out of a [`Config`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{ConfigError, Fault};
use crate::model::Config;
use crate::parse::{MAX_TEXT_BYTES, invalid, parse, too_long};
use crate::write::to_toml;

impl Config {
    /// The configuration in the file at `path`. Reads at most 1 MiB, and blocks while it does.
    ///
    /// # Errors
    /// [`ConfigError::Read`] if the file cannot be read, [`ConfigError::Invalid`] with every fault of its text.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let file_name = path.display().to_string();
        let mut bytes = Vec::new();
        let limit = MAX_TEXT_BYTES as u64 + 1;
        File::open(path)
            .and_then(|file| file.take(limit).read_to_end(&mut bytes))
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        if bytes.len() > MAX_TEXT_BYTES {
            return Err(invalid(&file_name, vec![too_long()]));
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => Self::parse(text, &file_name),
            Err(error) => {
                let (good, _) = bytes.split_at(error.valid_up_to());
                let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
                let fault = Fault {
                    line: Some(line),
                    key: String::new(),
                    value: String::new(),
                    bound: "must be UTF-8".to_owned(),
                    fix: "save the file as UTF-8".to_owned(),
                };
                Err(invalid(&file_name, vec![fault]))
            }
        }
    }

    /// The configuration in `text`. `file_name` names it in faults.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every fault of the text, in the order of lines.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, ConfigError> {
        parse(text, file_name)
    }

    /// Checks a configuration that was changed after it was parsed, by options of a command line for example.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every fault; `origin` stands where a file's name would, and faults have no line.
    pub fn validate(&self, origin: &str) -> Result<(), ConfigError> {
        match parse(&to_toml(self), origin) {
            Ok(_) => Ok(()),
            Err(ConfigError::Invalid { file, faults }) => {
                let faults = faults.into_iter().map(|fault| Fault { line: None, ..fault }).collect();
                Err(ConfigError::Invalid { file, faults })
            }
            Err(other) => Err(other),
        }
    }

    /// The configuration in force, every key with its value, as TOML. Parses back to an equal one, provided that it is
    /// valid and its paths are UTF-8. The primary's size is written as `blocks`, those of tiers as `capacity`.
    pub fn to_toml(&self) -> String {
        to_toml(self)
    }
}
