//! One client's connection, and how it ends.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::set_socket_linger;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};

use super::Shared;
use super::forward::forward;

/// Resets the connection that it belongs to.
#[derive(Clone, Debug, Default)]
pub(super) struct Cut(Arc<Notify>);

impl Cut {
    /// The connection is reset as soon as its task is polled again.
    pub fn reset(&self) {
        self.0.notify_one();
    }

    /// As [`Self::reset`], for who has nothing more to say.
    pub async fn and_wait<T>(&self) -> T {
        self.reset();
        std::future::pending().await
    }
}

/// Serves one connection until the client closes it, a fault cuts it, or the network is partitioned.
pub(super) async fn serve(
    stream: TcpStream,
    shared: Arc<Shared>,
    mut partition: watch::Receiver<bool>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    // Hyper owns the stream; how it is closed is set here.
    let twin = stream.try_clone()?;
    let cut = Cut::default();
    let service = {
        let cut = cut.clone();
        service_fn(move |request| forward(shared.clone(), cut.clone(), request))
    };
    let stream = TokioIo::new(TcpStream::from_std(stream)?);
    let connection = http1::Builder::new().serve_connection(stream, service);
    tokio::select! {
        // An error is a client that went away, or a body that ended early on purpose.
        _ = connection => return Ok(()),
        () = cut.0.notified() => {}
        _ = partition.wait_for(|partitioned| *partitioned) => {}
    }
    // With no time to linger, closing sends RST.
    set_socket_linger(&twin, Some(Duration::ZERO))?;
    Ok(())
}
