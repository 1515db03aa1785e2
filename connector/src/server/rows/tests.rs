//! Rows belong to the engine again as soon as it has closed the connection.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::protocol::{ForeignRegion, Kind, StoreRows, numbers_to_bytes};
use crate::server::testing::{BLOCK_BYTES, hello, keys, pool, serve, writing};

#[test]
fn what_was_copied_before_the_end_is_not_published_after_it() {
    for closes in [false, true] {
        let file = memfd_create("rows", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&file, 4 * u64::from(BLOCK_BYTES)).expect("its length");
        let foreign = ForeignRegion { rows: 4, row_stride: BLOCK_BYTES, offset_bytes: 0 };
        let (mut pool, wake, mut client) = pool(hello(Some(foreign)), Some(file), None);
        let (all, bytes) = keys(4);
        let store = StoreRows { request: 1, job: 1, keys: bytes, rows: numbers_to_bytes(0..4) };
        serve(&mut pool, &mut client, Kind::StoreRows, &store);
        assert_eq!(writing(&pool), 4.0);
        // A thread has copied; the pool has not taken it in, nor seen the end.
        poll(&mut [PollFd::new(&wake, PollFlags::IN)], None).expect("it is woken");
        if closes {
            drop(client);
        }
        while !pool.rows.is_empty() {
            pool.rows_landed();
        }
        let readable = all.iter().filter(|key| pool.manager.primary().find(key).is_some()).count();
        assert_eq!((readable, writing(&pool)), (if closes { 0 } else { 4 }, 0.0));
    }
}
