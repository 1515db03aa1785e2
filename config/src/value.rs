//! Checked values of single keys, and how each is written in TOML and JSON.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use crate::units::{format_duration, format_size};

/// A value that kept the bounds of its [`Form`](crate::form::Form).
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Flag(bool),
    Count(u64),
    /// Bytes.
    Size(u64),
    Share(f64),
    Time(Duration),
    Word(&'static str),
    Text(String),
    /// A text known at compile time: the default of a key.
    PlainText(&'static str),
    Texts(Vec<String>),
    Path(PathBuf),
    /// A path known at compile time: the default of a key.
    PlainPath(&'static str),
    Paths(Vec<PathBuf>),
}

impl Value {
    /// The value as a TOML literal. Paths that are no UTF-8 are written with replacement characters.
    pub fn to_toml(&self) -> String {
        match self {
            Self::Flag(flag) => flag.to_string(),
            Self::Count(count) => count.to_string(),
            Self::Size(bytes) => quoted(&format_size(*bytes)),
            // Debug keeps the point: `1.0` is a float, `1` would be an integer.
            Self::Share(share) => format!("{share:?}"),
            Self::Time(duration) => quoted(&format_duration(*duration)),
            Self::Word(word) => quoted(word),
            Self::Text(text) => quoted(text),
            Self::PlainText(text) => quoted(text),
            Self::Texts(texts) => format!("[{}]", texts.iter().map(|t| quoted(t)).collect::<Vec<_>>().join(", ")),
            Self::Path(path) => quoted(&path.to_string_lossy()),
            Self::PlainPath(path) => quoted(path),
            Self::Paths(paths) => {
                let paths: Vec<String> = paths.iter().map(|path| quoted(&path.to_string_lossy())).collect();
                format!("[{}]", paths.join(", "))
            }
        }
    }

    /// The value as it stands in the schema.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Flag(flag) => json!(flag),
            Self::Count(count) => json!(count),
            Self::Size(bytes) => json!(format_size(*bytes)),
            Self::Share(share) => json!(share),
            Self::Time(duration) => json!(format_duration(*duration)),
            Self::Word(word) => json!(word),
            Self::Text(text) => json!(text),
            Self::PlainText(text) => json!(text),
            Self::Texts(texts) => json!(texts),
            Self::Path(path) => json!(path.to_string_lossy()),
            Self::PlainPath(path) => json!(path),
            Self::Paths(paths) => json!(paths.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>()),
        }
    }
}

/// `text` as a TOML basic string.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
