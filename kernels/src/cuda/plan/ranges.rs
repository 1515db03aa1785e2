//! Device memory that an engine was told of.

use crate::engine::CopyError;

/// Spans of device memory, each inside one allocation. A driver call must not cross from one allocation into the next, even
/// where their addresses follow one another, so only runs inside one span are merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceRanges {
    /// Base and end, sorted, without overlap.
    spans: Vec<(usize, usize)>,
    /// A span was known once: from then on only what is known may be touched, be it nothing any more.
    checks: bool,
}

/// Spans at most: a span per tensor, of engines with thousands of layers.
const MOST: usize = 65_536;

impl DeviceRanges {
    /// Adds a span. `Invalid` if it is empty, wraps or overlaps another; adding the same span again changes nothing.
    pub fn add(&mut self, base: usize, len: usize) -> Result<(), CopyError> {
        let refused = |why: &str| Err(CopyError::Invalid(format!("device memory of {len} bytes at {base:#x} {why}")));
        let Some(end) = base.checked_add(len).filter(|_| base > 0 && len > 0) else {
            return refused("is no memory");
        };
        let at = self.spans.partition_point(|span| span.0 < base);
        if self.spans.get(at) == Some(&(base, end)) {
            return Ok(());
        }
        let before = at.checked_sub(1).and_then(|before| self.spans.get(before));
        if before.is_some_and(|span| span.1 > base) || self.spans.get(at).is_some_and(|span| span.0 < end) {
            return refused("overlaps memory that is known already");
        }
        if self.spans.len() >= MOST {
            return refused("is one span too many");
        }
        self.spans.insert(at, (base, end));
        self.checks = true;
        Ok(())
    }

    /// Forgets the span at `base`. Unknown: nothing.
    pub fn remove(&mut self, base: usize) {
        self.spans.retain(|span| span.0 != base);
    }

    /// The span in which these bytes lie: its number. `None`: no span was ever known, so nothing can be said. `Invalid`: the
    /// bytes are not inside one.
    pub fn find(&self, address: usize, len: usize) -> Result<Option<usize>, CopyError> {
        if !self.checks {
            return Ok(None);
        }
        let at = self.spans.partition_point(|span| span.0 <= address).checked_sub(1);
        match at.and_then(|at| self.spans.get(at)) {
            Some(span) if span.1 - address.min(span.1) >= len => Ok(at),
            _ => Err(CopyError::Invalid(format!(
                "{len} bytes at {address:#x} do not lie inside one tensor of the engine"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_inside_is_found() {
        let mut ranges = DeviceRanges::default();
        assert_eq!(ranges.find(7, 9), Ok(None));
        ranges.add(200, 100).unwrap();
        ranges.add(100, 100).unwrap();
        ranges.add(100, 100).unwrap();
        for bad in [(150, 10), (299, 2), (50, 51), (0, 1), (5, 0), (usize::MAX, 2)] {
            assert!(ranges.add(bad.0, bad.1).is_err(), "{bad:?}");
        }
        assert_eq!(ranges.find(100, 100), Ok(Some(0)));
        assert_eq!(ranges.find(299, 1), Ok(Some(1)));
        for bad in [(99, 1), (150, 51), (300, 1), (usize::MAX, 1), (250, usize::MAX)] {
            assert!(ranges.find(bad.0, bad.1).is_err(), "{bad:?}");
        }
        ranges.remove(100);
        assert!(ranges.find(150, 1).is_err());
        ranges.remove(200);
        assert!(ranges.find(250, 1).is_err(), "what is forgotten is not open to all");
    }
}
