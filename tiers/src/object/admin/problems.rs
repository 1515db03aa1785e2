//! What is wrong in a bucket.

use object_store::path::Path;

/// Problems that are told one by one; the rest is counted.
pub const MAX_PROBLEMS: usize = 10_000;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The object, as the store names it.
    pub object: String,
    /// What is wrong with it, in one line.
    pub what: String,
}

/// Problems as they are found.
#[derive(Debug, Default)]
pub(super) struct Problems {
    pub all: Vec<Problem>,
    /// Those beyond [`MAX_PROBLEMS`].
    pub more: u64,
}

impl Problems {
    /// Something is wrong with the object of this name.
    pub fn add(&mut self, object: &Path, what: impl ToString) {
        if self.all.len() >= MAX_PROBLEMS {
            self.more += 1;
            return;
        }
        self.all.push(Problem { object: object.as_ref().to_owned(), what: what.to_string() });
    }

    /// And all of these.
    pub fn extend(&mut self, others: Self) {
        let room = MAX_PROBLEMS.saturating_sub(self.all.len());
        self.more += others.more + others.all.len().saturating_sub(room) as u64;
        self.all.extend(others.all.into_iter().take(room));
    }
}
