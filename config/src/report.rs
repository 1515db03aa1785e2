//! Faults as they are found, and where each key stands in the text.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::error::Fault;
use crate::secrets::{self, NOT_SHOWN, masked};

/// Characters of a value that a fault shows.
const EXCERPT_CHARS: usize = 60;

/// Collects the faults of one text.
pub(crate) struct Report<'t> {
    text: &'t str,
    /// Byte offset of each line's start.
    line_starts: Vec<usize>,
    marks: HashMap<String, Mark>,
    bad: HashSet<String>,
    syntax_lines: HashSet<usize>,
    /// Lines whose keys and values cannot be believed.
    broken_lines: HashSet<usize>,
    faults: Vec<Fault>,
}

/// Where a key stands. `value` is what a fault shows.
#[derive(Clone)]
pub(crate) struct Mark {
    pub line: usize,
    pub value: String,
}

impl<'t> Report<'t> {
    pub fn new(text: &'t str) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self {
            text,
            line_starts,
            marks: HashMap::new(),
            bad: HashSet::new(),
            syntax_lines: HashSet::new(),
            broken_lines: HashSet::new(),
            faults: Vec::new(),
        }
    }

    /// The line, from 1, that holds byte `offset`.
    pub fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset).max(1)
    }

    /// What a fault shows of the text at `span`: its first line, cut.
    pub fn excerpt(&self, span: Range<usize>) -> String {
        cut(masked(self.text.get(span).unwrap_or("")))
    }

    /// Remembers where the key `path` stands.
    pub fn mark(&mut self, path: String, mark: Mark) {
        self.marks.insert(path, mark);
    }

    /// Whether the value of every key of `paths` kept its own bounds.
    pub fn good(&self, paths: &[&str]) -> bool {
        paths.iter().all(|path| !self.bad.contains(*path))
    }

    /// Whether the key `path` is written.
    pub fn marked(&self, path: &str) -> bool {
        self.marks.contains_key(path)
    }

    /// A fault of the key `path`, which has been marked; else it is shown without a value at the mark of its table.
    pub fn fault(&mut self, path: &str, bound: impl Into<String>, fix: impl Into<String>) {
        let mark = self.marks.get(path).cloned().unwrap_or_else(|| {
            let table = path.rsplit_once('.').and_then(|(table, _)| self.marks.get(table));
            Mark { line: table.map_or(1, |mark| mark.line), value: String::new() }
        });
        self.bad.insert(path.to_owned());
        self.push(mark.line, cut(path), mark.value, bound.into(), fix.into());
    }

    /// A fault of the TOML itself. One a line is enough: the parser's later ones often follow from the first.
    /// `readable`: the line still says what was meant, so that its values are checked too.
    pub fn syntax(&mut self, offset: usize, message: &str, readable: bool, fix: String) {
        let line = self.line(offset);
        if !readable {
            self.broken_lines.insert(line);
        }
        if self.syntax_lines.insert(line) {
            let start = self.line_starts.get(line - 1).copied().unwrap_or(0);
            let text = self.text.get(start..).unwrap_or("").lines().next().unwrap_or("");
            // The fix would repeat the secret.
            let (text, fix) = match masked(text) {
                NOT_SHOWN => (NOT_SHOWN, secrets::FIX.to_owned()),
                text => (text, fix),
            };
            self.push(line, String::new(), cut(text), shown(message), fix);
        }
    }

    /// All faults in the order of their lines. Of a line that cannot be read, only that is told.
    pub fn finish(self) -> Vec<Fault> {
        let Self { mut faults, broken_lines, .. } = self;
        faults.retain(|fault| fault.key.is_empty() || fault.line.is_none_or(|line| !broken_lines.contains(&line)));
        faults.sort_by_key(|fault| fault.line);
        faults
    }

    fn push(&mut self, line: usize, key: String, value: String, bound: String, fix: String) {
        self.faults.push(Fault { line: Some(line), key, value, bound, fix: shown(&fix) });
    }
}

/// The first line of `text`, cut, with nothing in it that could drive a terminal.
fn cut(text: &str) -> String {
    let mut lines = text.trim().lines();
    let first = lines.next().unwrap_or("").trim_end();
    let mut out = shown(&first.chars().take(EXCERPT_CHARS).collect::<String>());
    if first.chars().nth(EXCERPT_CHARS).is_some() || lines.next().is_some() {
        out.push_str("...");
    }
    out
}

fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_to_lines() {
        let report = Report::new("a\nbc\n\nd");
        for (offset, line) in [(0, 1), (1, 1), (2, 2), (4, 2), (5, 3), (6, 4), (7, 4), (99, 4)] {
            assert_eq!(report.line(offset), line, "{offset}");
        }
        assert_eq!(Report::new("").line(0), 1);
    }

    #[test]
    fn excerpts_are_short_and_harmless() {
        assert_eq!(cut("  [\n1,\n2]"), "[...");
        assert_eq!(cut("\u{1b}[31m"), "\u{fffd}[31m");
        assert_eq!(cut(&"é".repeat(61)), format!("{}...", "é".repeat(60)));
    }
}
