//! One node's part of a trace: every n-th request.

use std::str::FromStr;

use anyhow::Result;

use super::source::{Arrival, Progress, Source};

/// Which part of a trace: `INDEX/COUNT`, `1/4` to `4/4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// `0..count`.
    index: u64,
    count: u64,
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || format!("{text:?} is no part: write INDEX/COUNT, such as 1/4, with INDEX from 1 to COUNT");
        let (index, count) = text.split_once('/').ok_or_else(fault)?;
        let (index, count) = (index.parse::<u64>().map_err(|_| fault())?, count.parse().map_err(|_| fault())?);
        if (1..=count).contains(&index) { Ok(Self { index: index - 1, count }) } else { Err(fault()) }
    }
}

/// The requests of a source that belong to a part, dealt out in turn as a router without a plan would.
pub struct PartOf {
    source: Box<dyn Source>,
    part: Part,
    seen: u64,
}

impl PartOf {
    pub fn new(source: Box<dyn Source>, part: Part) -> Self {
        Self { source, part, seen: 0 }
    }
}

impl Source for PartOf {
    fn next_arrival(&mut self) -> Result<Option<Arrival>> {
        while let Some(arrival) = self.source.next_arrival()? {
            let turn = self.seen % self.part.count;
            self.seen += 1;
            if turn == self.part.index {
                return Ok(Some(arrival));
            }
        }
        Ok(None)
    }

    fn tokens_per_block(&self) -> u32 {
        self.source.tokens_per_block()
    }

    fn progress(&self) -> Progress {
        self.source.progress()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::generate::Generator;

    /// The first requests of a source; a generator has no last.
    fn ids(mut source: impl Source, count: usize) -> Vec<Vec<u64>> {
        let arrivals = std::iter::from_fn(|| source.next_arrival().ok().flatten());
        arrivals.take(count).map(|arrival| arrival.block_ids).collect()
    }

    #[test]
    fn the_parts_are_the_whole() {
        let whole = ids(Generator::new(7, 16, 100), 99);
        let parts: Vec<_> = ["1/3", "2/3", "3/3"]
            .iter()
            .map(|part| ids(PartOf::new(Box::new(Generator::new(7, 16, 100)), part.parse().unwrap()), 33))
            .collect();
        assert!(parts.iter().all(|part| part.len() == 33));
        for (at, request) in whole.iter().enumerate() {
            assert_eq!(*request, parts[at % 3][at / 3]);
        }
    }

    #[test]
    fn what_is_no_part_is_refused() {
        for text in ["", "1", "0/4", "5/4", "1/0", "a/b", "-1/4", "1/4/2"] {
            assert!(text.parse::<Part>().is_err(), "{text}");
        }
    }
}
