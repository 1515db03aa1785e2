//! What goes over the local socket: frames and the messages in them. The page for other languages is `docs/protocol.md`; the vectors in
//! `tests/protocol/vectors.json` hold both to each other.

mod code;
mod copies;
mod error;
mod frame;
mod inbox;
mod keys;
mod limits;
mod lookup;
mod message;

pub(crate) use code::Body;
pub use code::{decode, encode};
pub use copies::{
    Attach, AttachReply, Copied, CopiedJob, Copy, CopyJob, DEVICE_COPIES, HANDLE_BYTES, MAX_MEMORIES, MAX_PAGES,
    Memory, Page, UUID_BYTES,
};
pub use error::{ErrorCode, ErrorReply, ProtocolError};
pub use frame::{FrameFlags, FrameHeader, HEADER_BYTES, Kind, MAGIC, VERSION};
pub(crate) use inbox::Inbox;
pub(crate) use keys::COMMON_KEY_BYTES;
pub use keys::{keys_from_bytes, keys_to_bytes, numbers_from_bytes, numbers_to_bytes};
pub use limits::{MAX_DESCRIPTORS, MAX_HELLO_BYTES, WireLimits};
pub(crate) use lookup::{LookupIn, LookupOut, QueryIn};
pub use message::{
    Answer, Complete, CompletedJob, EndStep, EndStepReply, EventBatch, ForeignRegion, Goodbye, Hello, HelloReply,
    JobOutcome, Lease, LeaseEnd, LeaseReply, LoadRows, Lookup, LookupReply, Pin, PinReply, PrepareStore,
    PrepareStoreReply, Query, Refusal, RowsDone, SHARED_TABLE, Scan, StatsReply, StoreRows, TierInfo, Unpin,
    WANT_EVENTS, WANT_STATS, WireGeometry, WireNamespace,
};
pub(crate) use message::{is_answer, is_hit};
