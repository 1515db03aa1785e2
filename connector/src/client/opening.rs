//! Opening a session: say hello, read the answer, map the region.

use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use terrace_primary::{Region, TableReader};

use super::connection::{Broken, Connection, Frame};
use super::error::ClientError;
use super::options::ClientOptions;
use crate::protocol::{ErrorReply, FrameFlags, Hello, HelloReply, Kind, SHARED_TABLE, VERSION, decode};

/// An open session.
#[derive(Debug)]
pub struct Opened {
    pub(super) connection: Connection,
    pub(super) reply: HelloReply,
    pub(super) region: Arc<Region>,
    /// The pool's block table, if the daemon shares it.
    pub(super) table: Option<TableReader>,
}

/// A session that waits for the answer to its `Hello`.
#[derive(Debug)]
pub struct Opening {
    pub(super) connection: Connection,
}

impl Opening {
    /// Says hello as the scheduler of the engine `engine` over a connected socket, which is made non-blocking.
    pub fn begin(socket: OwnedFd, options: &ClientOptions, engine: &str) -> Result<Self, ClientError> {
        Self::begin_as(socket, &options.hello(engine.to_owned()))
    }

    /// The same, as whoever `hello` says.
    pub(super) fn begin_as(socket: OwnedFd, hello: &Hello) -> Result<Self, ClientError> {
        let mut connection = Connection::new(socket)?;
        connection.queue(Kind::Hello, FrameFlags::REQUEST, Some(hello))?;
        connection.flush()?;
        Ok(Self { connection })
    }

    /// What to wait for.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.connection.socket()
    }

    /// Goes on with what has come, without waiting: the session, or this one to be gone on with. `options` are those
    /// that it was begun with.
    ///
    /// # Errors
    /// The daemon refused, or what came does not fit what was asked for.
    pub fn advance(mut self, options: &ClientOptions) -> Result<ControlFlow<Opened, Self>, ClientError> {
        self.connection.flush()?;
        self.connection.read_with_descriptors()?;
        Ok(match self.connection.next_frame()? {
            Some(frame) => ControlFlow::Break(self.open(&frame, options)?),
            None => ControlFlow::Continue(self),
        })
    }

    fn open(mut self, frame: &Frame, options: &ClientOptions) -> Result<Opened, ClientError> {
        if frame.header.flags == FrameFlags::ERROR {
            let ErrorReply { code, message } = decode("ErrorReply", &frame.body)?;
            return Err(ClientError::Refused { code, message });
        }
        if frame.header.kind != Kind::Hello || frame.header.flags != FrameFlags::REPLY {
            return Err(ClientError::Unfit(format!("{:?} came in answer to Hello", frame.header.kind)));
        }
        let reply: HelloReply = decode("HelloReply", &frame.body)?;
        let descriptors = self.connection.take_descriptors();
        let (region, table) = map(options, &reply, descriptors)?;
        self.connection.set_most_body_bytes(reply.limits.message_bytes);
        Ok(Opened { connection: self.connection, reply, region, table })
    }
}

/// Checks what the daemon says against what was asked for, and maps region and table.
fn map(
    options: &ClientOptions,
    reply: &HelloReply,
    descriptors: Vec<OwnedFd>,
) -> Result<(Arc<Region>, Option<TableReader>), ClientError> {
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
    let shares_table = reply.features.iter().any(|feature| feature == SHARED_TABLE);
    let (came, belong) = (descriptors.len(), 1 + usize::from(shares_table));
    let mut descriptors = descriptors.into_iter();
    let (Some(region), table, true) = (descriptors.next(), descriptors.next(), came == belong) else {
        return unfit(format!("{came} descriptors came along where {belong} belong"));
    };
    let region = Region::from_fd(region, reply.slots, reply.slot_stride, options.geometry.block_bytes)?;
    let table = table.map(|table| TableReader::open(&table, reply.slots, options.key_bytes()));
    Ok((Arc::new(region), table.transpose()?))
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
