//! Opening a session: connect, say hello, map the region. On a thread of its own, for it may take as long as its
//! deadline.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use terrace_primary::Region;

use super::connection::{Broken, Connection, Frame};
use super::error::ClientError;
use super::options::ClientOptions;
use crate::protocol::{ErrorReply, FrameFlags, Hello, HelloReply, Kind, VERSION, decode};

/// How long the daemon may take to answer.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// How often it is looked whether nobody wants the session any more.
const SLICE: Duration = Duration::from_millis(20);

/// An open session.
#[derive(Debug)]
pub(crate) struct Opened {
    pub connection: Connection,
    pub reply: HelloReply,
    pub region: Arc<Region>,
}

/// Opens a session. Blocks, [`HELLO_DEADLINE`] at most, or until `stop` is set.
pub(crate) fn open(options: &ClientOptions, attempt: u64, stop: &AtomicBool) -> Result<Opened, ClientError> {
    open_as(options, &options.hello(attempt), stop)
}

/// The same, as whoever `hello` says.
pub(crate) fn open_as(options: &ClientOptions, hello: &Hello, stop: &AtomicBool) -> Result<Opened, ClientError> {
    let stream = UnixStream::connect(&options.socket)
        .map_err(|error| ClientError::Connect { socket: options.socket.clone(), error })?;
    let mut connection = Connection::new(OwnedFd::from(stream))?;
    connection.queue(Kind::Hello, FrameFlags::REQUEST, Some(hello))?;
    let frame = answer(&mut connection, options, stop)?;
    if frame.header.flags == FrameFlags::ERROR {
        let ErrorReply { code, message } = decode("ErrorReply", &frame.body)?;
        return Err(ClientError::Refused { code, message });
    }
    if frame.header.kind != Kind::Hello || frame.header.flags != FrameFlags::REPLY {
        return Err(ClientError::Unfit(format!("{:?} came in answer to Hello", frame.header.kind)));
    }
    let reply: HelloReply = decode("HelloReply", &frame.body)?;
    let descriptors = connection.take_descriptors();
    let region = map(options, &reply, descriptors)?;
    connection.set_most_body_bytes(reply.limits.message_bytes);
    Ok(Opened { connection, reply, region })
}

fn answer(connection: &mut Connection, options: &ClientOptions, stop: &AtomicBool) -> Result<Frame, ClientError> {
    let deadline = Instant::now() + HELLO_DEADLINE;
    let late = || {
        let within_ms = HELLO_DEADLINE.as_millis() as u64;
        ClientError::Timeout { socket: options.socket.clone(), within_ms }
    };
    connection.flush()?;
    while Instant::now() < deadline && !stop.load(Ordering::Relaxed) {
        if connection.wait(deadline.min(Instant::now() + SLICE))? {
            connection.flush()?;
            connection.read_with_descriptors()?;
            if let Some(frame) = connection.next_frame()? {
                return Ok(frame);
            }
        }
    }
    Err(late())
}

/// Checks what the daemon says against what was asked for, and maps the region.
fn map(options: &ClientOptions, reply: &HelloReply, descriptors: Vec<OwnedFd>) -> Result<Arc<Region>, ClientError> {
    let unfit = |text: String| Err(ClientError::Unfit(text));
    if reply.version != VERSION {
        return unfit(format!("version {} where {VERSION} was offered", reply.version));
    }
    if reply.namespace != options.namespace.digest(&options.geometry) {
        return unfit("another namespace: client and daemon are of different releases".to_owned());
    }
    if reply.region == 0 || reply.limits.message_bytes < 4096 || reply.limits.keys_per_message == 0 {
        return unfit(format!("region {} with {:?}", reply.region, reply.limits));
    }
    let Ok([region]) = <[OwnedFd; 1]>::try_from(descriptors) else {
        return unfit("not one descriptor came along".to_owned());
    };
    let block_bytes = options.geometry.block_bytes;
    Ok(Arc::new(Region::from_fd(region, reply.slots, reply.slot_stride, block_bytes)?))
}

impl From<Broken> for ClientError {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Io(error) => Self::Io(error),
            Broken::Protocol(error) => Self::Protocol(error),
            other => Self::Io(std::io::Error::other(other.to_string())),
        }
    }
}
