//! Request traces in the Mooncake format: JSON lines in order of arrival, plain or compressed with zstd.
//!
//! `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [..]}`; other fields are ignored. The file is
//! read as a stream: memory holds one line, whatever the file's length.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use serde::Deserialize;

use super::source::{Arrival, Progress, Source};
use crate::failure::BadInput;

/// Longest line that is read: a request of a million blocks fits.
pub const MAX_LINE_BYTES: usize = 32 << 20;
/// Largest zstd window: what `zstd --long=27` writes.
const WINDOW_LOG_MAX: u32 = 27;
/// First bytes of every zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Lines looked at to tell how many tokens a block has.
const PROBED_LINES: usize = 64;

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// A trace file being read.
pub struct TraceFile {
    path: PathBuf,
    input: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    line_number: u64,
    tokens_per_block: u32,
    probed: VecDeque<Arrival>,
    read_bytes: Arc<AtomicU64>,
    file_bytes: u64,
}

impl TraceFile {
    /// Opens a trace. `tokens_per_block` 0: told from its first lines, as the power of two that fits all of them.
    pub fn open(path: &Path, tokens_per_block: u32) -> Result<Self> {
        let fault = |error: io::Error| BadInput::new(format!("{}: cannot open this trace: {error}", path.display()));
        let file = File::open(path).map_err(fault)?;
        let file_bytes = file.metadata().map_err(fault)?.len();
        let read_bytes = Arc::new(AtomicU64::new(0));
        let mut raw = BufReader::with_capacity(1 << 16, Counted { inner: file, read_bytes: Arc::clone(&read_bytes) });
        let compressed = raw.fill_buf().map_err(fault)?.starts_with(&ZSTD_MAGIC);
        let input: Box<dyn BufRead + Send> = if compressed {
            let mut decoder = zstd::Decoder::with_buffer(raw).map_err(fault)?;
            decoder.window_log_max(WINDOW_LOG_MAX).map_err(fault)?;
            Box::new(BufReader::with_capacity(1 << 17, decoder))
        } else {
            Box::new(raw)
        };
        let mut trace = Self {
            path: path.to_path_buf(),
            input,
            line: Vec::new(),
            line_number: 0,
            tokens_per_block,
            probed: VecDeque::new(),
            read_bytes,
            file_bytes,
        };
        if tokens_per_block == 0 {
            trace.probe()?;
        }
        Ok(trace)
    }

    fn probe(&mut self) -> Result<()> {
        let mut most = 1;
        while self.probed.len() < PROBED_LINES {
            let Some((arrival, input_tokens)) = self.read()? else { break };
            if !arrival.block_ids.is_empty() {
                let tokens = input_tokens.div_ceil(arrival.block_ids.len() as u64);
                let fits = tokens.checked_next_power_of_two().and_then(|tokens| u32::try_from(tokens).ok());
                most = most.max(fits.ok_or_else(|| {
                    self.fault(format!(
                        "a block would have {tokens} tokens: give --tokens-per-block, or mend input_length"
                    ))
                })?);
            }
            self.probed.push_back(arrival);
        }
        self.tokens_per_block = most;
        Ok(())
    }

    /// The next request and its prompt's tokens.
    fn read(&mut self) -> Result<Option<(Arrival, u64)>> {
        loop {
            self.line.clear();
            let limit = MAX_LINE_BYTES as u64 + 1;
            let read = (&mut self.input).take(limit).read_until(b'\n', &mut self.line);
            self.line_number += 1;
            let length = read.map_err(|error| self.fault(format!("cannot read on: {error}")))?;
            if length == 0 {
                return Ok(None);
            }
            if length > MAX_LINE_BYTES {
                return Err(self.fault(format!("the line has more than {MAX_LINE_BYTES} bytes")).into());
            }
            if !self.line.trim_ascii().is_empty() {
                return self.parse().map(Some);
            }
        }
    }

