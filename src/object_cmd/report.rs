//! What a command found, as text and as JSON.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use terrace_tiers::object::admin::{Problem, SegmentLine};

use super::figures::{Figure, Row, date};
use crate::config_cmd::human_bytes;

/// All that a command says on stdout.
pub struct Report {
    command: &'static str,
    tier: String,
    url: String,
    /// Whether the bucket was changed, for commands that can.
    pub applied: Option<bool>,
    /// One a namespace.
    pub entries: Vec<Entry>,
}

/// One namespace.
pub struct Entry {
    namespace: String,
    figures: Vec<Row>,
    segments: Option<Vec<SegmentLine>>,
    problems: Option<(Vec<Problem>, u64)>,
}

impl Entry {
    /// A namespace of which nothing is said yet.
    pub fn new(namespace: String) -> Self {
        Self { namespace, figures: Vec::new(), segments: None, problems: None }
    }

    /// With rows.
    pub fn with_figures(self, figures: Vec<Row>) -> Self {
        Self { figures, ..self }
    }

    /// With its segments.
    pub fn with_segments(self, segments: Vec<SegmentLine>) -> Self {
        Self { segments: Some(segments), ..self }
    }

    /// With what is wrong, and the number of problems that were not kept.
    pub fn with_problems(self, problems: Vec<Problem>, more: u64) -> Self {
        Self { problems: Some((problems, more)), ..self }
    }

    fn to_json(&self) -> Value {
        let mut entry = Map::new();
        entry.insert("namespace".to_owned(), json!(self.namespace));
        entry.extend(self.figures.iter().map(|(name, figure)| ((*name).to_owned(), figure.to_json())));
        if let Some(segments) = &self.segments {
            entry.insert("segments".to_owned(), segments.iter().map(segment_json).collect());
        }
        if let Some((problems, more)) = &self.problems {
            let problem = |problem: &Problem| json!({ "object": problem.object, "what": problem.what });
            entry.insert("problems".to_owned(), problems.iter().map(problem).collect());
            entry.insert("more_problems".to_owned(), json!(more));
        }
        Value::Object(entry)
    }

    // Writing to a String cannot fail.
    fn write_text(&self, out: &mut String) {
        let _ = writeln!(out, "{}", self.namespace);
        for (name, figure) in &self.figures {
            let name = name.strip_suffix("_ms").unwrap_or(name).replace('_', " ");
            let _ = writeln!(out, "  {name:<16} {}", figure.to_text());
        }
        for segment in self.segments.iter().flatten() {
            let SegmentLine { id, blocks, bytes, created, last_used } = segment;
            let (bytes, created, used) = (human_bytes(*bytes), date(*created), date(*last_used));
            let _ = writeln!(out, "  {id}  {blocks:>6} blocks  {bytes:>10}  written {created}  used {used}");
        }
        if let Some((problems, more)) = &self.problems {
            for Problem { object, what } in problems {
                let _ = writeln!(out, "  problem: {}: {}", harmless(object), harmless(what));
            }
            let _ = match (problems.len(), more) {
                (0, 0) => writeln!(out, "  no problems"),
                (_, 0) => Ok(()),
                (_, more) => writeln!(out, "  and {more} more problems"),
            };
        }
    }
}

impl Report {
    /// A report without namespaces.
    pub fn new(command: &'static str, tier: String, url: String) -> Self {
        Self { command, tier, url, applied: None, entries: Vec::new() }
    }

    /// Whether anything is wrong in any namespace.
    pub fn has_problems(&self) -> bool {
        self.entries.iter().filter_map(|entry| entry.problems.as_ref()).any(|(all, more)| !all.is_empty() || *more > 0)
    }

    /// One object. Sizes are bytes, times milliseconds since 1970-01-01 UTC.
    pub fn to_json(&self) -> Value {
        let entries: Vec<Value> = self.entries.iter().map(Entry::to_json).collect();
        let mut report = json!({ "command": self.command, "tier": self.tier, "url": self.url, "namespaces": entries });
        if let Some(applied) = self.applied {
            report["applied"] = json!(applied);
        }
        report
    }

    /// Lines for people.
    pub fn to_text(&self) -> String {
        let mut out = format!("{} at {}: {} namespaces\n", self.tier, harmless(&self.url), self.entries.len());
        self.entries.iter().for_each(|entry| entry.write_text(&mut out));
        out
    }
}

fn segment_json(segment: &SegmentLine) -> Value {
    json!({
        "id": segment.id.to_string(),
        "blocks": segment.blocks,
        "bytes": segment.bytes,
        "created": Figure::Time(Some(segment.created)).to_json(),
        "last_used": Figure::Time(Some(segment.last_used)).to_json(),
    })
}

/// Names of objects are whatever somebody put into the bucket: nothing in them may drive a terminal.
fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_tiers::object::{SegmentId, Stamp, WriterId};

    fn report() -> Report {
        let segment = SegmentLine {
            id: SegmentId { writer: WriterId(0xa), number: 2 },
            blocks: 3,
            bytes: 3 << 20,
            created: Stamp(1000),
            last_used: Stamp(2000),
        };
        let problem = Problem { object: "x\u{1b}[31m".to_owned(), what: "is gone".to_owned() };
        let mut report = Report::new("fsck", "object".to_owned(), "s3://abc/x".to_owned());
        report.entries.push(Entry::new("aa".to_owned()).with_segments(vec![segment]));
        report.entries.push(Entry::new("bb".to_owned()).with_figures(vec![("snapshot_age_ms", Figure::Age(None))]));
        report.entries.push(Entry::new("cc".to_owned()).with_problems(vec![problem], 7));
        report
    }

    #[test]
    fn text_is_for_people() {
        let want = "\
object at s3://abc/x: 3 namespaces
aa
  000000000000000a-0000000000000002       3 blocks     3.0 MiB  written 1970-01-01 00:00:01  used 1970-01-01 00:00:02
bb
  snapshot age     -
cc
  problem: x\u{fffd}[31m: is gone
  and 7 more problems
";
        assert_eq!(report().to_text(), want);
        assert!(report().has_problems());
    }

    #[test]
    fn json_has_every_value() {
        let mut report = report();
        report.applied = Some(false);
        let want = json!({
            "command": "fsck", "tier": "object", "url": "s3://abc/x", "applied": false,
            "namespaces": [
                { "namespace": "aa", "segments": [{
                    "id": "000000000000000a-0000000000000002", "blocks": 3, "bytes": 3 << 20, "created": 1000, "last_used": 2000,
                }] },
                { "namespace": "bb", "snapshot_age_ms": null },
                { "namespace": "cc", "problems": [{ "object": "x\u{1b}[31m", "what": "is gone" }], "more_problems": 7 },
            ],
        });
        assert_eq!(report.to_json(), want);
        report.entries.truncate(2);
        assert!(!report.has_problems());
    }
}
