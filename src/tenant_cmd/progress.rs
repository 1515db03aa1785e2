//! Progress on stderr; nothing where that is no terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// One step in one place. Gone from the terminal when dropped.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar for a step in a place.
    pub fn new(step: &'static str, place: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_prefix(place.to_owned());
        let style = ProgressStyle::with_template("{prefix} {spinner} {msg} {pos}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_message(step);
        bar.enable_steady_tick(std::time::Duration::from_millis(100));
        Self(bar)
    }

    /// Shows how many are done.
    pub fn tell(&self, done: u64) {
        self.0.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