    fn parse(&self) -> Result<(Arrival, u64)> {
        let line: Line = serde_json::from_slice(&self.line).map_err(|error| {
            // serde_json counts lines inside this one line: keep its column, name our line.
            let text = error.to_string();
            let reason = text.split(" at line ").next().unwrap_or_default().to_owned();
            self.fault(format!("column {}: {reason}", error.column()))
        })?;
        if !(0.0..=1e15).contains(&line.timestamp) {
            return Err(self.fault(format!("timestamp {} is not in 0..=1e15 ms", line.timestamp)).into());
        }
        let Ok(output_tokens) = u32::try_from(line.output_length) else {
            return Err(self.fault(format!("output_length {} does not fit 32 bits", line.output_length)).into());
        };
        Ok((Arrival { timestamp_ms: line.timestamp, output_tokens, block_ids: line.hash_ids }, line.input_length))
    }

    fn fault(&self, reason: String) -> BadInput {
        BadInput::new(format!("{}:{}: {reason}", self.path.display(), self.line_number))
    }
}

impl Source for TraceFile {
    fn next_arrival(&mut self) -> Result<Option<Arrival>> {
        match self.probed.pop_front() {
            Some(arrival) => Ok(Some(arrival)),
            None => Ok(self.read()?.map(|(arrival, _)| arrival)),
        }
    }

    fn tokens_per_block(&self) -> u32 {
        self.tokens_per_block
    }

    fn progress(&self) -> Progress {
        Progress { done: self.read_bytes.load(Ordering::Relaxed), total: self.file_bytes }
    }
}

/// Counts the bytes that pass.
struct Counted<R> {
    inner: R,
    read_bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.read_bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = concat!(
        r#"{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}"#,
        "\n\n",
        r#"{"timestamp": 27, "session": "a", "input_length": 1, "output_length": 6, "hash_ids": [0], "more": [{}]}"#,
    );

    fn file(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        std::fs::write(&path, content).unwrap();
        (folder, path)
    }

    fn all(path: &Path) -> Result<Vec<Arrival>> {
        let mut trace = TraceFile::open(path, 0)?;
        let mut arrivals = Vec::new();
        while let Some(arrival) = trace.next_arrival()? {
            arrivals.push(arrival);
        }
        Ok(arrivals)
    }

    #[test]
    fn plain_and_compressed_read_the_same() {
        let (_folder, path) = file(TWO.as_bytes());
        let plain = all(&path).unwrap();
        assert_eq!(plain.len(), 2);
        assert_eq!(plain[1], Arrival { timestamp_ms: 27.0, output_tokens: 6, block_ids: vec![0] });
        assert_eq!(TraceFile::open(&path, 0).unwrap().tokens_per_block(), 512);
        assert_eq!(TraceFile::open(&path, 16).unwrap().tokens_per_block(), 16);

        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(27).unwrap();
        std::io::Write::write_all(&mut encoder, TWO.as_bytes()).unwrap();
        std::fs::write(&path, encoder.finish().unwrap()).unwrap();
        assert_eq!(all(&path).unwrap(), plain);
    }

    #[test]
    fn a_fault_names_file_line_and_reason() {
        let good = TWO.lines().next().unwrap();
        for (bad, reason) in [
            ("{\"timestamp\": 1}", "missing field `input_length`"),
            ("no json", "expected"),
            (r#"{"timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[]}"#, "timestamp -1"),
            (
                r#"{"timestamp":1,"input_length":1,"output_length":5000000000,"hash_ids":[]}"#,
                "output_length 5000000000",
            ),
            (r#"{"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[-4]}"#, "-4"),
            (
                r#"{"timestamp":1,"input_length":9223372036854775809,"output_length":1,"hash_ids":[1]}"#,
                "a block would have 9223372036854775809 tokens",
            ),
        ] {
            let (_folder, path) = file(format!("{good}\n{bad}\n").as_bytes());
            let text = all(&path).unwrap_err().to_string();
            assert!(text.contains("trace.jsonl:2: ") && text.contains(reason), "{text}");
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let (_folder, path) = file(&vec![b' '; MAX_LINE_BYTES + 2]);
        assert!(all(&path).unwrap_err().to_string().contains(":1: the line has more than"));
    }

    #[test]
    fn damaged_compression_is_a_fault() {
        let mut bytes = zstd::encode_all(TWO.repeat(1000).as_bytes(), 1).unwrap();
        bytes.truncate(bytes.len() / 2);
        let (_folder, path) = file(&bytes);
        assert!(all(&path).unwrap_err().to_string().contains("trace.jsonl:"));
    }
}
