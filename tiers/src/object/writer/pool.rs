//! The memory of segments on their way up: buffers of one block each, header included, used again and again. Memory that was never
//! touched is slow to come by, so what was taken once is kept.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// All buffers of a writer.
#[derive(Clone, Debug)]
pub(super) struct Pool(Arc<Shelf>);

#[derive(Debug)]
struct Shelf {
    buffer_bytes: usize,
    most: usize,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Buffers that were made and not given back.
    out: usize,
    /// The one that was used last is used first.
    free: Vec<Box<[u8]>>,
}

impl Pool {
    /// At most `most` buffers (one at least) of `buffer_bytes` each; none is made before it is needed.
    pub fn new(buffer_bytes: usize, most: usize) -> Self {
        let state = Mutex::default();
        Self(Arc::new(Shelf { buffer_bytes, most: most.max(1), state, freed: Notify::new() }))
    }

    /// A buffer with any content. `None`: all are out.
    pub fn take(&self) -> Option<Buffer> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.out >= self.0.most {
            return None;
        }
        state.out += 1;
        let bytes = state.free.pop();
        drop(state);
        let bytes = bytes.unwrap_or_else(|| vec![0; self.0.buffer_bytes].into_boxed_slice());
        Some(Buffer { bytes, shelf: Arc::clone(&self.0) })
    }

    /// Returns when a buffer came back since the last call, or comes.
    pub async fn freed(&self) {
        self.0.freed.notified().await;
    }

    /// Buffers that are out.
    #[cfg(test)]
    pub fn out(&self) -> usize {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).out
    }
}

/// A buffer, back in its pool when it is dropped: by whoever sent its bytes last.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Box<[u8]>,
    shelf: Arc<Shelf>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut state = self.shelf.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.out -= 1;
        state.free.push(std::mem::take(&mut self.bytes));
        drop(state);
        self.shelf.freed.notify_one();
    }
}
