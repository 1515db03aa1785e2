//! What a command found and did, as text and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};
use terrace_config::Namespace;

use crate::config_cmd::human_bytes;

/// Files or objects, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub files: u64,
    pub bytes: u64,
}

/// One namespace in one place.
#[derive(Clone, Debug)]
pub struct Line {
    /// Which place.
    pub store: usize,
    tier: String,
    place: String,
    pub namespace: [u8; 32],
    /// Its fields. `None`: unknown, for it has no label.
    pub fields: Option<Namespace>,
    pub before: Amount,
    /// After an erasure.
    pub after: Option<Amount>,
}

impl Line {
    /// A line of which nothing is counted yet.
    pub fn new(store: usize, (tier, place): (&str, &str), namespace: [u8; 32], fields: Option<Namespace>) -> Self {
        let (tier, place) = (tier.to_owned(), place.to_owned());
        Self { store, tier, place, namespace, fields, before: Amount::default(), after: None }
    }

    /// The digest in hexadecimal.
    pub fn digits(&self) -> String {
        self.namespace.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn to_json(&self) -> Value {
        let mut line = json!({
            "tier": self.tier, "place": self.place, "namespace": self.digits(),
            "tenant": self.fields.as_ref().map(|fields| &fields.tenant),
            "model": self.fields.as_ref().map(|fields| &fields.model),
            "files": self.before.files, "bytes": self.before.bytes,
        });
        if let Some(after) = &self.after {
            line["left_files"] = json!(after.files);
            line["left_bytes"] = json!(after.bytes);
        }
        line
    }

    // Writing to a String cannot fail.
    fn write_text(&self, out: &mut String) {
        let tenant = match &self.fields {
            None => "unknown".to_owned(),
            Some(fields) => format!("tenant {:?}, model {:?}", fields.tenant, fields.model),
        };
        let _ = write!(
            out,
            "{} at {}: {}, {tenant}: {} files, {}",
            self.tier,
            harmless(&self.place),
            self.digits(),
            self.before.files,
            human_bytes(self.before.bytes)
        );
        let _ = match &self.after {
            None => writeln!(out),
            Some(Amount { files: 0, .. }) => writeln!(out, "; none left"),
            Some(after) => writeln!(out, "; LEFT: {} files, {}", after.files, human_bytes(after.bytes)),
        };
    }
}

/// All that a command says on stdout.
pub struct Report {
    command: &'static str,
    /// Whether anything was removed, for the command that can.
    pub applied: Option<bool>,
    pub lines: Vec<Line>,
}

impl Report {
    /// A report without lines.
    pub fn new(command: &'static str) -> Self {
        Self { command, applied: None, lines: Vec::new() }
    }

    /// Whether an erasure left anything.
    pub fn has_leftovers(&self) -> bool {
        self.lines.iter().any(|line| line.after.is_some_and(|after| after.files > 0))
    }

    /// One object. Sizes are bytes.
    pub fn to_json(&self) -> Value {
        let lines: Vec<Value> = self.lines.iter().map(Line::to_json).collect();
        let mut report = json!({ "command": self.command, "namespaces": lines });
        if let Some(applied) = self.applied {
            report["applied"] = json!(applied);
            report["left"] = json!(self.has_leftovers());
        }
        report
    }

    /// A line a namespace and place.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for line in &self.lines {
            line.write_text(&mut out);
        }
        let _ = writeln!(out, "{} namespaces", self.lines.len());
        out
    }
}

/// Nothing in a name may drive a terminal.
fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
