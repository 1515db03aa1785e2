//! Bodies on their way: passed on frame by frame, counted, spoiled.

use std::collections::BTreeSet;
use std::io;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use tokio::sync::watch;

use super::counts::{Meter, Ticket};
use super::link::Cut;
use super::rule::mix;

/// Every body here. An error in it ends the connection that it goes to.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body of known bytes.
pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Waits while the proxy hangs.
pub(super) async fn pass(hang: &mut watch::Receiver<bool>) {
    // An error says that the proxy is gone, and this connection with it.
    let _ = hang.wait_for(|hangs| !hangs).await;
}

/// A request's body on its way to the server; `cut_at` so many bytes, both connections are cut.
pub(super) fn upload(body: Incoming, meter: Meter, hang: watch::Receiver<bool>, cut_at: Option<(u64, Cut)>) -> Body {
    // A body without frames must be known to be one, or it would be sent in chunks.
    if body.is_end_stream() {
        return empty();
    }
    let state = (body, meter, hang, cut_at, 0u64);
    let frames = stream::unfold(state, |(mut body, meter, mut hang, cut_at, mut passed)| async move {
        loop {
            let mut data = match body.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => data,
                    Err(_) => continue,
                },
                Err(error) => return Some((Err(io::Error::other(error)), (body, meter, hang, cut_at, passed))),
            };
            pass(&mut hang).await;
            if let Some((limit, cut)) = &cut_at {
                data.truncate(usize::try_from(limit - passed.min(*limit)).unwrap_or(usize::MAX));
                if data.is_empty() {
                    // What was passed on is to be with the server before the end is.
                    tokio::task::yield_now().await;
                    cut.reset();
                    let error = io::Error::from(io::ErrorKind::ConnectionReset);
                    return Some((Err(error), (body, meter, hang, cut_at, passed)));
                }
            }
            passed += data.len() as u64;
            meter.received(data.len());
            return Some((Ok(Frame::data(data)), (body, meter, hang, cut_at, passed)));
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Reads a request's body to its end and throws it away. False: it broke off.
pub(super) async fn drain(mut body: Incoming, meter: &Meter) -> bool {
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => meter.received(frame.data_ref().map_or(0, Bytes::len)),
            Err(_) => return false,
        }
    }
    true
}

/// What becomes of an answer's body.
#[derive(Debug)]
pub(super) enum Plan {
    /// It passes.
    Whole,
    /// It ends after so many bytes.
    End { at: u64, end: End },
    /// The bits at these places are flipped.
    Flip(BTreeSet<u64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// As if it were complete.
    Complete,
    /// The connection is closed.
    Close,
    /// The connection is reset.
    Reset,
}

impl Plan {
    /// So many bits of `length` bytes, at most all, at places that the seed gives.
    pub fn flip(bits: u32, length: u64, seed: u64) -> Self {
        let all = length.saturating_mul(8);
        let mut places = BTreeSet::new();
        let mut count = 0;
        while (places.len() as u64) < u64::from(bits).min(all) {
            places.insert(mix(seed, count) % all);
            count += 1;
        }
        Self::Flip(places)
    }
}

/// An answer's body on its way to the client.
pub(super) struct Answer {
    pub body: Incoming,
    pub plan: Plan,
    /// Bytes that the head promises, where it does.
    pub length: Option<u64>,
    pub ticket: Ticket,
    pub hang: watch::Receiver<bool>,
    pub cut: Cut,
}

impl Answer {
    /// The body that is sent instead.
    pub fn into_body(mut self) -> Body {
        if self.body.is_end_stream() {
            self.ticket.complete();
            return empty();
        }
        StreamBody::new(stream::unfold((self, 0), |(mut answer, sent)| async move {
            let frame = answer.next(sent).await?;
            let sent = sent + frame.as_ref().map_or(0, |data| data.len() as u64);
            Some((frame.map(Frame::data), (answer, sent)))
        }))
        .boxed_unsync()
    }

    async fn next(&mut self, sent: u64) -> Option<io::Result<Bytes>> {
        if let Plan::End { at, end } = self.plan
            && sent >= at
        {
            // Lets hyper hand what was sent to the kernel first.
            tokio::task::yield_now().await;
            match end {
                End::Complete => self.ticket.complete(),
                End::Close => return Some(Err(io::ErrorKind::UnexpectedEof.into())),
                End::Reset => return self.reset().await,
            }
            return None;
        }
        let data = loop {
            match self.body.frame().await {
                None => {
                    self.ticket.complete();
                    return None;
                }
                // The server broke off: so does this connection.
                Some(Err(_)) => return self.reset().await,
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        break data;
                    }
                }
            }
        };
        pass(&mut self.hang).await;
        let data = self.spoiled(data, sent);
        self.ticket.sent(data.len());
        // Hyper asks no more when it has what was promised.
        if self.length.is_some_and(|length| sent + data.len() as u64 >= length) {
            self.ticket.complete();
        }
        Some(Ok(data))
    }

    fn spoiled(&self, mut data: Bytes, sent: u64) -> Bytes {
        match &self.plan {
            Plan::Whole => data,
            Plan::End { at, .. } => {
                data.truncate(usize::try_from(at - sent).unwrap_or(usize::MAX));
                data
            }
            Plan::Flip(places) => {
                let first = sent * 8;
                let mut here = places.range(first..first + data.len() as u64 * 8).peekable();
                if here.peek().is_none() {
                    return data;
                }
                let mut spoiled = BytesMut::from(data);
                for place in here {
                    let bit = place - first;
                    if let Some(byte) = usize::try_from(bit / 8).ok().and_then(|index| spoiled.get_mut(index)) {
                        *byte ^= 1 << (bit % 8);
                    }
                }
                spoiled.freeze()
            }
        }
    }

    async fn reset(&self) -> Option<io::Result<Bytes>> {
        self.cut.reset();
        std::future::pending().await
    }
}
