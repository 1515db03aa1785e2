//! The slots that the daemon keeps for this session, as far as this side knows.

/// What is looked up here is leased later, so it is not answered beyond what can be leased then.
#[derive(Debug, Default)]
pub(super) struct Room {
    jobs: u64,
    step: u64,
}

impl Room {
    /// Whether so many more are within `most`.
    pub fn fits(&self, slots: usize, most: u32) -> bool {
        self.jobs + self.step + slots as u64 <= u64::from(most)
    }

    /// A request was answered that so many blocks are there.
    pub fn answered(&mut self, slots: usize) {
        self.step += slots as u64;
    }

    /// A load of what was answered begins.
    pub fn load(&mut self, slots: usize) {
        self.step = self.step.saturating_sub(slots as u64);
        self.jobs += slots as u64;
    }

    /// A store begins.
    pub fn store(&mut self, slots: usize) {
        self.jobs += slots as u64;
    }

    /// A transfer ended.
    pub fn ended(&mut self, slots: usize) {
        self.jobs = self.jobs.saturating_sub(slots as u64);
    }

    /// Leases end with the step.
    pub fn step_ended(&mut self) {
        self.step = 0;
    }
}
