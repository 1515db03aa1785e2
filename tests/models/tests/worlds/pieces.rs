pub mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}

use std::sync::Arc;

use loom::cell::UnsafeCell;

use pieces::{Piece, PieceTable};

struct Pins {
    table: PieceTable,
    /// What the driver knows of each piece.
    driver: [UnsafeCell<u64>; 2],
}

#[expect(unsafe_code, reason = "the cells are loom's: it sees every race")]
impl Pins {
    fn register(&self) {
        while let Some(index) = self.table.take() {
            self.driver[index].with_mut(|known| unsafe { *known += 1 });
            self.table.set(index, if index == 0 { Some(42) } else { None });
        }
    }

    fn known(&self, index: usize) -> u64 {
        self.driver[index].with(|known| unsafe { *known })
    }
}

/// Two threads register pieces; whoever sees one as registered finds that the driver knows it, once.
pub fn what_is_registered_is_known_to_the_driver() {
    let pins = Arc::new(Pins { table: PieceTable::new(2), driver: [0, 0].map(UnsafeCell::new) });
    let threads = [0, 1].map(|_| {
        let pins = Arc::clone(&pins);
        loom::thread::spawn(move || pins.register())
    });
    match pins.table.get(0) {
        Piece::Registered(device) => assert_eq!((device, pins.known(0)), (42, 1)),
        other => assert_eq!(other, Piece::Pending),
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!((pins.known(0), pins.known(1)), (1, 1));
    assert_eq!(pins.table.get(1), Piece::Refused);
}
