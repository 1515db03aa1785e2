//! Making a failure short.

use crate::failure::Failure;
use crate::run::{Run, run};

/// The shortest run with the same kind of failure that leaving things out one by one leads to: no further thing can be left out of
/// it. Leaving one out changes what follows, so that a failure may come earlier, later, or not at all; `within` times as many
/// steps as the failure took are tried each time.
pub fn shrink(failure: Failure, within: u32) -> Failure {
    let mut shortest = Failure { run: Run { print: false, ..failure.run }, ..failure };
    loop {
        let steps = shortest.step.saturating_mul(within.max(1)).min(shortest.run.steps);
        let shorter = shortest.run.off.one_more(shortest.run.scene).find_map(|off| {
            let found = run(&Run { off, steps, ..shortest.run }).failure?;
            found.is_like(&shortest).then_some(found)
        });
        match shorter {
            Some(found) => shortest = found,
            None => break,
        }
    }
    // What comes behind the failing step is not needed; a failure of the end is one of the end of fewer steps.
    let mut steps = shortest.step;
    let mut step = steps / 2;
    while step > 0 {
        let found = run(&Run { steps: steps - step, ..shortest.run }).failure.filter(|found| found.is_like(&shortest));
        match found {
            Some(found) => {
                steps -= step;
                shortest = found;
            }
            None => step /= 2,
        }
    }
    let last = run(&Run { steps, ..shortest.run }).failure;
    last.filter(|found| found.is_like(&shortest)).unwrap_or(shortest)
}
