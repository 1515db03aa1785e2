//! Plays a world: steps, an end at which nothing may be left, and what comes of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::counts::Counts;
use crate::failure::{Failure, Reason};
use crate::run::{Outcome, Run};
use crate::trace::SharedTrace;

/// The world of one seed.
pub(crate) trait Play: Sized {
    /// One step of its engines, whatever else happens meanwhile, and every check behind it.
    fn step(&mut self) -> Result<(), Reason>;

    /// From here on nothing goes wrong: all of it comes to rest, holds nothing, and is read back.
    fn end(&mut self) -> Result<(), Reason>;

    /// What happened.
    fn take_counts(&mut self) -> Counts;

    /// Ends the world. May panic where a step has panicked.
    fn let_go(self) {}
}

/// Plays a world to its end or to its first failure.
pub(crate) fn play(run: &Run, trace: &SharedTrace, mut world: impl Play) -> Outcome {
    let mut step = 0;
    let end = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..run.steps {
            step += 1;
            world.step()?;
        }
        world.end()
    }));
    let result = end.unwrap_or_else(|panic| Err(Reason::Panic(panic_text(&*panic))));
    let mut counts = world.take_counts();
    (counts.seeds, counts.steps) = (1, u64::from(step));
    trace.add(format_args!("{counts:?}"));
    // After a panic the processes in it may be in no state to be let go of.
    let _ = catch_unwind(AssertUnwindSafe(|| world.let_go()));
    let failure = result.err().map(|reason| Failure { run: *run, step, reason });
    Outcome { digest: trace.digest(), counts, failure }
}

/// What a panic says.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_else(|| "no text".into())
}
