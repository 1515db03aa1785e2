//! What the models share. `cargo test --release -p terrace-models` checks them all: each file that synchronises by hand is compiled as it is over
//! loom's atomics, locks and condition variables, and every order in which its accesses may take effect is tried (within a bound on
//! preemptions). Then once more for every mutant of `build.rs`: a model that does not fail there sees nothing.
//!
//! loom has no total order over `SeqCst` accesses (it takes them for `AcqRel`); `SeqCst` fences it has. So what passes does not rest on one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use loom::model::Builder;

/// Every order with at most so many preemptions: few bugs need more, and it is quick.
const PREEMPTIONS: usize = 3;
/// Longest search of one model. One that takes longer fails: it has grown too large to be checked.
const LONGEST: Duration = Duration::from_secs(120);

/// Checks a model in every order.
pub fn check(model: fn()) {
    let began = Instant::now();
    builder().check(model);
    // loom ends quietly when the time is over.
    assert!(began.elapsed() < LONGEST, "not every order was tried");
}

/// Whether the model fails in some order: a wrong value, a race on a cell, or everybody waits for ever.
pub fn fails(model: fn()) -> bool {
    catch_unwind(AssertUnwindSafe(|| builder().check(model))).is_err()
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_duration = Some(LONGEST);
    builder
}

/// Tests of a model: `kept` passes, each mutant fails. `worlds/<file>.rs` has what the file finds beside it, and the model.
#[macro_export]
macro_rules! models {
    ($file:literal, $module:ident: $($model:ident { $($mutant:ident),* $(,)? })*) => {
        $crate::variant!($file, $module, kept);
        $($($crate::variant!($file, $module, $mutant, $model);)*)*
        $(
            #[test]
            fn $model() {
                $crate::check(kept::$model);
            }
        )*
    };
}

/// One variant of a file, in a module of its own; a mutant with its test.
#[macro_export]
macro_rules! variant {
    ($file:literal, $module:ident, $variant:ident) => {
        #[allow(
            dead_code,
            clippy::all,
            clippy::undocumented_unsafe_blocks,
            missing_docs,
            reason = "a copy of a file of another crate, of which the model uses a part"
        )]
        mod $variant {
            include!(concat!("worlds/", $file, ".rs"));
            pub mod $module {
                include!(concat!(env!("OUT_DIR"), "/", $file, "-", stringify!($variant), ".rs"));
            }
        }
    };
    ($file:literal, $module:ident, $variant:ident, $model:ident) => {
        $crate::variant!($file, $module, $variant);

        #[test]
        fn $variant() {
            assert!($crate::fails($variant::$model), "the model does not see this mutant");
        }
    };
}
