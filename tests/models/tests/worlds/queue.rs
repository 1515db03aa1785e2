pub mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub use loom::sync::{Condvar, Mutex, MutexGuard};
    pub use std::sync::PoisonError;
}

/// The runs of a batch: only their number matters here.
pub mod pieces {
    #[derive(Debug)]
    pub struct Pieces {
        pub count: usize,
        pub bytes: u64,
    }

    impl Pieces {
        pub fn len(&self) -> usize {
            self.count
        }
    }
}

use std::sync::Arc;

use loom::cell::UnsafeCell;
use metrics::Histogram;

use crate::engine::CopyId;
use queue::{Job, Queue};

/// A queue, and the bytes that its jobs copy: those of job 0 in two pieces, and one that job 1 makes of both.
#[derive(Default)]
struct World {
    queue: Queue,
    halves: [UnsafeCell<u8>; 2],
    whole: UnsafeCell<u8>,
}

#[expect(unsafe_code, reason = "the cells are loom's: it sees every race")]
impl World {
    fn copy(&self) {
        while let Some((job, piece)) = self.queue.take() {
            match job.id {
                CopyId(0) => self.halves[piece].with_mut(|half| unsafe { *half = 1 }),
                _ => {
                    let sum = self.half(0) + self.half(1);
                    self.whole.with_mut(|whole| unsafe { *whole = sum });
                }
            }
            self.queue.piece_done(&job);
        }
    }

    fn half(&self, at: usize) -> u8 {
        self.halves[at].with(|half| unsafe { *half })
    }

    fn whole(&self) -> u8 {
        self.whole.with(|whole| unsafe { *whole })
    }
}

fn job(id: u64, count: usize, after: Option<&Job>) -> Arc<Job> {
    Arc::new(Job::new(CopyId(id), pieces::Pieces { count, bytes: 1 }, after, Histogram::noop()))
}

fn threads(world: &Arc<World>, count: usize) -> Vec<loom::thread::JoinHandle<()>> {
    let start = |_| {
        let world = Arc::clone(world);
        loom::thread::spawn(move || world.copy())
    };
    (0..count).map(start).collect()
}

fn end(world: &World, threads: Vec<loom::thread::JoinHandle<()>>) {
    world.queue.close();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Two threads copy a job of two pieces: who waited for it, or polled it, sees all of its bytes.
pub fn who_waited_sees_the_bytes() {
    let world = Arc::new(World::default());
    let threads = threads(&world, 2);
    let first = job(0, 2, None);
    world.queue.push(Arc::clone(&first));
    world.queue.wait(&first);
    assert_eq!((world.half(0), world.half(1)), (1, 1));
    let mut done = Vec::new();
    world.queue.poll(&mut done);
    assert_eq!(done.len(), 1);
    end(&world, threads);
}

/// A job that comes after another is copied after it, sees its bytes, and is copied at all.
pub fn an_ordered_job_sees_the_bytes_of_the_one_before() {
    let world = Arc::new(World::default());
    let first = job(0, 2, None);
    let second = job(1, 1, Some(&first));
    world.queue.push(Arc::clone(&first));
    world.queue.push(Arc::clone(&second));
    let threads = threads(&world, 2);
    world.queue.wait(&second);
    assert_eq!(world.whole(), 2);
    end(&world, threads);
}
