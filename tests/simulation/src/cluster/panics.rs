//! Panics inside tasks, which end there and are seen by nobody else.

use std::cell::Cell;
use std::sync::Once;

thread_local! {
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

/// Begins to watch this thread.
pub(crate) fn watch() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            SEEN.set(true);
            before(panic);
        }));
    });
    SEEN.set(false);
}

/// Whether there was one on this thread since.
pub(crate) fn seen() -> bool {
    SEEN.get()
}
