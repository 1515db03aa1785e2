//! The engines that are open, by their handles.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::code;
use crate::handle;
use crate::refusal::Refusal;
use crate::session::Session;

/// An engine. `None`: it was closed while a call waited for it.
type Place = Arc<Mutex<Option<Session>>>;

static ENGINES: LazyLock<Mutex<HashMap<u64, Place>>> = LazyLock::new(Mutex::default);

fn engines() -> MutexGuard<'static, HashMap<u64, Place>> {
    // Each change is a single insertion or removal.
    ENGINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an engine. Its handle.
pub(crate) fn keep(session: Session) -> u64 {
    let engine = handle::next();
    engines().insert(engine, Arc::new(Mutex::new(Some(session))));
    engine
}

/// Calls an engine when no other call is in it.
pub(crate) fn with<T>(engine: u64, call: impl FnOnce(&mut Session) -> Result<T, Refusal>) -> Result<T, Refusal> {
    let place = engines().get(&engine).cloned().ok_or_else(|| Refusal::handle("engine", engine))?;
    let mut place = place
        .lock()
        .map_err(|_| Refusal::new(code::INTERNAL, "an earlier call failed inside the engine: it can only be closed"))?;
    call(place.as_mut().ok_or_else(|| Refusal::handle("engine", engine))?)
}

/// Ends an engine when no call is in it any more. Waits for its copies.
pub(crate) fn close(engine: u64) -> Result<(), Refusal> {
    let place = engines().remove(&engine).ok_or_else(|| Refusal::handle("engine", engine))?;
    let session = place.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(session);
    Ok(())
}
