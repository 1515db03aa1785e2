pub mod sync {
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub use std::sync::PoisonError;
}

use std::sync::Arc;

use loom::cell::UnsafeCell;

/// Two pages, and how far their backing is.
struct Region {
    tally: tally::Tally,
    pages: [UnsafeCell<u8>; 2],
}

impl Region {
    fn new() -> Arc<Self> {
        Arc::new(Self { tally: tally::Tally::new(2, 1), pages: [0, 0].map(UnsafeCell::new) })
    }

    #[expect(unsafe_code, reason = "the cells are loom's: it sees every race")]
    fn back(&self) {
        while let Some((piece, start, len)) = self.tally.take() {
            assert_eq!((piece, len), (start, 1));
            self.pages[piece].with_mut(|page| unsafe { *page = 1 });
            self.tally.done(piece, len, |_| {});
        }
    }
}

/// Two threads back pieces; whoever sees bytes as ready finds them backed.
#[expect(unsafe_code, reason = "as above")]
pub fn what_is_ready_is_backed() {
    let region = Region::new();
    let threads = [0, 1].map(|_| {
        let region = Arc::clone(&region);
        loom::thread::spawn(move || region.back())
    });
    let ready = region.tally.ready_bytes() as usize;
    for page in &region.pages[..ready] {
        page.with(|page| assert_eq!(unsafe { *page }, 1, "a page that counts as ready is not backed"));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(region.tally.ready_bytes(), 2);
}
