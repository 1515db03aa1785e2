//! Progress on stderr; nothing where that is no terminal.

use indicatif::{ProgressBar, ProgressStyle};
use terrace_tiers::object::admin::Progress;

/// Digits of a namespace that a bar shows.
const DIGITS: usize = 8;

/// The bar of one namespace. Gone from the terminal when dropped.
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar for the namespace of this digest.
    pub fn new(namespace: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_prefix(namespace.get(..DIGITS).unwrap_or(namespace).to_owned());
        bar.enable_steady_tick(std::time::Duration::from_millis(100));
        Self { bar }
    }

    /// Shows how far a step is.
    pub fn tell(&self, progress: &Progress) {
        let template = match progress.total {
            Some(_) => "{prefix} {msg} {wide_bar} {pos}/{len}",
            None => "{prefix} {spinner} {msg} {pos}",
        };
        if self.bar.message() != progress.step || self.bar.length() != progress.total {
            self.bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            self.bar.set_message(progress.step);
            match progress.total {
                Some(total) => self.bar.set_length(total),
                None => self.bar.unset_length(),
            }
        }
        self.bar.set_position(progress.done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
